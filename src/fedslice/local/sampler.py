"""Samplers: the batches that clients train on."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import model_validator
from torch import Tensor

from fedslice.core import rng
from fedslice.core.component import Component
from fedslice.core.part import Count

_USUAL = 10  # steps in a round


@dataclasses.dataclass(frozen=True)
class Batches:
    """Sample numbers inside each client, [clients, steps, batch]; ``real`` is false where a place is filled up.

    A filled-up place repeats one of the client's samples and weighs nothing.
    """

    index: Tensor
    real: Tensor


class Sampler(Component):
    """Batches of ``batch_size`` samples, for ``iterations`` steps (10 unless said otherwise) or ``epochs`` passes.

    Args:
        iterations (steps): Steps in a round; 10 if epochs are not given either.
        epochs (passes): Passes over the client's samples in a round, in place of ``iterations``.
        batch_size (samples): Samples in a batch; ``none`` for all of the client's, which is the exact gradient.
        order: ``"random"`` draws with replacement (the default for iterations), ``"shuffled"`` by a fresh shuffle for
            every pass (the default for epochs), ``"file"`` in the client's own order, from its beginning
            in every round.
    """

    label = "batches"
    place: ClassVar[str] = "sampler"

    iterations: Count | None = None
    epochs: Count | None = None
    batch_size: Count | None = 5
    order: Literal["random", "shuffled", "file"] | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Sampler:
        if self.epochs is not None and self.iterations is not None:
            raise ValueError(f"iterations={self.iterations} and epochs={self.epochs} are both given; give one")
        return self

    def samples(self, sizes: Tensor, scale: int) -> Tensor:
        """Return the number of samples that clients of these sizes train on in a round."""
        if self.batch_size is None:
            return sizes * (self.epochs or self.iterations or _USUAL)
        if self.epochs:
            return sizes * self.epochs
        return torch.full_like(sizes, self.batch_size * scale * (self.iterations or _USUAL))

    def batches(self, t: int, clients: Tensor, draws: Tensor, sizes: Tensor, scale: int, seed: int) -> Batches:
        """Return the batches of each client, the same for any engine, chunk or order of clients."""
        who, draw, size = (x.cpu().numpy()[:, None] for x in (clients, draws, sizes))
        width = int(size.max()) if self.batch_size is None else self.batch_size * scale
        per_pass = np.ones_like(size) if self.batch_size is None else -(-size // width)
        steps = per_pass * self.epochs if self.epochs else np.full_like(size, self.iterations or _USUAL)
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
