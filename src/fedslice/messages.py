"""What travels: a chunk's updates on their slices, and the server's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedslice.slice import Axis, Slice, Values

# A change of the model: per parameter the rows it touches (``None``: all) and the values to add there.
Step = dict[str, tuple[Tensor | None, Tensor]]


@dataclass(frozen=True)
class Upload:
    """What a chunk of clients sends.

    ``slice`` is what counts as sent: it sets the wire cost and who covers a coordinate. ``layout`` says where
    ``values`` sit; it may leave out coordinates of ``slice`` whose update is known to be zero.
    """

    clients: Tensor
    weights: Tensor  # float64, on the CPU
    slice: Slice
    layout: Slice
    values: Values
    # How far each client went along the local method's field (SGD.field) where its slice is not in the layout.
    reach: Tensor | None = None

    def fine(self) -> Tensor:
        """Which clients sent updates of finite norm: no NaN, and nothing that overflows when weighed and summed."""
        fine = torch.ones(len(self.clients), dtype=torch.bool, device=self.clients.device)
        for value in self.values.values():
            fine &= torch.isfinite(torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1))
        return fine

    def of(self, fine: Tensor) -> Upload:
        """The same with every other client silenced: it weighs nothing, and its values are zero.

        So one bad client cannot spoil a round.
        """
        if bool(fine.all()):
            return self
        values = {n: v.masked_fill(~fine.view(-1, *[1] * (v.dim() - 1)), 0) for n, v in self.values.items()}
        return replace(self, values=values, weights=self.weights * fine.to(self.weights.device))

    def one(self, place: int) -> Upload:
        """What one client of the chunk sends, without padding, laid out on all of it."""
        if self.reach is not None:
            raise ValueError("an upload that drifts along a field is laid out only where it was trained")
        sent, layout = _one(self.slice, place), _one(self.layout, place)
        values = {n: self.values[n][place][self.layout.own(n, place)][None] for n in layout.axes}
        if self.layout is not self.slice:
            spread = {name: layout.spread(name, value) for name, value in values.items()}
            values = sent.pick(spread, Slice.whole(1, sent.shapes, spread))
        some = slice(place, place + 1)
        return replace(
            self, clients=self.clients[some], weights=self.weights[some], slice=sent, layout=sent, values=values
        )


@dataclass(frozen=True)
class Message:
    """An encoded upload and its true size in bytes, per client.

    ``codes`` is what travels beside or instead of values ([clients, …]: scales, factors). ``words`` is the size in S4's
    unit, the 32-bit words that a client sends (table 1); ``None`` stands for a quarter of the bytes.
    """

    upload: Upload
    bytes: Tensor
    words: Tensor | None = None
    codes: Mapping[str, Tensor] = field(default_factory=dict)

    def one(self, place: int) -> Message:
        """The message of one client of the chunk."""
        some = slice(place, place + 1)
        return Message(
            self.upload.one(place),
            self.bytes[some],
            None if self.words is None else self.words[some],
            {name: code[some] for name, code in self.codes.items()},
        )


def _one(part: Slice, place: int) -> Slice:
    """One client's slice; axes that parameters share are shared still."""
    axes: dict[Axis, Axis] = {}
    for axis in (axis for held in part.axes.values() for axis in held if axis is not None):
        count = axis.counts[place : place + 1]
        axes.setdefault(axis, Axis(count, axis.ids[place : place + 1, : int(count)], axis.first[place : place + 1]))
    held = {n: tuple(None if axis is None else axes[axis] for axis in own) for n, own in part.axes.items()}
    return Slice(1, part.shapes, held)
