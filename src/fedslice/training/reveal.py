"""Everything that a recipe makes a client reveal, from messages that a few clients and the server really make."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedslice.core.encodings import Ids, Places
from fedslice.core.header import HEADER, HEADER_BYTES, Kind
from fedslice.core.message import AnyField, Fields, Log, Message
from fedslice.select.base import Cohort
from fedslice.training import schema
from fedslice.training.events import Listener, Taken, Trained
from fedslice.training.experiment import Experiment
from fedslice.training.rounds import play_stage

_CLIENTS = 8  # that are looked at
ONCE, FIRST, LATER = "once", "in a client's first round", "in later rounds"
ALWAYS, SOME, HEADERS = "in every round", "in some rounds", "in front of every message"
_NAMES = {Kind.ENROL: "enrolment", Kind.SUM: "secure sum", Kind.PART: "part of a secure sum"}


class Spread(NamedTuple):
    """A number that may differ by client, and by round."""

    min: int
    median: float
    max: int

    @classmethod
    def of(cls, numbers: Tensor) -> Spread:
        """Return the spread of some numbers."""
        return cls(int(numbers.min()), float(numbers.double().quantile(0.5)), int(numbers.max()))


class Revealed(NamedTuple):
    """One field of one kind of message.

    Args:
        when: When it is sent.
        message: The message.
        field: Its name.
        about: What it is, in plain words.
        encoding: How an entry travels.
        entries: How many entries a client's message has; ``None`` if that cannot be told beforehand.
        bytes: How many bytes they take; ``None`` if that cannot be told beforehand.
    """

    when: str
    message: str
    field: str
    about: str
    encoding: str
    entries: Spread | None
    bytes: Spread | None

    def document(self) -> dict[str, Any]:
        """The same for a program."""
        spreads = {"entries": self.entries, "bytes": self.bytes}
        return self._asdict() | {n: None if spread is None else spread._asdict() for n, spread in spreads.items()}


def reveal(experiment: Experiment) -> list[Revealed]:
    """Return the fields of all messages of a recipe, and what they take with a few clients in two rounds.

    Fields that these two rounds do not show are derived from what parts declare. Where all data lie in one place
    nothing travels, and there are none.

    Args:
        experiment: A run before its first round, which is of no other use afterwards.
    """
    recipe, server, population = experiment.recipe, experiment.server, experiment.population
    if "pools" in recipe.select.provides:
        return []
    clients = recipe.select.choose(server.states["select"], 0).clients.unique()[:_CLIENTS]
    few, book = Cohort(clients, torch.zeros_like(clients)), _Book()
    experiment.events.add(book)
    server.welcome(few)
    book.note(population.introduce(clients))
    for place, part in recipe.parts().items():
        if part.tallies(server.spec):
            server.states[place] = part.server_state(server.run)  # as if nobody had been counted
    for stage, newcomers in server.sums.tallies():
        play_stage(server, experiment.transport, stage, newcomers)
    out = [seen.row(ONCE) for seen in book.turn().values()]
    rounds: list[_Page] = []
    for _ in range(min(experiment.rounds, 2)):
        server.invite()
        for stage, clients_of_it in server.stages(few):
            play_stage(server, experiment.transport, stage, clients_of_it)
        server.finish()
        rounds.append(book.turn())
    out += _compared(rounds[0], rounds[-1])
    known = {(row.message, row.field) for row in out}
    out += [row for row in book.declared() if (row.message, row.field) not in known]
    return [*out, *_header(torch.cat(book.framing))]


class _Seen:
    """A field, and how much of it messages had that had any."""

    def __init__(self, message: str, name: str, each: AnyField):
        self.message = message
        self.name = name
        self.field = each
        self.entries = torch.zeros(0, dtype=torch.int64)
        self.bytes = torch.zeros(0, dtype=torch.int64)

    def note(self, entries: Tensor, sizes: Tensor) -> None:
        """Take in the entries and bytes of some clients' messages."""
        self.entries = torch.cat([self.entries, entries])
        self.bytes = torch.cat([self.bytes, sizes])

    def overlaps(self, other: _Seen) -> bool:
        """Return whether the number of entries may be the same at both times."""
        return bool(self.entries.min() <= other.entries.max()) and bool(other.entries.min() <= self.entries.max())

    def row(self, when: str) -> Revealed:
        """Return what was seen."""
        entries, sizes = Spread.of(self.entries), Spread.of(self.bytes)
        return Revealed(when, self.message, self.name, self.field.about, _encoding(self.field), entries, sizes)


_Page = dict[tuple[str, str], _Seen]  # by message and field


class _Book(Listener):
    """A record of the fields and headers of messages."""

    def __init__(self) -> None:
        self.framing: list[Tensor] = []
        self._page: _Page = {}
        self._trained: Trained | None = None
        self._taken: Taken | None = None

    def note(self, message: Message) -> None:
        """Enter messages."""
        counts, sizes = message.counts(), message.sizes()
        self.framing.append(message.framing())
        kind = _NAMES.get(message.head.kind, message.head.kind.name.lower())
        for name, each in message.fields.items():
            if bool(counts[name].any()):
                self._page.setdefault((kind, name), _Seen(kind, name, each)).note(counts[name], sizes[name])

    def turn(self) -> _Page:
        """Return what was entered, and begin a new page."""
        page, self._page = self._page, {}
        return page

    def declared(self) -> list[Revealed]:
        """Return all fields that messages about the slices of the last clients may have."""
        if self._trained is None or self._taken is None:
            return []
        work, part = self._trained.work, self._taken.part
        spec = work.memory.run.spec
        found: dict[tuple[str, str], Revealed] = {}
        for layout in spec.recipe.codec.layouts(spec):
            for kind, fields in (
                ("download", schema.download(spec, work.hold, work.down, layout)),
                ("upload", schema.upload(spec, work.hold, part, layout)),
            ):
                for row in _rows(kind, fields, part.clients):
                    found.setdefault((kind, row.field), row)
        return list(found.values())

    def welcomed(self, message: Message) -> None:
        """Enter what opens an enrolment."""
        self.note(message)

    def summed(self, message: Message) -> None:
        """Enter messages of secure sums."""
        self.note(message)

    def requested(self, message: Message) -> None:
        """Enter requests."""
        self.note(message)

    def answered(self, message: Message) -> None:
        """Enter downloads."""
        self.note(message)

    def trained(self, event: Trained) -> None:
        """Remember what clients hold."""
        self._trained = event

    def taken(self, event: Taken) -> None:
        """Enter uploads."""
        self._taken = event
        self.note(event.message)


def _compared(first: _Page, later: _Page) -> list[Revealed]:
    """Rows that are alike in two rounds, then those that differ."""
    alike = [key for key in first if key in later and first[key].overlaps(later[key])]
    apart = [
        seen.row(when)
        for when, page in ((FIRST, first), (LATER, later))
        for key, seen in page.items()
        if key not in alike
    ]
    for key in alike:
        first[key].note(later[key].entries, later[key].bytes)
    return [*(first[key].row(ALWAYS) for key in alike), *apart]


def _rows(kind: str, fields: Fields, clients: int) -> Iterable[Revealed]:
    """Yield fields, with their entries as far as their number is known beforehand."""
    for name, each in fields.items():
        entries = sizes = None
        if not isinstance(each, Log) and each.where is None and not isinstance(each.encoding, Ids | Places):
            counts = each.counts(clients)
            entries, sizes = Spread.of(counts), Spread.of(each.encoding.size(counts))
            if not entries.max:
                continue
        yield Revealed(SOME, kind, name, each.about, _encoding(each), entries, sizes)


def _header(framing: Tensor) -> Iterable[Revealed]:
    """Yield what stands in headers."""
    for name, (code, about) in HEADER.items():
        size = struct.calcsize(f"<{code}")
        one, taken = (Spread(number, number, number) for number in (1, size))
        yield Revealed(HEADERS, "header", name, about, f"{8 * size} bits", one, taken)
    more = Spread.of(framing - HEADER_BYTES)
    if more.max:
        about = "how many entries fields have, where that varies"
        yield Revealed(HEADERS, "header", "lengths", about, "64 bits each", None, more)


def _encoding(each: AnyField) -> str:
    return "messages" if isinstance(each, Log) else each.encoding.words
