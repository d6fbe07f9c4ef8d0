"""Sequences of differing lengths, end to end or as windows on a longer one, and ranges of flat arrays."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.data import columns

PAD = 0  # the id that fills a sequence up inside a batch; its row belongs to everyone


class Ragged:
    """Sequences of differing lengths: sample i is the ``lengths[i]`` values that begin at ``offsets[i]``.

    Without lengths the sequences lie end to end and ``offsets`` has one number more, the end of the last. With them
    they are windows, which may overlap: a history of the last clicks before each of a client's samples then takes
    two numbers per sample, however long it is.
    """

    def __init__(self, values: Tensor, offsets: Tensor, lengths: Tensor | None = None):
        self.values = values
        self.offsets = offsets
        self.lengths: Tensor = offsets.diff() if lengths is None else lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[float]]) -> Ragged:
        """From a list of lists of ids, or of other numbers.

        >>> Ragged.from_lists([[3, 1], [], [2]]).lengths.tolist()
        [2, 0, 1]
        """
        for number, row in enumerate(rows):
            if not columns.is_sequence(row):
                raise UserError(f"Ragged.from_lists: row {number} is {columns.shown(row)}, expected a list of numbers.")
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        flat = [value for row in rows for value in row]
        try:
            values = columns.tensor("Ragged.from_lists:", flat) if flat else lengths[:0]
        except UserError:
            for number, row in enumerate(rows):  # the first that is wrong, by its own number
                columns.tensor(f"Ragged.from_lists: row {number},", row)
            raise
        return cls(values, offsets_of(lengths))

    def take(self, index: Tensor) -> Ragged:
        """The chosen sequences, in the given order: as windows on the same values, unless a copy is no larger."""
        starts, lengths = self.offsets[index], self.lengths[index]
        if int(lengths.sum()) > len(self.values):
            return Ragged(self.values, starts, lengths)
        return Ragged(self.values[members(starts, lengths)[0]], offsets_of(lengths))

    def joined(self, other: Ragged) -> Ragged:
        """These sequences and then others."""
        starts = [self.offsets[: len(self)], other.offsets[: len(other)] + len(self.values)]
        values, lengths = torch.cat([self.values, other.values]), torch.cat([self.lengths, other.lengths])
        return Ragged(values, torch.cat(starts), lengths)

    def distinct(self, index: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """Values of sequences ``index``, each place of the storage once per owner, and the owner of each value.

        ``owner`` [len(index)] ascends. Windows are cut where an earlier one of the same owner reaches, so the cost
        is that of the places they cover together and not of their lengths.
        """
        apart = owner * (len(self.values) + 1)  # the places of one owner lie beyond all those of the one before
        starts, order = (self.offsets[index] + apart).sort()
        ends = starts + self.lengths[index][order]
        fresh = starts.clone()
        torch.maximum(starts[1:], ends.cummax(0).values[:-1], out=fresh[1:])
        flat, window = members(fresh - apart, (ends - fresh).clamp(min=0))  # sorting by start keeps owners in order
        return self.values[flat], owner[window]

    def padded(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences ``index`` [...] as ids [..., longest], filled up with ``PAD``, and their lengths [...]."""
        start, length = self.offsets[index], self.lengths[index].long()
        longest = int(length.max()) if length.numel() else 0
        place = torch.arange(longest, device=start.device)
        valid = place < length[..., None]
        flat = (start[..., None] + place).masked_fill(~valid, 0)
        if not len(self.values):
            return flat, length
        return self.values[flat].masked_fill(~valid, PAD), length

    def to(self, device: torch.device) -> Ragged:
        """The same sequences on another device."""
        return Ragged(self.values.to(device), self.offsets.to(device), self.lengths.to(device))


def ranges(offsets: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The members of the ranges ``index``, end to end, and for each the place in ``index`` it belongs to."""
    return members(offsets[index], offsets[index + 1] - offsets[index])


def members(starts: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the members of ranges of these starts and sizes, end to end, and for each the number of its range."""
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    shift = starts - (sizes.cumsum(0) - sizes)
    return torch.arange(len(owner), device=sizes.device) + shift[owner], owner


def offsets_of(sizes: Tensor) -> Tensor:
    """Return the start of each range of these sizes when they lie end to end, and the end of the last."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).to(torch.int64)
