"""The books of a run: bytes by direction and field, framing, words, and the simulated clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedslice.core.header import HEADER_BYTES, Kind
from fedslice.core.message import Message
from fedslice.core.part import Round
from fedslice.core.spec import Spec
from fedslice.select.base import Cohort
from fedslice.training.devices import Devices
from fedslice.training.events import Listener, Refusal, Taken
from fedslice.training.sums import Purpose, placed

_DIRECTIONS = ("up", "down", "enrol", "evaluation")


class Ledger(Listener):
    """Sums over all clients and rounds so far, from the sizes of the messages.

    Args:
        spec: What both sides know.
        devices: How fast the clients are, for the clock.
        samples: How many samples each client trains on in a round [clients], for the clock.

    Attributes:
        up: Uploaded bytes of requests and uploads by field.
        down: Downloaded bytes by field.
        enrol: Bytes of enrolments by field, once per client.
        evaluation: Bytes of evaluations by field, both ways.
        framing: Bytes of the headers of all messages.
        words: Uploaded 32-bit words, as FLSS's paper counts them.
        clock: Seconds that the rounds would have taken on the simulated devices.
        updates: Uploads that were expected and arrived.
        rejected: Updates among them that are not finite, or not what they claim to be.
        refusals: The last messages that were not used.
    """

    def __init__(self, spec: Spec, devices: Devices | None = None, samples: Tensor | None = None) -> None:
        self._spec = spec
        self._devices = devices
        self._samples = samples
        self._travels = "pools" not in spec.recipe.select.provides
        self.up: dict[str, int] = {}
        self.down: dict[str, int] = {}
        self.enrol: dict[str, int] = {}
        self.evaluation: dict[str, int] = {}
        self.framing = 0
        self.words = 0.0
        self.clock = 0.0
        self.updates = 0
        self.rejected = 0
        self.refusals: list[Refusal] = []
        self._requests: dict[int, int] = {}  # bytes by client, of this round
        self._downloads: dict[int, int] = {}
        self._slowest = 0.0

    @property
    def up_bytes(self) -> int:
        """Uploaded bytes of all fields."""
        return sum(self.up.values())

    @property
    def down_bytes(self) -> int:
        """Downloaded bytes of all fields."""
        return sum(self.down.values())

    @property
    def enrol_bytes(self) -> int:
        """Bytes of all enrolments."""
        return sum(self.enrol.values())

    def welcomed(self, message: Message) -> None:
        """Enter what opens enrolments."""
        self._enter(self.enrol, message)

    def enrolled(self, message: Message) -> None:
        """Enter an enrolment."""
        self._enter(self.enrol, message)

    def summed(self, message: Message) -> None:
        """Enter messages of secure sums: of tallies with the enrolments, of updates with the rounds."""
        if placed(message.head.layout)[0] is Purpose.TALLIES:
            self._enter(self.enrol, message)
        else:
            self._enter(self.down if message.head.kind is Kind.SUM else self.up, message)

    def invited(self, t: int, cohort: Cohort) -> None:  # noqa: ARG002
        """Begin a round, and enter the invitations, which are headers alone."""
        self._slowest = 0.0
        self._requests, self._downloads = {}, {}
        if self._travels and "sealed" not in self._spec.recipe.codec.provides:  # where a sum's first message invites
            self.framing += HEADER_BYTES * len(cohort.clients)

    def requested(self, message: Message) -> None:
        """Enter requests."""
        self._enter(self.up, message)
        self._by_client(self._requests, message)

    def answered(self, message: Message) -> None:
        """Enter downloads."""
        self._enter(self.down, message)
        self._by_client(self._downloads, message)

    def taken(self, event: Taken) -> None:
        """Enter uploads, and how long their clients took."""
        message = event.message
        self.updates += message.clients
        self.rejected += int((~event.taken).sum())
        sizes = self._enter(self.up, message)
        if not self._travels:
            return
        spec, layout = self._spec, message.head.layout
        coded = {name: sizes[name] for name in spec.recipe.codec.fields(spec, event.part, layout) if name in sizes}
        words = spec.recipe.codec.words(spec, event.part, coded)
        self.words += float((words if message.head.declined is None else words * ~message.head.declined).sum())
        if self._devices is not None and self._samples is not None:
            who = message.head.clients
            up = sum(sizes.values(), torch.zeros(len(who), dtype=torch.int64))
            up = up + torch.tensor([self._requests.get(client, 0) for client in who.tolist()])
            down = torch.tensor([self._downloads.get(client, 0) for client in who.tolist()])
            seconds = self._devices.seconds(who, self._samples[who], up, down)
            self._slowest = max(self._slowest, float(seconds.max()))

    def previewed(self, request: Message, message: Message) -> None:
        """Enter an evaluation's requests and models."""
        self._enter(self.evaluation, request)
        self._enter(self.evaluation, message)

    def scored(self, message: Message) -> None:
        """Enter scores."""
        self._enter(self.evaluation, message)

    def refused(self, event: Refusal) -> None:
        """Note a message that is not used."""
        self.refusals = [*self.refusals[-99:], event]

    def finished(self, end: Round) -> None:  # noqa: ARG002
        """Let the clock go on by the slowest client of the round."""
        self.clock += self._slowest

    def _enter(self, books: dict[str, int], message: Message) -> dict[str, Tensor]:
        """Add the sizes of messages to the books, and return them."""
        if not self._travels:
            return {}
        sizes = message.sizes()
        for name, size in sizes.items():
            books[name] = books.get(name, 0) + int(size.sum())
        self.framing += int(message.framing().sum())
        return sizes

    def _by_client(self, books: dict[int, int], message: Message) -> None:
        if self._devices is None or not self._travels:
            return
        total = sum(message.sizes().values(), torch.zeros(message.clients, dtype=torch.int64))
        books.update(zip(message.head.clients.tolist(), total.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The books, for a checkpoint."""
        books = {name: dict(getattr(self, name)) for name in _DIRECTIONS}
        numbers = {name: getattr(self, name) for name in ("framing", "words", "clock", "updates", "rejected")}
        return books | numbers

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved books."""
        for name, value in state.items():
            setattr(self, name, dict(value) if name in _DIRECTIONS else value)
