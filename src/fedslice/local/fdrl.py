"""FDRL: a shared and a private encoder that are pushed apart (equation 1; distances of its published code)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import vector_norm
from torch.nn import functional as F

from fedslice.core.errors import UserError
from fedslice.core.memory import Memory
from fedslice.core.message import Body
from fedslice.core.part import ClientRun, NonNegative
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.local.term import Step, Term
from fedslice.models.discriminative import ENCODERS

if TYPE_CHECKING:
    from fedslice.training.work import Work


class EncoderMemory(Memory):
    """Knows the weights that both encoders have in common.

    Raises:
        UserError: If the network has not both encoders.
    """

    def __init__(self, run: ClientRun, place: str):
        super().__init__(run, place)
        whose, children = type(run.spec.module).__name__, dict(run.spec.module.named_children())
        for name in ENCODERS:
            if name not in children:
                raise UserError(
                    f"local=fdrl needs a model with submodules 'shared' and 'private', and {whose} has no {name!r}; "
                    "build one with fedslice.models.discriminative.Discriminative, or use local=plain."
                )
        self.pairs = _pairs(run.spec)


class FDRL(Term):
    """Adds α·S_m + β·S_r for a model with the submodules ``shared`` (W) and ``private`` (Q), trained together.

    ``published``: S_m = exp(−Σ_l ‖W_l − Q_l‖ / Σ_l (‖W_l‖ + ‖Q_l‖)) over the weights, not the biases, that both
    encoders have under one name and in one shape; S_r is the batch's mean cosine between the encoders' outputs. Both
    grow as the encoders become alike. The paper assumes convex distances, which these are not; ``convex`` is
    S_m = ½·Σ_l ‖W_l + Q_l‖² and S_r = ½·mean ‖z_W + z_Q‖², which are, for encoders that are linear.

    Of a table, the rows that a client holds are compared.

    Args:
        alpha: Weight of the distance of the encoders' weights, α.
        beta: Weight of the distance of the encoders' outputs, β.
        distance: ``published`` is that of the paper's code, ``convex`` what its theorems assume.
    """

    label = "fdrl"
    activations = ENCODERS
    follows_gradient = False  # S_m moves rows of a table that no batch names

    alpha: NonNegative = 1.0
    beta: NonNegative = 1.0
    distance: Literal["published", "convex"] = "published"

    def client_memory(self, run: ClientRun, place: str) -> EncoderMemory:
        """Find both encoders, and the weights that they have in common."""
        memory = EncoderMemory(run, place)
        if self.alpha and not memory.pairs:
            raise UserError(
                "local=fdrl compares weights of 'shared' and 'private' that have one name and one shape, and "
                f"{type(run.spec.module).__name__} has none; give both encoders one architecture, or alpha=0."
            )
        return memory

    def constants(
        self,
        memory: EncoderMemory,
        clients: Tensor,  # noqa: ARG002
        layout: Slice,
        down: Slice,  # noqa: ARG002
        came: Body,  # noqa: ARG002
    ) -> Values:
        """Return flags of a client's own rows of a table, where others have more: padding has no distance."""
        flags = {name: layout.held(name) for pair in memory.pairs for name in pair}
        return {n: _beside(held, len(layout.shapes[n])) for n, held in flags.items() if held is not None}

    def penalty(self, step: Step, work: Work) -> Tensor | None:
        """Return α·S_m."""
        if not self.alpha:
            return None
        own = {n: step.parameters[n] * mine for n, mine in work.constants.items()}
        names = work.memory.pairs
        pairs = [(own.get(w, step.parameters[w]), own.get(q, step.parameters[q])) for w, q in names]
        return self.alpha * self.likeness(pairs)

    def loss(self, step: Step, work: Work) -> Tensor | None:  # noqa: ARG002
        """Return β·S_r."""
        if not self.beta:
            return None
        shared, private = (step.seen.activations[name] for name in ENCODERS)
        if shared.shape != private.shape:
            raise UserError(
                f"local=fdrl compares what 'shared' and 'private' give, and their outputs have shapes "
                f"{list(shared.shape[2:])} and {list(private.shape[2:])}; make them one shape, or give beta=0."
            )
        return self.beta * (self.agreement(shared.flatten(2), private.flatten(2)) * step.batch.share).sum(1)

    def likeness(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return S_m of every client [clients], from the encoders' weights [clients, …]."""
        flat = [(w.flatten(1), q.flatten(1)) for w, q in pairs]
        if self.distance == "convex":
            return torch.stack([(w + q).square().sum(1) for w, q in flat]).sum(0) / 2
        found: Tensor = _Likeness.apply(*(value for pair in flat for value in pair))  # type: ignore[no-untyped-call]
        return found

    def agreement(self, shared: Tensor, private: Tensor) -> Tensor:
        """Return S_r of every sample [clients, batch], from the encoders' outputs [clients, batch, features]."""
        if self.distance == "convex":
            return (shared + private).square().sum(-1) / 2
        return F.cosine_similarity(shared, private, dim=-1)


class _Likeness(torch.autograd.Function):
    """S_m = exp(−A / B), A = Σ_l ‖W_l − Q_l‖, B = Σ_l (‖W_l‖ + ‖Q_l‖), from W_1, Q_1, W_2, … [clients, numbers].

    Its gradient by W_l is a sum of W_l and Q_l with one factor each. Written out it passes over the weights a few
    times; taken norm by norm it costs as much as all the rest of a step. A norm of zero has gradient zero.
    """

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> Tensor:
        apart = torch.stack([vector_norm(w - q, dim=1) for w, q in zip(weights[::2], weights[1::2], strict=True)])
        sizes = torch.stack([vector_norm(value, dim=1) for value in weights])
        total = sizes.sum(0).clamp(min=torch.finfo(sizes.dtype).tiny)
        likeness = torch.exp(-apart.sum(0) / total)
        ctx.save_for_backward(*weights, apart, sizes, total, likeness)
        return likeness

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, ...]:
        *weights, apart, sizes, total, likeness = ctx.saved_tensors
        scale = upstream * likeness / total
        toward = scale * _inverse(apart)  # along Q_l for W_l, and along W_l for Q_l
        along = scale * apart.sum(0) / total * _inverse(sizes) - toward.repeat_interleave(2, 0)
        slopes = []
        for n, value in enumerate(weights):
            other = weights[n ^ 1]
            slopes.append((other * toward[n // 2, :, None]).addcmul_(value, along[n, :, None]))
        return tuple(slopes)


def _inverse(norms: Tensor) -> Tensor:
    return torch.where(norms > 0, 1 / norms, 0)


def _pairs(spec: Spec) -> list[tuple[str, str]]:
    """Return the names of a weight of the shared encoder and of the same weight of the private one."""
    shared, private = (f"{name}." for name in ENCODERS)
    names = [(name, private + name.removeprefix(shared)) for name in spec.shapes if name.startswith(shared)]
    return [(w, q) for w, q in names if len(spec.shapes[w]) > 1 and spec.shapes.get(q) == spec.shapes[w]]


def _beside(flags: Tensor, rank: int) -> Tensor:
    """Return flags over the first dimensions of clients' values, shaped to broadcast over all of a parameter's."""
    return flags.view(*flags.shape, *[1] * (rank + 1 - flags.dim()))
