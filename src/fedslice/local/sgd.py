"""Local SGD (FedSubAvg, algorithm 1, lines 14-17), and the batches it is fed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.linalg import vector_norm

from fedslice.core import rng
from fedslice.core.entries import OnSlice, View
from fedslice.core.message import Body
from fedslice.core.part import CHECKED, Count, NonNegative, Part, Positive
from fedslice.core.slice import Axis, Slice, Values
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.training.work import Batch, Work


class Forward(Protocol):
    """The network, run for all clients of a chunk at once: every tensor has a leading client axis."""

    def __call__(self, parameters: Values, features: dict[str, Tensor]) -> Tensor:
        """Outputs."""
        ...

    def deep(self, parameters: Values, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs, and what entered the last Linear layer on the way to them, in one pass."""
        ...

    def seen(
        self, names: tuple[str, ...], parameters: Values, features: dict[str, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs, and those of the named submodules on the way to them, in one pass."""
        ...

    def frozen(self) -> AbstractContextManager[None]:
        """While it lasts networks are not trained but asked: no gradient, no dropout."""
        ...


@dataclasses.dataclass(frozen=True)
class Batches:
    """Sample numbers inside each client, [clients, steps, batch]; ``real`` is false where a place is filled up.

    A filled-up place repeats one of the client's samples and weighs nothing.
    """

    index: Tensor
    real: Tensor


@dataclass(frozen=True, config=CHECKED)
class SGD(Part):
    """Plain SGD for ``iterations`` steps (10 unless said otherwise) or ``epochs`` passes.

    ``order``: batches are drawn with replacement (``random``, the default for iterations), by a fresh shuffle for
    every pass (``shuffled``, the default for epochs), or in the client's own order, from its beginning in every
    round (``file``). ``batch_size=None`` is the exact gradient. ``clip`` bounds the norm of each client's gradient;
    ``decay`` multiplies the rate every round.

    ``momentum`` and ``weight_decay`` are those of ``torch.optim.SGD``, with a velocity that begins at zero in every
    round. Weights decay, that is parameters with more than one dimension, tables among them; biases do not.

    Args:
        lr: Learning rate of the first round, γ.
        iterations (steps): Steps per round, I; 10 if epochs are not given either.
        epochs (passes): Passes over a client's samples per round, E, in place of iterations.
        batch_size (samples): Samples per step, B; ``none`` takes all of a client's samples.
        order: How batches are drawn: ``random`` with replacement, ``shuffled`` in every pass, ``file`` in the
            client's order.
        clip: Upper bound of the norm of each client's gradient.
        decay: Factor of the learning rate per round.
        momentum: Momentum of the local steps; the velocity begins at zero in every round.
        weight_decay: Factor of the weights that is added to their gradient; biases do not decay.
    """

    place: ClassVar[str] = "local"
    label = "sgd"
    follows_gradient: ClassVar[bool] = True  # see ``provides``

    _: KW_ONLY
    lr: Positive = 0.1
    iterations: Count | None = None
    epochs: Count | None = None
    batch_size: Count | None = 5
    order: Literal["random", "shuffled", "file"] | None = None
    clip: Positive | None = None
    decay: Positive = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0

    @property
    def provides(self) -> frozenset[str]:
        """Whether the end of a coordinate whose gradient is zero in all steps is known without training.

        The engine then trains only the table rows that a client's batches (or ``rows``) name: the same result at the
        cost of the batches. A row that decays has to be trained. A subclass may move rows in ways of its own, so this
        is not inherited: it says ``follows_gradient = True`` in its own body if it does not.
        """
        follows = vars(type(self)).get("follows_gradient", False) and not self.weight_decay
        return frozenset({"follows-gradient"}) if follows else frozenset()

    @model_validator(mode="after")
    def _one_length(self) -> SGD:
        if self.epochs is not None and self.iterations is not None:
            raise ValueError(f"iterations={self.iterations} and epochs={self.epochs} are both given; give one")
        return self

    def rate(self, t: int) -> float:
        """Learning rate of round ``t``."""
        return self.lr * self.decay**t

    def samples(self, sizes: Tensor, scale: int) -> Tensor:
        """How many samples clients of these sizes train on in a round."""
        if self.batch_size is None:
            return sizes * (self.epochs or self.iterations or 10)
        if self.epochs:
            return sizes * self.epochs
        return torch.full_like(sizes, self.batch_size * scale * (self.iterations or 10))

    def batches(self, t: int, clients: Tensor, draws: Tensor, sizes: Tensor, scale: int, seed: int) -> Batches:
        """What each client trains on, the same for any engine, chunk or order of clients."""
        who, draw, size = (x.cpu().numpy()[:, None] for x in (clients, draws, sizes))
        width = int(size.max()) if self.batch_size is None else self.batch_size * scale
        per_pass = np.ones_like(size) if self.batch_size is None else -(-size // width)
        steps = per_pass * self.epochs if self.epochs else np.full_like(size, self.iterations or 10)
        places = np.arange(int(steps.max()) * width)[None]
        real = places // width < steps
        order = self.order or ("shuffled" if self.epochs else "random")
        if order == "random" and self.batch_size is not None:
            index = rng.integers(size, seed, rng.Purpose.BATCH, t, who, draw, places)
        elif self.epochs or self.batch_size is None:  # a pass ends at the last sample; its last batch is filled up
            visit, inside = np.divmod(places, per_pass * width)
            visit = np.minimum(visit, steps // per_pass - 1)  # what lies beyond the client's last pass is not real
            index, real = np.minimum(inside, size - 1), real & (inside < size)
            index = self._shuffle(order, index, visit, size, (seed, rng.Purpose.BATCH, t, who, draw))
        else:  # a number of iterations: passes follow each other without a gap
            visit, index = np.divmod(places, size)
            index = self._shuffle(order, index, visit, size, (seed, rng.Purpose.BATCH, t, who, draw))
        shape = (len(size), int(steps.max()), width)
        return Batches(
            torch.from_numpy(index.reshape(shape)).to(clients.device),
            torch.from_numpy(real.reshape(shape)).to(clients.device),
        )

    @staticmethod
    def _shuffle(
        order: str,
        index: NDArray[np.int64],
        visit: NDArray[np.int64],
        size: NDArray[np.int64],
        key: tuple[rng.Words, ...],
    ) -> NDArray[np.int64]:
        """Replace the place in a pass by the sample that the pass's own permutation puts there."""
        if order != "shuffled":
            return index
        index, visit = index.copy(), np.broadcast_to(visit, index.shape)
        for one in range(int(visit.max()) + 1):
            rows = np.flatnonzero((visit == one).any(1))  # the clients that get as far as this pass
            place = np.arange(int(size[rows].max()))[None]
            keys = rng.bits(*(word if np.ndim(word) == 0 else np.asarray(word)[rows] for word in key), one, place)
            keys[place >= size[rows]] = np.iinfo(np.uint64).max
            permutation = np.argsort(keys, axis=1, kind="stable")
            shuffled = np.take_along_axis(permutation, np.minimum(index[rows], place.size - 1), axis=1)
            index[rows] = np.where(visit[rows] == one, shuffled, index[rows])
        return index

    def objective(
        self,
        forward: Forward,
        loss: Loss,
        parameters: Values,
        batch: Batch,
        work: Work,  # noqa: ARG002
        s: int,  # noqa: ARG002
    ) -> Tensor:
        """What each client minimises in step ``s`` of its work, here the mean loss of its batch: [clients]."""
        return mean_loss(loss, forward(parameters, batch.features), batch)

    def beside(self, work: Work) -> Values:  # noqa: ARG002
        """What clients train besides the model, from these values, under names that no parameter has."""
        return {}

    def still(self, work: Work, s: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Which clients do not move a parameter in step ``s``: flags [clients], for the parameters concerned."""
        return {}

    def direction(self, gradient: Values, parameters: Values, work: Work) -> Values:  # noqa: ARG002
        """From the gradient of what moves to a step: clipping, which looks at each client alone, then decay."""
        if self.clip is not None:
            norms = [vector_norm(g.reshape(len(g), -1), dim=1) for g in gradient.values()]
            norm = vector_norm(torch.stack(norms), dim=0)
            factor = self.clip / norm.clamp(min=self.clip)
            gradient = {n: g * factor.view(-1, *[1] * (g.dim() - 1)) for n, g in gradient.items()}
        if self.weight_decay:
            gradient = {
                n: g.add(parameters[n], alpha=self.weight_decay) if is_weight(g[0]) else g for n, g in gradient.items()
            }
        return gradient

    def rows(self, memory: Any, table: str, clients: Tensor) -> Axis | None:  # noqa: ARG002
        """Return rows of a table that these clients' steps move, whatever their batches name."""
        return None

    def drift(self, came: Body) -> View | OnSlice | None:  # noqa: ARG002
        """Return the direction against which each step moves coordinates without a gradient, if they all move alike.

        For a method with the capability ``uniform-drift``.
        """
        return None

    def bring(self, memory: Any, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:  # noqa: ARG002
        """Return what clients use in their steps besides the model, by parameter, on the layout: ``Work.aside``."""
        return {}

    def personal(self, memory: Any, clients: Tensor, layout: Slice, start: Values, came: Body) -> Values:  # noqa: ARG002
        """Return the model with which clients are tested, given what they start from, on a layout with any rows."""
        return start

    def tuner(self) -> SGD:
        """Return how a client fits its own model to its data before it is tested."""
        return self

    def plain(self) -> SGD:
        """Return the same steps without what a method adds to them."""
        return SGD(**{name: getattr(self, name) for name in SGD.setting_names()})

    def report(self, work: Work, end: Values) -> Mapping[str, Values | Tensor]:  # noqa: ARG002
        """Return the entries of :meth:`up_fields`: values on the layout by parameter, or a tensor [clients, ...].

        The server sums values over the cohort, with the weights of the merge (:attr:`Round.sums`), and has tensors by
        client (:attr:`Round.told`).
        """
        return {}

    def keep(self, work: Work, end: Values) -> None:
        """Write what clients remember of this round into ``work.memory``. It counts if their upload is taken."""


def is_weight(value: Tensor) -> bool:
    """Has a parameter more than one dimension, as weights and tables have, and biases have not?"""
    return value.dim() > 1


def mean_loss(loss: Loss, output: Tensor, batch: Batch) -> Tensor:
    """Mean loss of each client's batch: [clients]."""
    each = loss(output.flatten(0, 1), batch.label.flatten(0, 1)).view(batch.label.shape[:2])
    return (each * batch.share).sum(1) / batch.share.sum(1).clamp(min=1)
