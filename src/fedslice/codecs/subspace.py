"""Streaming subspace: updates travel as coefficients in a basis that follows the global trajectory (S4)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.codecs.base import Codec
from fedslice.messages import Message, Step, Upload
from fedslice.parts import CHECKED, Count, RoundEnd, World
from fedslice.slice import Slice, Values

CODE = "code"  # the one parameter of the space in which coefficients are summed


@dataclass(config=CHECKED)
class StreamingSubspace(Codec):
    """``warmup`` plain rounds, then ``rank`` coefficients per client and a full update every ``every`` rounds.

    Coefficients are linear in the update, so the server sums them and lifts the sum once: P·Σ w_i·Pᵀg_i. Full
    rounds keep the basis on the trajectory: the top singular directions of [P·Σ, g], from a Gram matrix of R+1
    columns in float64 (algorithm 2).
    """

    label = "subspace"
    sums_codes = True

    rank: Count = 50
    warmup: Count = 200
    every: Count = 5

    def setup(self, world: World) -> None:
        """Learn the shapes; nothing is sampled yet."""
        self._shapes = world.task.shapes
        self._sampled: list[Tensor] = []
        self._basis: Tensor | None = None
        self._sigma = torch.zeros(0, dtype=torch.float64)

    def full(self, t: int) -> bool:
        """Do plain updates travel in round ``t``?"""
        return t < self.warmup or (t - self.warmup) % self.every == 0 or self._basis is None

    def encode(self, t: int, upload: Upload) -> Message:
        """g̃ = Pᵀg, or g itself on a full round."""
        itemsize = next(iter(upload.values.values())).element_size()
        if self.full(t):
            return Message(upload, upload.slice.numbers() * itemsize + upload.slice.id_bytes())
        basis = self._split(upload)
        rank = next(iter(basis.values())).shape[-1]
        code = sum(
            torch.einsum(
                "cv,cvr->cr",
                upload.values[n].reshape(upload.layout.clients, -1),
                basis[n].reshape(upload.layout.clients, -1, rank),
            )
            for n in upload.layout.axes
        )
        assert isinstance(code, Tensor)
        space = Slice.whole(len(code), {CODE: code.shape[1:]})
        sent = Upload(upload.clients, upload.weights, space, space, {CODE: code})
        return Message(sent, space.numbers() * itemsize)

    def lift(self, t: int, mean: Step) -> Step:  # noqa: ARG002
        """P·g̃, once for the whole cohort, with the basis that made the codes."""
        if CODE not in mean:
            return mean
        assert self._basis is not None
        flat = self._basis @ mean[CODE][1]
        return {n: (None, v) for n, v in self._unflatten(flat).items()}

    def down_bytes(self, t: int, down: Slice, itemsize: int) -> Tensor:
        """What comes down is the last round's aggregate: as many words as went up then."""
        if t == 0 or self.full(t - 1) or self._basis is None:
            return super().down_bytes(t, down, itemsize)
        return torch.full((down.clients,), self._basis.shape[1] * itemsize)

    def observe(self, end: RoundEnd) -> None:
        """Sample the trajectory, then follow it on full rounds."""
        if end.round >= self.warmup and not self.full(end.round):
            return
        update = self._flatten(end.change)
        if end.round < self.warmup:
            self._sampled.append(update)
            if len(self._sampled) == self.warmup:
                self._fit(torch.stack(self._sampled, 1))
                self._sampled = []
        elif self._basis is not None:
            weighted = self._basis.double() * self._sigma
            self._fit(torch.cat([weighted, update.double()[:, None]], 1))

    def state_dict(self) -> Values:
        """The basis, or the updates sampled for it so far."""
        state: Values = {"sigma": self._sigma}
        if self._basis is not None:
            state["basis"] = self._basis
        if self._sampled:
            state["sampled"] = torch.stack(self._sampled)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved basis."""
        self._sigma = state["sigma"]
        self._basis = state.get("basis")
        self._sampled = list(state["sampled"]) if "sampled" in state else []

    def _fit(self, updates: Tensor) -> None:
        """Leading left singular vectors through the Gram matrix; directions without energy are dropped."""
        gram = updates.double().T @ updates.double()
        energy, vectors = torch.linalg.eigh(gram)
        sigma = energy.clamp(min=0).sqrt().flip(0)[: self.rank]
        keep = sigma > 1e-7 * sigma[0]
        if not bool(keep.any()):
            return
        basis = updates.double() @ vectors.flip(1)[:, : self.rank][:, keep] / sigma[keep]
        gram = basis.T @ basis
        if (
            float((gram - torch.eye(len(gram)).to(gram)).abs().max()) > 1e-6
        ):  # directions of little energy come out skew
            basis, corner = torch.linalg.qr(basis)
            basis = basis * corner.diagonal().sign()
        self._sigma = sigma[keep]
        self._basis = basis.to(updates.dtype if self._basis is None else self._basis.dtype)

    def _flatten(self, change: Mapping[str, tuple[Tensor | None, Tensor]]) -> Tensor:
        like = next((values for _, values in change.values()), torch.zeros(0))
        parts = []
        for name, shape in self._shapes.items():
            out = like.new_zeros(shape)
            if name in change:
                rows, values = change[name]
                out = values.reshape(shape) if rows is None else out.index_add_(0, rows, values)
            parts.append(out.flatten())
        return torch.cat(parts)

    def _unflatten(self, flat: Tensor) -> Values:
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = flat.split(sizes)
        return {n: p.view(*s, *flat.shape[1:]) for (n, s), p in zip(self._shapes.items(), parts, strict=True)}

    def _split(self, upload: Upload) -> Values:
        """The basis rows of the coordinates that an upload holds: [clients, …, rank] per parameter."""
        assert self._basis is not None
        shapes = {n: torch.Size([*s, self._basis.shape[1]]) for n, s in self._shapes.items()}
        axes = {n: (*a, None) for n, a in upload.layout.axes.items()}
        return Slice(upload.layout.clients, shapes, axes).gather(self._unflatten(self._basis))
