"""What travels: a chunk's updates on their slices, and the server's step."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    # How far each client went along the local method's field (SGD.field) where its slice is not in the layout.
    reach: Tensor | None = None

    def fine(self) -> Tensor:
        """Which clients sent nothing but finite values."""
        fine = torch.ones(len(self.clients), dtype=torch.bool, device=self.clients.device)
        for value in self.values.values():
            flat = value.reshape(len(value), -1)
            doubtful = (~torch.isfinite(flat.sum(1))).nonzero().squeeze(1)  # a finite sum has finite terms alone
            fine[doubtful] &= torch.isfinite(flat[doubtful]).all(1)
        return fine

    def of(self, fine: Tensor) -> Upload:
        """The same with every other client silenced: it weighs nothing, and its values are zero.

        So one bad client cannot spoil a round.
        """
        if bool(fine.all()):
            return self
        values = {n: v.masked_fill(~fine.view(-1, *[1] * (v.dim() - 1)), 0) for n, v in self.values.items()}
        return replace(self, values=values, weights=self.weights * fine.to(self.weights.device))


@dataclass(frozen=True)
class Message:
    """An encoded upload and its true size in bytes, per client."""

    upload: Upload
    bytes: Tensor
