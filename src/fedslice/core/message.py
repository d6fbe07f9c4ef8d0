"""Messages: fields that parts declare, and the only code that sizes, packs, unpacks and checks them.

A part names its fields with an encoding and says how many entries each has. Both sides derive the same fields from the
same :class:`~fedslice.core.spec.Spec`, so a message says no names. In a simulation the entries of a whole chunk of
clients stay tensors and are only sized; :meth:`Message.pack` makes the bytes of one client's message, and
:func:`unpack` is its inverse.

A message is a fixed header, the numbers that vary, and the body. The receiver computes the length of the body from the
numbers and compares it before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedslice.core.encodings import Encoding, Ids, Places
from fedslice.core.entries import Maybe, OnSlice, View
from fedslice.core.errors import Refused
from fedslice.core.header import HEADER_BYTES, NUMBER, Header, Opened
from fedslice.core.slice import Axis, Slice
from fedslice.core.update import Update


class Series(Protocol):
    """The entries of a :class:`Log`: of a row of messages each client of a chunk is sent the last few."""

    numbers: Tensor  # how many messages [clients]

    def sizes(self) -> Tensor:
        """[clients] bytes of the messages' fields."""
        ...

    def framing(self) -> Tensor:
        """[clients] bytes of the numbers that say how long these fields are."""
        ...

    def pack(self, client: int) -> bytes:
        """One client's messages: as many bytes as :meth:`sizes` and :meth:`framing` say."""
        ...


@dataclass(frozen=True)
class Field:
    """A field of a message: an encoding, and how many entries of it each client has.

    Args:
        encoding: How entries become bytes.
        on: The slice whose values the entries are, parameter after parameter.
        shape: The shape of a client's entries, if they sit on no slice.
        where: Which of these entries are sent, computed from the fields before this one: flags of the same form. The
            header then says how many they are.
        of: For ``Ids``: how many positions there are, or the positions among which these are numbered.
        optional: Whether a message may lack the field; entries are then a :class:`~fedslice.core.entries.Maybe`.
        about: What the entries are, in plain words.
    """

    encoding: Encoding | Ids | Places
    on: Slice | None = None
    shape: tuple[int, ...] = ()
    where: Callable[[Body], Entries] | None = None
    of: int | Axis = 0
    optional: bool = False
    about: str = field(default="", compare=False)

    def counts(self, clients: int) -> Tensor:
        """[clients]: number of entries, sent or not."""
        if self.on is not None:
            return self.on.numbers()
        return torch.full((clients,), math.prod(self.shape), dtype=torch.int64)

    def extents(self, clients: int) -> Tensor:
        """[clients]: how many positions there are to choose from."""
        if isinstance(self.of, Axis):
            return self.of.counts.cpu()
        return torch.full((clients,), self.of, dtype=torch.int64)


@dataclass(frozen=True)
class Log:
    """A field of messages of the server, of which a client is sent those that it has missed.

    Its entries are a :class:`Series`, in a :class:`~fedslice.core.entries.Maybe`.

    Args:
        unpack: Return the messages of one client from their bytes and their number; raises
            :class:`~fedslice.core.errors.Refused`.
        about: What the messages are, in plain words.
    """

    unpack: Callable[[memoryview, int], Any] = field(compare=False)
    about: str = field(default="", compare=False)
    optional: bool = True


AnyField = Field | Log
Entries = Tensor | OnSlice | View | Update | Axis | Maybe
Body = dict[str, Any]
Fields = Mapping[str, AnyField]


@dataclass(frozen=True)
class Message:
    """The messages of a chunk of clients.

    Args:
        head: Their headers.
        fields: Declared by the parts. Those that are ``Ids`` come first.
        body: The entries of every field.
    """

    head: Header
    fields: Fields = field(default_factory=dict)
    body: Body = field(default_factory=dict)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.head.clients.numel()

    def sizes(self) -> dict[str, Tensor]:
        """[clients] bytes of the body by field."""
        clients = self.clients
        return self._sent({n: _size(field, n, self.body, clients) for n, field in self.fields.items()})

    def counts(self) -> dict[str, Tensor]:
        """[clients] entries of the body by field, as many as are sent."""
        return self._sent({n: _count(field, n, self.body, self.clients) for n, field in self.fields.items()})

    def framing(self) -> Tensor:
        """[clients] bytes of the header, and of the numbers inside of a log."""
        varying = sum(_numbers_in(field) for field in self.fields.values())
        inside = torch.full((self.clients,), NUMBER * varying)
        for name, each in self.fields.items():
            if isinstance(each, Log):
                inside += self.body[name].entries.framing() * self.body[name].present
        return self._sent({"": inside})[""] + HEADER_BYTES

    def _sent(self, numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Numbers per client, with zeros for those whose message has no body."""
        declined = self.head.declined
        return numbers if declined is None else {name: own * ~declined for name, own in numbers.items()}

    def pack(self, client: int, fingerprint: bytes) -> bytes:
        """One client's message."""
        head = self.head
        declined = head.declined is not None and bool(head.declined[client])
        numbers, block = pack_fields({} if declined else self.fields, self.body, client)
        start = head.pack(client, fingerprint, declined, len(numbers))
        return start + struct.pack(f"<{len(numbers)}Q", *numbers) + block


def pack_fields(fields: Fields, body: Body, client: int) -> tuple[list[int], bytes]:
    """Return one client's entries of these fields: the numbers that vary, and the bytes."""
    numbers: list[int] = []
    blocks: list[bytes] = []
    for name, each in fields.items():
        own, block = _pack(each, name, body, client)
        numbers += own
        blocks.append(block)
    return numbers, b"".join(blocks)


def size_fields(fields: Fields, body: Body, clients: int) -> Tensor:
    """Return [clients] bytes of these fields."""
    return sum(
        (_size(each, name, body, clients) for name, each in fields.items()), torch.zeros(clients, dtype=torch.int64)
    )


def read_fields(fields: Fields, data: memoryview) -> tuple[Body, memoryview]:
    """Read one client's entries of fields without positions from numbers and bytes, as :func:`pack_fields` has them.

    Returns:
        The entries, and the data that follow.

    Raises:
        Refused: If the data are not those of these fields.
    """
    count = sum(_numbers_in(each) for each in fields.values())
    if len(data) < NUMBER * count:
        raise Refused("ends inside its numbers")
    left = list(struct.unpack_from(f"<{count}Q", data))
    data = data[NUMBER * count :]
    body: Body = {}
    for name, each in fields.items():
        numbers = _take(left, name, each)
        length = _length(name, each, numbers)
        if length > len(data):
            raise Refused(f"has {len(data)} bytes left for {name!r}, expected {length}")
        if not each.optional or numbers[0]:
            body[name] = _read(each, data[:length], numbers, body)
        data = data[length:]
    return body, data


def unpack(
    opened: Opened,
    ids: Mapping[str, Field],
    declare: Callable[[Mapping[str, Axis]], Fields],
) -> Message:
    """Read the body of one client's message.

    Args:
        opened: The message.
        ids: The fields of positions, which come first.
        declare: Return all other fields, given the axes of ``ids``, of which only the counts may be looked at.

    Raises:
        Refused: If the body is not one that :meth:`Message.pack` makes of these fields.
    """
    if opened.head.declined is not None and bool(opened.head.declined[0]):
        if opened.numbers or len(opened.payload):
            raise Refused("is declined and has a body")
        return Message(opened.head)
    left = list(opened.numbers)
    axes: dict[str, Axis] = {}
    plan: list[tuple[str, AnyField, tuple[int, ...], int]] = []
    for name, named in ids.items():
        numbers = _take(left, name, named)
        count, prefix = numbers[0] >> 1, bool(numbers[0] & 1)
        extent = int(named.extents(1))
        if count > extent:
            raise Refused(f"field {name!r} names {count} of {extent} positions")
        axes[name] = Axis(torch.tensor([count]), _unread, torch.tensor([prefix]))
        length = int(Ids().size(torch.tensor(count), torch.tensor(prefix), extent))
        plan.append((name, named, numbers, length))
    rest = declare(axes)
    for name, each in rest.items():
        numbers = _take(left, name, each)
        plan.append((name, each, numbers, _length(name, each, numbers)))
    if left:
        raise Refused(f"has {len(left)} numbers too many in its header")
    need = sum(length for *_, length in plan)
    if need != len(opened.payload):
        raise Refused(f"has a body of {len(opened.payload)} bytes, its header says {need}")
    view = opened.payload
    body: Body = {}
    for name, each, numbers, length in plan:
        try:
            if name in axes:
                body[name] = _read_ids(each, axes[name], view[:length])
            elif not each.optional or numbers[0]:
                body[name] = _read(each, view[:length], numbers, body)
        except Refused as refused:
            raise Refused(f"field {name!r} {refused}") from None
        view = view[length:]
    return Message(opened.head, {**ids, **rest}, body)


def _unread() -> Tensor:
    raise RuntimeError("the ids of a message were asked for before they were read")


def _numbers_in(each: AnyField) -> int:
    """Return the number of values of a field that stand in the header."""
    if isinstance(each, Log):
        return 2
    if isinstance(each.encoding, Ids):
        return 1
    return each.optional + (2 if isinstance(each.encoding, Places) else int(each.where is not None))


def _take(left: list[int], name: str, each: AnyField) -> tuple[int, ...]:
    """The numbers of a field, off the list."""
    count = _numbers_in(each)
    if len(left) < count:
        raise Refused(f"says no number of entries of {name!r}")
    own, left[:] = tuple(left[:count]), left[count:]
    return own


def _length(name: str, each: AnyField, numbers: tuple[int, ...]) -> int:
    """Bytes of a field, after a look at its numbers."""
    if isinstance(each, Log):
        if numbers[1] and not numbers[0]:
            raise Refused(f"says {numbers[1]} bytes for no entries of {name!r}")
        return numbers[1]
    if each.optional:
        if numbers[0] > 1 or (not numbers[0] and any(numbers[1:])):
            raise Refused(f"says neither that it has {name!r} nor that it has not")
        if not numbers[0]:
            return 0
        numbers = numbers[1:]
    assert not isinstance(each.encoding, Ids)
    most = int(each.counts(1))
    if numbers and numbers[0] > most:
        raise Refused(f"says {numbers[0]} entries of {name!r}, expected 0 to {most}")
    if isinstance(each.encoding, Places):
        if numbers[1] > each.encoding.most_bits(numbers[0], most):
            raise Refused(f"says {numbers[1]} bits for {numbers[0]} positions of {name!r}")
        return (numbers[1] + 7) // 8
    return int(each.encoding.size(torch.tensor(numbers[0] if numbers else most)))


def _read_ids(each: AnyField, axis: Axis, data: memoryview) -> Axis:
    assert isinstance(each, Field)
    count, extent = int(axis.counts), int(each.extents(1))
    own = Ids().unpack(data, count, bool(axis.first), extent)
    axis.read((each.of.ids[0, own] if isinstance(each.of, Axis) else own)[None])
    return axis


def _read(each: AnyField, data: memoryview, numbers: tuple[int, ...], body: Body) -> Any:
    """The entries of one client's field."""
    if isinstance(each, Log):
        return each.unpack(data, numbers[0])
    if each.optional:
        numbers = numbers[1:]
    assert not isinstance(each.encoding, Ids)
    most = int(each.counts(1))
    if isinstance(each.encoding, Places):
        return _shaped(each, each.encoding.unpack(data, most, *numbers))
    if each.where is None:
        return _shaped(each, each.encoding.unpack(data, most))
    chosen = _line(each.where(body), each.on, 0)
    if int(chosen.sum()) != numbers[0]:
        raise Refused(f"has {numbers[0]} entries where the message names {int(chosen.sum())}")
    entries = each.encoding.unpack(data, numbers[0])
    line = entries.new_zeros(most)
    line[chosen] = entries
    return _shaped(each, line)


def _size(each: AnyField, name: str, body: Body, clients: int) -> Tensor:
    """[clients]: bytes of a field."""
    entries = body[name]
    if isinstance(each, Log):
        steps: Series = entries.entries
        present: Tensor = entries.present
        return steps.sizes() * present
    if isinstance(entries, Maybe):
        return _size_present(each, name, body | {name: entries.entries}, clients) * entries.present
    return _size_present(each, name, body, clients)


def _size_present(each: Field, name: str, body: Body, clients: int) -> Tensor:
    if isinstance(each.encoding, Ids):
        axis = body[name]
        extent = each.of if isinstance(each.of, int) else each.extents(clients)
        return each.encoding.size(axis.counts.cpu(), axis.first.cpu(), extent)
    if isinstance(each.encoding, Places):
        taken, position = _flags(body[name], each.on)
        return (each.encoding.bits(taken, position).cpu() + 7) // 8
    return each.encoding.size(_count_present(each, name, body, clients))


def _count(each: AnyField, name: str, body: Body, clients: int) -> Tensor:
    """[clients]: entries of a field that are sent, or messages of a log."""
    entries = body[name]
    if isinstance(each, Log):
        numbers: Tensor = entries.entries.numbers * entries.present
        return numbers
    if isinstance(entries, Maybe):
        return _count_present(each, name, body | {name: entries.entries}, clients) * entries.present
    return _count_present(each, name, body, clients)


def _count_present(each: Field, name: str, body: Body, clients: int) -> Tensor:
    if isinstance(each.encoding, Ids):
        counts: Tensor = body[name].counts.cpu()
        return counts
    if isinstance(each.encoding, Places):
        return _flags(body[name], each.on)[0].sum(1).cpu()
    return each.counts(clients) if each.where is None else _flags(each.where(body), each.on)[0].sum(1).cpu()


def _pack(each: AnyField, name: str, body: Body, client: int) -> tuple[list[int], bytes]:
    """A field of one client's message: its numbers in the header, and its bytes."""
    entries = body[name]
    if isinstance(each, Log):
        if not bool(entries.present[client]):
            return [0, 0], b""
        block = entries.entries.pack(client)
        return [int(entries.entries.numbers[client]), len(block)], block
    flag = [1] if each.optional else []
    if isinstance(entries, Maybe):
        if not bool(entries.present[client]):
            return [0] * _numbers_in(each), b""
        entries = entries.entries
    if isinstance(each.encoding, Ids):
        count, prefix = int(entries.counts[client]), bool(entries.first[client])
        extent = int(each.extents(len(entries.counts))[client])
        if prefix or count == extent:
            return [count << 1 | prefix], b""
        ids = entries.ids[client, :count]
        if isinstance(each.of, Axis):
            ids = torch.searchsorted(each.of.ids[client, :extent], ids)
        return [count << 1], Ids().pack(ids, extent)
    line = _line(entries, each.on, client)
    if isinstance(each.encoding, Places):
        bits = each.encoding.bits(line[None], torch.arange(len(line))[None])
        return [*flag, int(line.sum()), int(bits)], each.encoding.pack(line)
    if each.where is None:
        return flag, each.encoding.pack(line)
    chosen = line[_line(each.where(body), each.on, client)]
    return [*flag, len(chosen)], each.encoding.pack(chosen)


def _shaped(each: Field, line: Tensor) -> Tensor | OnSlice:
    """One client's entries in the form that a chunk has them in."""
    if each.on is None:
        return line.view(1, *each.shape)
    shapes = {name: each.on.sizes(name) for name in each.on.axes}
    parts = line.split([math.prod(shape) for shape in shapes.values()])
    return OnSlice(
        each.on, {name: own.view(1, *shape) for (name, shape), own in zip(shapes.items(), parts, strict=True)}
    )


def _line(entries: Entries, on: Slice | None, client: int) -> Tensor:
    """One client's entries [n], parameter after parameter, without padding."""
    if isinstance(entries, Tensor):
        return entries[client].flatten().cpu()
    assert on is not None
    assert isinstance(entries, OnSlice | View | Update)
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
