"""Values of a message's fields while they are not in bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedslice.core.slice import Axes, Slice, Values


def per_client(numbers: Tensor, like: Tensor) -> Tensor:
    """Return a number per client [clients], shaped to broadcast over values [clients, ...]."""
    return numbers.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class View:
    """Values of the server on a slice, read when they are asked for.

    In a simulation a download holds views: of a table of ten million rows training reads the few that it needs. A view
    that is read after its tensors have changed would give another round's values, and raises.

    Args:
        tensors: The server's values by parameter. Parameters may have more dimensions than the slice knows.
        part: The coordinates that are sent.
        factor: What values are multiplied by.
        fresh: Whether the tensors are still those of the message's round.
    """

    tensors: Mapping[str, Tensor]
    part: Slice
    factor: float = 1.0
    fresh: Callable[[], bool] = field(default=lambda: True)

    def at(self, layout: Slice) -> Values:
        """Return the values on a layout [clients, ...]: of those of its parameters that are sent."""
        if not self.fresh():
            raise RuntimeError("a download was read after the server's next step")
        values = layout.only(name for name in layout.axes if name in self.part.axes).gather(self.tensors)
        return values if self.factor == 1 else {name: self.factor * value for name, value in values.items()}

    def one(self, client: int, on: Slice) -> Values:
        """Return one client's values on all of ``on``, without padding, with a leading axis of one."""
        return self.at(on.one(client))

    def on(self, part: Slice) -> View:
        """Return a view of other coordinates."""
        return View(self.tensors, part, self.factor, self.fresh)


@dataclass(frozen=True)
class OnSlice:
    """Entries that sit on a slice, as a model's values do.

    Args:
        part: Where the values sit: the field's slice, or one that it contains.
        values: Per parameter [clients, ...].
        rest: The entry of every coordinate of the field that ``part`` leaves out.
    """

    part: Slice
    values: Values
    rest: int = 0

    def at(self, layout: Slice) -> Values:
        """Return the values on a layout, of those of its parameters that are here; ``rest`` where there are none."""
        names = [name for name in layout.axes if name in self.values]
        if all(layout.axes[name] == self.part.axes[name] for name in names):
            return {name: self.values[name] for name in names}
        inner, outer, own = layout.only(names), self.part.only(names), {name: self.values[name] for name in names}
        return inner.pick(own, outer) if inner.within(outer) else outer.expand(own, inner, self.rest)

    def one(self, client: int, on: Slice) -> Values:
        """Return one client's entries on all of ``on``, without padding, with a leading axis of one."""
        own = {name: self.values[name][client][self.part.own(name, client)][None] for name in on.axes}
        return self.part.one(client).expand(own, on.one(client), self.rest)


@dataclass(frozen=True)
class Maybe:
    """Entries of a field that not every client's message has.

    Args:
        present: Whose message has it [clients].
        entries: The entries of the chunk.
    """

    present: Tensor
    entries: Tensor | View | OnSlice


def merged(parts: list[View | OnSlice]) -> View | OnSlice:
    """Return the entries of several fields, which are of different parameters, as one."""
    first = parts[0]
    if all(part is first for part in parts):
        return first
    values: Values = {}
    axes: dict[str, Axes] = {}
    for part in parts:
        values |= {} if isinstance(part, View) else part.values
        axes |= part.part.axes
    whole = Slice(first.part.clients, first.part.shapes, axes)
    return first.on(whole) if isinstance(first, View) else OnSlice(whole, values, first.rest)


def as_tensor(entries: object) -> Tensor:
    """Return entries that sit on no slice [clients, ...]."""
    assert isinstance(entries, Tensor)
    return entries


def on_slice(entries: object) -> OnSlice:
    """Return entries that sit on a slice and are here in full."""
    assert isinstance(entries, OnSlice)
    return entries


def empty(clients: int, shapes: Mapping[str, torch.Size]) -> OnSlice:
    """Return entries of no coordinate."""
    return OnSlice(Slice(clients, shapes, {}), {})
