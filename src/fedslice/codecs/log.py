"""The server's past steps as messages: what brings a client from the model that it has to the current one.

The server writes every step into a :class:`StepLog`. A client that kept the model of the beginning of round m is sent
the steps of rounds m, m + 1, ... up to the last one, as a :class:`Missed` under a field that
:meth:`StepForm.field` declares. On a device they arrive as a list of :class:`Coded`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedslice.core.encodings import Floats
from fedslice.core.entries import View
from fedslice.core.errors import Refused
from fedslice.core.message import Body, Fields, Log, pack_fields, read_fields, size_fields
from fedslice.core.slice import Slice, Values

_LAYOUT = struct.Struct("<H")
NOTHING = 0  # the layout of a round that changed nothing


@dataclass(frozen=True)
class Coded:
    """A step as it arrives: the number of its set of fields, and their entries."""

    layout: int
    body: Body


def _none(layout: int, part: Slice) -> Fields:  # noqa: ARG001
    return {}


@dataclass(frozen=True)
class StepForm:
    """The fields of a codec's steps, as both sides derive them. Layout 0 has no fields: nothing changed.

    Args:
        shared: Return the fields of a layout (from 1 on) that every client is sent alike; raise
            :class:`~fedslice.core.errors.Refused` for one that does not exist.
        held: Return the fields of a layout that hold values of what a client is sent of the model: floats on this
            slice, or on some of its parameters.
    """

    shared: Callable[[int], Fields]
    held: Callable[[int, Slice], Fields] = _none

    def fields(self, layout: int, part: Slice) -> tuple[Fields, Fields]:
        """Return both kinds of fields."""
        return ({}, {}) if layout == NOTHING else (self.shared(layout), self.held(layout, part))

    def field(self, part: Slice) -> Log:
        """Return the field of the steps that a client has missed, of whom this comes down."""

        def unpack(data: memoryview, number: int) -> list[Coded]:
            return self.unpack(part, data, number)

        return Log(unpack, about="the steps of the model that it has missed")

    def unpack(self, part: Slice, data: memoryview, number: int) -> list[Coded]:
        """Return the steps of one client; raises :class:`~fedslice.core.errors.Refused`."""
        steps: list[Coded] = []
        while len(steps) < number:
            if len(data) < _LAYOUT.size:
                raise Refused(f"ends after {len(steps)} of {number} steps")
            (layout,) = _LAYOUT.unpack_from(data)
            shared, held = self.fields(layout, part)
            body, data = read_fields(shared, data[_LAYOUT.size :])
            own, data = read_fields(held, data)
            steps.append(Coded(layout, body | own))
        if len(data):
            raise Refused(f"has {len(data)} bytes after its last step")
        return steps


class StepLog:
    """The last steps of the server, oldest first, as long as together they take less than ``limit`` bytes.

    What all clients are sent alike is kept packed. Values on what a client holds are kept whole, and sized and packed
    for each client.

    Args:
        form: What steps look like.
        limit: Bytes that all steps together stay below: more than any client would be sent.
    """

    def __init__(self, form: StepForm, limit: int):
        self.form = form
        self.limit = limit
        self.first = 0  # the round of the oldest step
        self._layouts: list[int] = []
        self._shared: list[bytes] = []
        self._sizes: list[int] = []  # bytes of each step's shared fields, without the numbers that vary
        self._held: list[Values] = []

    def __len__(self) -> int:
        return len(self._layouts)

    def add(self, t: int, layout: int, body: Body, held: Mapping[str, Tensor] | None = None) -> None:
        """Append the step of round ``t``.

        Args:
            t: The round. If it does not follow the last one, earlier steps lead nowhere and are dropped.
            layout: The set of fields.
            body: The entries of the shared fields, of one client.
            held: Whole parameters, of which each client is sent what it holds.
        """
        if t != self.first + len(self):
            self.clear(t)
        fields = self.form.shared(layout) if layout != NOTHING else {}
        numbers, block = pack_fields(fields, body, 0)
        self._layouts.append(layout)
        self._shared.append(_LAYOUT.pack(layout) + struct.pack(f"<{len(numbers)}Q", *numbers) + block)
        self._sizes.append(len(block))
        self._held.append(dict(held or {}))
        total = sum(map(self._bytes, range(len(self))))
        while len(self) and total >= self.limit:
            total -= self._bytes(0)
            for each in (self._layouts, self._shared, self._sizes, self._held):
                del each[0]
            self.first += 1

    def clear(self, t: int) -> None:
        """Forget all steps: nobody can be brought over the round before ``t`` by steps."""
        for each in (self._layouts, self._shared, self._sizes, self._held):
            each.clear()
        self.first = t

    def drop(self, before: int) -> None:
        """Forget the steps of rounds before this one, which nobody needs."""
        number = min(max(before - self.first, 0), len(self))
        for each in (self._layouts, self._shared, self._sizes, self._held):
            del each[:number]
        self.first += number

    def missed(self, model_round: Tensor, part: Slice) -> Missed:
        """Return the steps since the rounds [clients] whose models clients have, on what comes down to them."""
        return Missed(self, model_round.cpu(), part)

    def _bytes(self, place: int) -> int:
        values = sum(value.numel() * value.element_size() for value in self._held[place].values())
        return self._sizes[place] + values

    # --- a checkpoint

    def state_dict(self) -> Values:
        """The steps."""
        state: Values = {
            "first": torch.tensor(self.first),
            "layouts": torch.tensor(self._layouts, dtype=torch.int64),
            "sizes": torch.tensor(self._sizes, dtype=torch.int64),
            "lengths": torch.tensor([len(block) for block in self._shared], dtype=torch.int64),
            "shared": torch.frombuffer(bytearray(b"".join(self._shared)) or bytearray(1), dtype=torch.uint8).clone(),
        }
        held = enumerate(self._held)
        return state | {f"held.{place}.{name}": value for place, own in held for name, value in own.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved steps."""
        self.first = int(state["first"])
        self._layouts, self._sizes = state["layouts"].tolist(), state["sizes"].tolist()
        data = state["shared"].cpu().numpy().tobytes()
        ends = [0, *state["lengths"].cumsum(0).tolist()]
        self._shared = [data[start:end] for start, end in pairwise(ends)]
        self._held = [{} for _ in self._layouts]
        for key, value in state.items():
            if key.startswith("held."):
                _, place, name = key.split(".", 2)
                self._held[int(place)][name] = value


class Missed:
    """The steps that the clients of a chunk have missed: what a message's :class:`Series` must be able to do.

    Args:
        log: All steps.
        model_round: The round whose model each client has, -1 for none [clients].
        part: What comes down to them.
    """

    def __init__(self, log: StepLog, model_round: Tensor, part: Slice):
        self._log = log
        self._part = part
        steps = len(log)
        begin = model_round - log.first
        self.known = (model_round >= 0) & (begin >= 0) & (begin <= steps)  # whose steps are all in the log
        self._begin = torch.where(self.known, begin, steps)
        self.numbers = steps - self._begin

    def sizes(self) -> Tensor:
        """[clients] bytes of the steps' fields; 0 where they are not known."""
        log, total = self._log, _since(self._log._sizes, self._begin)
        for layout in set(log._layouts) - {NOTHING}:
            fields = log.form.held(layout, self._part)
            if fields:
                number = _since([own == layout for own in log._layouts], self._begin)
                total = total + number * size_fields(fields, dict.fromkeys(fields), self._part.clients)
        return total

    def framing(self) -> Tensor:
        """[clients] bytes of layouts and numbers."""
        log = self._log
        return _since([len(b) - s for b, s in zip(log._shared, log._sizes, strict=True)], self._begin)

    def pack(self, client: int) -> bytes:
        """One client's steps."""
        log, out = self._log, []
        for place in range(int(self._begin[client]), len(log)):
            out.append(log._shared[place])
            one = self._part.one(client)
            _, held = log.form.fields(log._layouts[place], one)
            assert all(isinstance(getattr(each, "encoding", None), Floats) for each in held.values())
            out.append(pack_fields(held, dict.fromkeys(held, View(log._held[place], one)), 0)[1])
        return b"".join(out)


def _since(numbers: list[int] | list[bool], begin: Tensor) -> Tensor:
    """The sum of the numbers from each place on."""
    before = torch.tensor([0, *numbers], dtype=torch.int64).cumsum(0)
    return before[-1] - before[begin]
