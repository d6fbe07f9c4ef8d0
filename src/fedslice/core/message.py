"""Messages: fields that parts declare, and the only code that sizes, packs, unpacks and checks them.

A part names its fields with an encoding and says how many entries each has. In a simulation the entries of a whole
chunk of clients stay tensors and are only sized; :meth:`Message.pack` makes the bytes of one client's message, as many
as :meth:`Message.sizes` says, and :func:`unpack` is their inverse.

The header says what a receiver cannot know: which positions of which dimensions are held, and the numbers of entries
that vary. From these the length of the body is computed and compared before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedslice.core.encodings import Bits, Floats, Ids, Places
from fedslice.errors import Refused
from fedslice.messages import Upload
from fedslice.slice import Axis, Shapes, Slice, Values


@dataclass(frozen=True)
class OnSlice:
    """Entries of a field that sit on a slice, as a model's values do.

    Args:
        part: Where the values sit: the field's slice, or one that it contains.
        values: Per parameter [clients, ...].
        rest: The entry of every coordinate of the field that ``part`` leaves out.
    """

    part: Slice
    values: Values
    rest: int = 0

    def one(self, client: int, on: Slice) -> Values:
        """One client's entries on all of ``on``, without padding, with a leading axis of one."""
        own = {name: self.values[name][client][self.part.own(name, client)][None] for name in on.axes}
        return self.part.one(client).expand(own, on.one(client), self.rest)


Entries = Tensor | OnSlice | Upload
Body = dict[str, Entries]


@dataclass(frozen=True)
class Field:
    """A field of a message: an encoding, and how many entries of it each client sends.

    Args:
        encoding: How entries become bytes.
        on: The slice whose values the entries are, parameter after parameter.
        shape: The shape of a client's entries, if they sit on no slice.
        where: Which of these entries are sent, computed from the fields before this one: flags of the same form. The
            header then says how many they are.
    """

    encoding: Floats | Bits | Places
    on: Slice | None = None
    shape: tuple[int, ...] = ()
    where: Callable[[Body], Entries] | None = None

    def counts(self, clients: int) -> Tensor:
        """[clients]: number of entries, sent or not."""
        if self.on is not None:
            return self.on.numbers()
        return torch.full((clients,), math.prod(self.shape), dtype=torch.int64)

    def size(self, clients: int, body: Body, name: str) -> Tensor:
        """[clients]: bytes."""
        if isinstance(self.encoding, Places):
            taken, position = _flags(body[name], self.on)
            return (self.encoding.bits(taken, position).cpu() + 7) // 8
        count = self.counts(clients) if self.where is None else _flags(self.where(body), self.on)[0].sum(1).cpu()
        return self.encoding.size(count)


Fields = Mapping[str, Field]


@dataclass(frozen=True)
class Header:
    """What a receiver needs to know of one client's message before it reads the body.

    Args:
        axes: Extent of the dimension, number of positions held, and whether they are the first ones.
        parameters: Per parameter and dimension the number of its axis; ``None``: all positions.
        numbers: Numbers of entries that vary, in the order of the fields.
    """

    axes: tuple[tuple[int, int, bool], ...]
    parameters: Mapping[str, tuple[int | None, ...]]
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Message:
    """The messages of a chunk of clients: which coordinates they are about, and the fields.

    Args:
        part: The coordinates. Their ids travel once per dimension, however many parameters share it.
        fields: Declared by the parts.
        body: The entries of every field.
    """

    part: Slice
    fields: Fields
    body: Body

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.part.clients

    def sizes(self) -> dict[str, Tensor]:
        """[clients] bytes by field; ``ids`` name the coordinates."""
        sizes = {name: field.size(self.part.clients, self.body, name) for name, field in self.fields.items()}
        return {"ids": self.part.id_bytes()} | sizes

    def pack(self, client: int) -> tuple[Header, bytes]:
        """One client's message."""
        axes: list[tuple[int, int, bool]] = []
        parameters: dict[str, tuple[int | None, ...]] = {}
        blocks: list[bytes] = []
        numbers: dict[Axis, int] = {}
        for name, held in self.part.axes.items():
            for extent, axis in zip(self.part.shapes[name], held, strict=True):
                if axis is not None and axis not in numbers:
                    count, prefix = int(axis.counts[client]), bool(axis.first[client])
                    numbers[axis] = len(axes)
                    axes.append((extent, count, prefix))
                    if not (prefix or count == extent):
                        blocks.append(Ids(extent).pack(axis.ids[client, :count]))
            parameters[name] = tuple(None if axis is None else numbers[axis] for axis in held)
        varying: list[int] = []
        for name, field in self.fields.items():
            numbers_of, block = self._pack_field(name, field, client)
            varying += numbers_of
            blocks.append(block)
        return Header(tuple(axes), parameters, tuple(varying)), b"".join(blocks)

    def _pack_field(self, name: str, field: Field, client: int) -> tuple[list[int], bytes]:
        line = _line(self.body[name], field.on, client)
        if isinstance(field.encoding, Places):
            bits = field.encoding.bits(line[None], torch.arange(len(line))[None])
            return [int(line.sum()), int(bits)], field.encoding.pack(line)
        if field.where is None:
            return [], field.encoding.pack(line)
        chosen = line[_line(field.where(self.body), field.on, client)]
        return [len(chosen)], field.encoding.pack(chosen)


def unpack(header: Header, payload: bytes, shapes: Shapes, declare: Callable[[Slice], Fields]) -> tuple[Slice, Body]:
    """The coordinates and the body of one client's message.

    Args:
        header: Its header.
        payload: Its body in bytes.
        shapes: The shapes of the model's parameters.
        declare: The fields of a message about these coordinates.

    Raises:
        Refused: If the message is not one that :meth:`Message.pack` makes for this model.
    """
    _check_header(header, shapes)
    axes = [Axis(torch.tensor([count]), _unread, torch.tensor([prefix])) for _, count, prefix in header.axes]
    held = {
        name: tuple(None if place is None else axes[place] for place in places)
        for name, places in header.parameters.items()
    }
    part = Slice(1, shapes, held)
    fields = declare(part)
    ids, plan = [_id_length(*axis) for axis in header.axes], _lengths(fields, header.numbers)
    need = sum(ids) + sum(length for _, length in plan)
    if need != len(payload):
        raise Refused(f"has {len(payload)} bytes, its header says {need}")
    view = memoryview(payload)
    for axis, (extent, count, prefix), length in zip(axes, header.axes, ids, strict=True):
        axis.read(Ids(extent).unpack(view[:length], count, prefix)[None])
        view = view[length:]
    body: Body = {}
    for (name, field), (numbers, length) in zip(fields.items(), plan, strict=True):
        try:
            body[name] = _read(field, view[:length], numbers, body)
        except Refused as refused:
            raise Refused(f"field {name!r} {refused}") from None
        view = view[length:]
    return part, body


def _unread() -> Tensor:
    raise RuntimeError("the ids of a message were asked for before they were read")


def _check_header(header: Header, shapes: Shapes) -> None:
    for extent, count, _ in header.axes:
        if not 0 <= count <= extent:
            raise Refused(f"names {count} of {extent} positions")
    for name, places in header.parameters.items():
        if name not in shapes or len(places) != len(shapes[name]):
            raise Refused(f"names parameter {name!r} with {len(places)} dimensions, which the model does not have")
        for extent, place in zip(shapes[name], places, strict=True):
            if place is None:
                continue
            if not 0 <= place < len(header.axes):
                raise Refused(f"gives {name!r} axis {place} of {len(header.axes)}")
            if header.axes[place][0] != extent:
                raise Refused(f"gives {name!r} an extent of {header.axes[place][0]}, the model has {extent}")
    used = {place for places in header.parameters.values() for place in places}
    if not used >= set(range(len(header.axes))):
        raise Refused(f"has {len(header.axes)} axes, some of which no parameter uses")


def _id_length(extent: int, count: int, prefix: bool) -> int:
    return int(Ids(extent).size(torch.tensor(count), torch.tensor(prefix)))


def _lengths(fields: Fields, numbers: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """By field: its numbers from the header, and its length in bytes."""
    left, out = list(numbers), []
    for name, field in fields.items():
        most = int(field.counts(1))
        takes = 2 if isinstance(field.encoding, Places) else int(field.where is not None)
        own, left = tuple(left[:takes]), left[takes:]
        if len(own) < takes:
            raise Refused(f"says no number of entries of {name!r}")
        if own and not 0 <= own[0] <= most:
            raise Refused(f"says {own[0]} entries of {name!r}, expected 0 to {most}")
        if isinstance(field.encoding, Places):
            if not 0 <= own[1] <= field.encoding.most_bits(own[0], most):
                raise Refused(f"says {own[1]} bits for {own[0]} positions of {name!r}")
            out.append((own, (own[1] + 7) // 8))
        else:
            out.append((own, int(field.encoding.size(torch.tensor(own[0] if own else most)))))
    if left:
        raise Refused(f"says {len(left)} numbers of entries too many")
    return out


def _read(field: Field, data: memoryview, numbers: tuple[int, ...], body: Body) -> Entries:
    """The entries of one client's field."""
    most = int(field.counts(1))
    if isinstance(field.encoding, Places):
        return _shaped(field, field.encoding.unpack(data, most, *numbers))
    if field.where is None:
        return _shaped(field, field.encoding.unpack(data, most))
    chosen = _line(field.where(body), field.on, 0)
    if int(chosen.sum()) != numbers[0]:
        raise Refused(f"has {numbers[0]} entries where the message names {int(chosen.sum())}")
    entries = field.encoding.unpack(data, numbers[0])
    line = entries.new_zeros(most)
    line[chosen] = entries
    return _shaped(field, line)


def _shaped(field: Field, line: Tensor) -> Entries:
    """One client's entries in the form that a chunk has them in."""
    if field.on is None:
        return line.view(1, *field.shape)
    shapes = {name: field.on.sizes(name) for name in field.on.axes}
    parts = line.split([math.prod(shape) for shape in shapes.values()])
    return OnSlice(
        field.on, {name: own.view(1, *shape) for (name, shape), own in zip(shapes.items(), parts, strict=True)}
    )


def _line(entries: Entries, on: Slice | None, client: int) -> Tensor:
    """One client's entries [n], parameter after parameter, without padding."""
    if isinstance(entries, Tensor):
        return entries[client].flatten().cpu()
    assert on is not None
    values = entries.one(client, on)
    return torch.cat([values[name].flatten().cpu() for name in on.axes]) if on.axes else torch.zeros(0)


def _flags(entries: Entries, on: Slice | None) -> tuple[Tensor, Tensor]:
    """Flags of a chunk in one line per client [clients, places], and each place's number among the client's own."""
    if isinstance(entries, Tensor):
        line = entries.flatten(1)
        return line, torch.arange(line.shape[1], device=line.device)[None]
    assert isinstance(entries, OnSlice)
    assert on is not None
    lines, positions, before = [], [], torch.zeros(on.clients, 1, dtype=torch.int64)
    for name in on.axes:
        own = on.line(name, entries.values[name])
        lines.append(own.values)
        before = before.to(own.values.device)
        positions.append((own.positions() + before).expand_as(own.values))
        before = before + own.counts[:, None]
    if not lines:
        return torch.zeros(on.clients, 0, dtype=torch.bool), torch.zeros(on.clients, 0, dtype=torch.int64)
    return torch.cat(lines, 1), torch.cat(positions, 1)
