"""Events of a run, for the ledger, instruments, progress and tests."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedslice.core.message import Message
from fedslice.core.part import Round
from fedslice.core.slice import Slice, Values
from fedslice.core.update import Update
from fedslice.select.base import Cohort
from fedslice.training.work import Work


class Trained(NamedTuple):
    """A chunk of clients that has trained.

    Args:
        work: What they trained on.
        end: The values at the end, on ``work.layout``.
        finite: Whose update is finite [clients].
        losses: Mean loss over each client's steps [clients].
        statistics: Running statistics at the end [clients, ...], by name.
    """

    work: Work
    end: Values
    finite: Tensor
    losses: Tensor
    statistics: Values


class Taken(NamedTuple):
    """Uploads of a chunk of clients that the server has decoded.

    Args:
        message: The uploads.
        part: The coordinates that they are about.
        update: What they stand for.
        taken: Which of them are part of the round [clients].
    """

    message: Message
    part: Slice
    update: Update
    taken: Tensor


class Refusal(NamedTuple):
    """A message that is not used.

    Args:
        round: The round in which it arrived.
        client: Its sender.
        reason: Why, as the end of a sentence that begins with "the message".
    """

    round: int
    client: int
    reason: str


class Listener:
    """A listener to the events of a run. Every method does nothing unless it is overridden."""

    def welcomed(self, message: Message) -> None:
        """The server has asked clients for their facts."""

    def enrolled(self, message: Message) -> None:
        """Clients have enrolled."""

    def invited(self, t: int, cohort: Cohort) -> None:
        """A round begins."""

    def requested(self, message: Message) -> None:
        """Clients have asked for what they hold."""

    def answered(self, message: Message) -> None:
        """The server has sent a download."""

    def trained(self, event: Trained) -> None:
        """Clients have trained. Only heard where they are."""

    def taken(self, event: Taken) -> None:
        """The server has decoded uploads."""

    def summed(self, message: Message) -> None:
        """A message of a secure sum was sent, or has arrived."""

    def refused(self, event: Refusal) -> None:
        """A message is not used."""

    def finished(self, end: Round) -> None:
        """A round is over."""

    def previewed(self, request: Message, message: Message) -> None:
        """The server has sent clients what they are to test."""

    def scored(self, message: Message) -> None:
        """Clients have sent scores."""


class Events(Listener):
    """All listeners of a run, as one."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        """Tell one more listener from now on."""
        self.listeners.append(listener)

    def welcomed(self, message: Message) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.welcomed(message)

    def enrolled(self, message: Message) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.enrolled(message)

    def invited(self, t: int, cohort: Cohort) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.invited(t, cohort)

    def requested(self, message: Message) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.requested(message)

    def answered(self, message: Message) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.answered(message)

    def trained(self, event: Trained) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.trained(event)

    def taken(self, event: Taken) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.taken(event)

    def summed(self, message: Message) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.summed(message)

    def refused(self, event: Refusal) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.refused(event)

    def finished(self, end: Round) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.finished(end)

    def previewed(self, request: Message, message: Message) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.previewed(request, message)

    def scored(self, message: Message) -> None:
        """Tell everyone."""
        for each in self.listeners:
            each.scored(message)
