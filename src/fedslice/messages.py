"""Updates of a chunk of clients on their slices, and the server's step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedslice.slice import Slice, Values

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
    # How far each client went along ``drift`` where its slice is not in the layout: its update there is -reach * drift.
    reach: Tensor | None = None
    drift: Mapping[str, Tensor] = field(default_factory=dict)

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

    def only(self, names: Iterable[str]) -> Upload:
        """The same update of some parameters alone."""
        kept = list(names)
        values = {name: self.values[name] for name in kept}
        return replace(self, slice=self.slice.only(kept), layout=self.layout.only(kept), values=values)

    def one(self, client: int, on: Slice) -> Values:
        """One client's update on all of ``on``, a part of the slice, without padding, with a leading axis of one."""
        own = {name: self.values[name][client][self.layout.own(name, client)][None] for name in on.axes}
        sent = on.one(client)
        values = self.layout.only(on.axes).one(client).expand(own, sent)
        if self.reach is not None:
            for name in self.drifting():
                if name in values:
                    direction = sent.only([name]).gather(self.drift)[name]
                    values[name] = values[name] - self.reach[client].to(direction) * direction
        return values

    def drifting(self) -> list[str]:
        """The parameters that drift where the slice is not in the layout."""
        held = self.layout.axes.items()
        return [name for name, axes in held if axes and axes[0] is not self.slice.axes[name][0]]
