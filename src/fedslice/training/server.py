"""The server's side of a run: the model, the server optimizer, what it knows of clients, and no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedslice.combine import Accumulator, Total
from fedslice.core import statistics
from fedslice.core.entries import Maybe, View
from fedslice.core.errors import Refused
from fedslice.core.header import Header, Kind, Opened, open_message
from fedslice.core.memory import NEVER
from fedslice.core.message import Body, Fields, Message
from fedslice.core.part import Round, ServerRun
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.update import Step, Update
from fedslice.select.base import Cohort
from fedslice.training import schema
from fedslice.training.appearances import Answered, Awaited, Chunk
from fedslice.training.averages import Averages
from fedslice.training.enrolled import Enrolled
from fedslice.training.events import Events, Refusal, Taken
from fedslice.training.rounds import EXCHANGE, Stage
from fedslice.training.sum_stages import Sums

_NOT_FINITE = "holds NaN or infinity, or decodes to it"


class Scores(NamedTuple):
    """Scores of clients' own models on the clients' own test samples.

    Args:
        clients: Their numbers.
        columns: ``samples`` and the metrics, by name [clients]; a metric is NaN where it is undefined.
    """

    clients: Tensor
    columns: dict[str, Tensor]


class Server:
    """One side of every round. It takes and returns messages, and touches neither network nor clock.

    Args:
        spec: What both sides know.
        initial: The model that training begins with, and its running statistics. It is changed in place.
        scratch: A folder for what is too large for memory or for a checkpoint.
        events: Listeners.
        masked: Whether clients mask what is summed. A simulation may leave it out, and has the same sums.
    """

    def __init__(
        self,
        spec: Spec,
        initial: Values,
        *,
        scratch: Path | None = None,
        events: Events | None = None,
        masked: bool = False,
    ) -> None:
        self.spec = spec
        self.model = initial
        self.events = events or Events()
        self.enrolled = Enrolled()
        device = next(iter(initial.values())).device
        self.run = ServerRun(spec, self.enrolled, device, scratch)
        self.states: dict[str, Any] = {}
        for place in ("slices", "local", "codec", "combine", "server", "select"):
            self.states[place] = spec.recipe.parts()[place].server_state(self.run)
        names = schema.initial_names(spec)
        self._first = {name: initial[name].clone() for name in names}
        self.round = 0
        self._steps = 0  # how often the model has changed: a view of another number is out of date
        self._cohort: Cohort | None = None  # of the round at hand
        self._total: Total = Accumulator()
        self._statistics = Averages(spec)
        self._scored: list[Message] = []
        self.awaited = Awaited()
        self.sums: Sums = Sums(self, masked)
        self._begin()

    # --- enrolment

    def welcome(self, clients: Cohort) -> Message:
        """Return the messages that ask clients for their facts, with their numbers and the shared seed."""
        seed = torch.full((len(clients.clients), 1), self.spec.seed)
        head = self._head(Kind.WELCOME, self.round, clients.clients, clients.draws)
        message = Message(head, schema.WELCOME, {"seed": seed, "token": self.tokens(clients.clients)})
        self.awaited.ask(head.clients, head.draws)
        self.events.welcomed(message)
        return message

    def tokens(self, clients: Tensor) -> Tensor:
        """Return what each client proves its number with when it greets again [clients, 2]: nothing in one process."""
        return torch.zeros(len(clients), 2, dtype=torch.int64)

    def enrol(self, message: Message) -> None:
        """Learn the facts of clients that enrol."""
        clients = message.head.clients
        tensors = {name: value for name, value in message.body.items() if isinstance(value, Tensor)}
        self.awaited.arrived(clients, message.head.draws)
        self.enrolled.add(clients, tensors)
        for place, part in self.spec.recipe.parts().items():
            part.enrol(self.states[place], clients, message.body)
        self.events.enrolled(message)

    def leave(self, message: Message) -> None:
        """Forget clients that leave. They repeat their facts, so that sums over clients are what they had been."""
        clients = message.head.clients
        for place, part in self.spec.recipe.parts().items():
            part.leave(self.states[place], clients, message.body)
            part.forget(self.states[place], clients)
        self.enrolled.remove(clients)

    # --- a round

    @property
    def playing(self) -> bool:
        """Whether a round has begun and not ended."""
        return self._cohort is not None

    def stages(self, cohort: Cohort) -> Iterator[tuple[Stage, Cohort]]:
        """Yield the stages of a round, each with its clients; whoever plays them asks for the next when one is over."""
        if "sealed" in self.spec.recipe.codec.provides:
            yield from self.sums.updates(cohort)
        else:
            yield EXCHANGE, cohort

    def invite(self) -> Cohort:
        """Begin the next round and return who takes part."""
        self._begin()
        cohort = self.spec.recipe.select.choose(self.states["select"], self.round)
        self.awaited.ask(cohort.clients, cohort.draws)
        self._cohort = cohort
        self.events.invited(self.round, cohort)
        return cohort

    def invitation(self, cohort: Cohort) -> Message:
        """Return the messages that ask clients to take part: headers alone, with the last uploads that were taken."""
        return Message(self._head(Kind.INVITE, self.round, cohort.clients, cohort.draws))

    def answer(self, request: Message) -> Message:
        """Return the download for a chunk of clients that have said what they hold."""
        self.events.requested(request)
        head = self._meet(request.head)
        request = request if head is request.head else replace(request, head=head)
        message, hold = self._download(request)
        self._answered.chunks.append(Chunk(request.head.clients, request.head.draws, hold))
        self.events.answered(message)
        return message

    def _download(self, request: Message, kind: Kind = Kind.DOWNLOAD) -> tuple[Message, Slice]:
        """The download for a chunk of clients, and what they hold."""
        spec, recipe, t = self.spec, self.spec.recipe, self.round
        clients = request.head.clients
        layout = recipe.codec.layout(self.states["codec"], t)
        hold = recipe.slices.requested(self.states["slices"], t, clients, request.body)
        down = recipe.slices.down(self.states["slices"], t, clients, hold)
        steps = self._steps
        view = View(self.model, down, fresh=lambda: self._steps == steps)
        body: Body = recipe.codec.send(self.states["codec"], request.head, view)
        if self._first:
            fields = schema.first(spec, hold)
            part = hold.only(name for name in hold.axes if name in self._first)
            new = request.head.model_round == NEVER
            body |= dict.fromkeys(fields, Maybe(new, View(self._first, part)))
        for place, each in recipe.parts().items():
            body |= each.tell(self.states[place], t, clients, down)
        for name in recipe.slices.statistics(spec):
            body[statistics.PREFIX + name] = self.model[name].reshape(1, -1).expand(len(clients), -1).clone()
        head = self._head(kind, t, clients, request.head.draws, layout)
        return Message(head, schema.download(spec, hold, down, layout), body), hold

    def take(self, upload: Message) -> None:
        """Add the uploads of a chunk of clients to the round.

        Never raises for a client's fault: whatever cannot be used costs its sender the round and nobody else.
        """
        recipe, head = self.spec.recipe, upload.head
        clients, t = head.clients, self.round
        hold = self._hold_of(clients, head.draws)
        if head.declined is not None and bool(head.declined.all()):
            self._none_taken(upload, hold)
            return
        if self.sums.sealed:
            self._take_sealed(upload, hold)
            return
        state = self.states["codec"]
        part = recipe.slices.sent(self.states["slices"], t, clients, hold, upload.body)
        update = recipe.codec.decode(state, head, part, upload.body)
        if "stale" in recipe.slices.provides:
            update = _difference(update, self.model)
        judged = any(entries is update for entries in upload.body.values())  # by the client, in this very memory
        taken = torch.ones(len(clients), dtype=torch.bool) if judged else update.finite()
        fields = schema.reports(self.spec, part)
        reports = _on_slices(fields, upload.body)
        for name, entries in reports.items():
            taken &= entries.finite() if upload.body[name] is not entries else True
        taken &= self._statistics.usable(upload.body, len(clients))
        if head.declined is not None:
            taken &= ~head.declined
        used = clients[taken]
        if len(used) < len(clients):
            for client in clients[~taken].tolist():
                self.events.refused(Refusal(t, client, _NOT_FINITE))
        weights = recipe.combine.weigh(self.states["combine"], clients) * taken
        self._total.add(update.masked(taken), weights)
        for name, entries in reports.items():
            sums = self._sums.setdefault(name.partition(".")[0], Accumulator())
            sums.add(entries.masked(taken), weights)
        self._statistics.add(upload.body, weights)
        self._tell(fields, upload.body, taken)
        recipe.slices.taken(self.states["slices"], clients, part, taken)
        recipe.codec.taken(state, head, update, taken)
        self.enrolled.took(used, t)
        self._taken.append(used)
        self.awaited.arrived(clients, head.draws)
        self.events.taken(Taken(upload, part, update, taken))

    def _take_sealed(self, upload: Message, hold: Slice) -> None:
        """Add masked uploads, of which nothing is known before the sum is opened."""
        head = upload.head
        part = self.spec.recipe.slices.sent(self.states["slices"], self.round, head.clients, hold, upload.body)
        taken = self.sums.receive(upload)
        self.awaited.arrived(head.clients, head.draws)
        nothing = part.only(())
        self.events.taken(Taken(upload, part, Update(nothing, nothing, {}), taken))

    def opened(self, clients: Tensor, weight: float, body: Body, layout: int) -> None:
        """Take in the weighted sum of clients' uploads, which has the form of one upload.

        Args:
            clients: The clients whose uploads are in it.
            weight: Their weight.
            body: The sums.
            layout: The layout of the round.
        """
        one, part = clients[:1], schema.whole(self.spec)
        head = self._head(Kind.UPLOAD, self.round, one, torch.zeros_like(one), layout)
        update = self.spec.recipe.codec.decode(self.states["codec"], head, part, body)
        self._total.add(update, torch.ones(1, dtype=torch.float64))
        self._total.clients, self._total.weight = len(clients), weight
        for name, entries in _on_slices(schema.reports(self.spec, part), body).items():
            total = self._sums.setdefault(name.partition(".")[0], Accumulator())
            total.add(entries, torch.ones(1, dtype=torch.float64))
        self.enrolled.took(clients, self.round)
        self._taken.append(clients)

    def finish(self) -> Round:
        """End the round: decode the sum, correct it, and step. Clients that did not answer have no part in it."""
        recipe, t = self.spec.recipe, self.round
        mean = recipe.codec.expand(self.states["codec"], t, self._total.mean())
        step = recipe.combine.correct(self.states["combine"], mean, self._total)
        share = self._total.clients / max(self.enrolled.count, 1)
        self._steps += 1
        change = recipe.server.step(self.states["server"], self.model, step, share)
        self._statistics.put(self.model)
        end = self._end(change)
        for place, part in recipe.parts().items():
            part.observe(self.states[place], end)
        for chunk in self._answered.chunks:
            self.enrolled.sent(chunk.clients, t)
        self.round += 1
        self._begin()
        self.events.finished(end)
        return end

    def abandon(self) -> None:
        """Give up the round at hand, of which nothing has been taken."""
        self._begin()

    # --- evaluation between two rounds: nobody's memory changes, and nothing of it is part of a round

    def examination(self, clients: Cohort) -> Message:
        """Return the messages that ask clients to test the model that they would start from."""
        head = self._head(Kind.EXAMINE, self.round, clients.clients, clients.draws)
        self.awaited.ask(head.clients, head.draws)
        return Message(head)

    def glimpse(self, request: Message) -> Message:
        """Return what :meth:`answer` would, to be tested and not trained on; for an observer, whom nobody notices."""
        return self._download(request, Kind.PREVIEW)[0]

    def preview(self, request: Message) -> Message:
        """Return the same for clients that have been asked for scores."""
        message = self.glimpse(request)
        self.events.previewed(request, message)
        return message

    def scored(self, message: Message) -> None:
        """Note the scores of clients."""
        self.awaited.arrived(message.head.clients, message.head.draws)
        self._scored.append(message)
        self.events.scored(message)

    def scores(self) -> Scores:
        """Return the scores of everybody who has answered, once."""
        found = [(one.head.clients, one.body) for one in self._scored]
        self._scored = []
        return Scores(
            torch.cat([clients for clients, _ in found]) if found else torch.zeros(0, dtype=torch.int64),
            {name: torch.cat([body[name][:, 0] for _, body in found]) for name in (found[0][1] if found else ())},
        )

    # --- messages in bytes

    def read(self, data: bytes, kind: Kind, sender: int) -> Message | None:
        """Read and check a message of a client; ``None`` if it is refused.

        Args:
            data: The message.
            kind: What is expected of this client now.
            sender: The client, as the transport knows it.
        """
        try:
            return self._reads[kind](data, sender)
        except Refused as refused:
            self.events.refused(Refusal(self.round, sender, str(refused)))
            return None

    def taken_rounds(self, clients: Tensor) -> Tensor:
        """Return the last round of which each client's upload was taken [clients], -1 for none."""
        return self.enrolled.upload_round(clients)

    @cached_property
    def _reads(self) -> dict[Kind, Callable[[bytes, int], Message]]:
        return {
            Kind.ENROL: self._facts,
            Kind.REQUEST: self._request,
            Kind.UPLOAD: self._upload,
            Kind.SCORES: self._scores,
            Kind.PART: self._part,
        }

    def _facts(self, data: bytes, sender: int) -> Message:
        opened = self._expecting(data, Kind.ENROL, sender)
        if bool(self.enrolled.has(opened.head.clients)):
            raise Refused("enrols a client that is enrolled; it has to leave first")
        return schema.read_facts(self.spec, opened)

    def _request(self, data: bytes, sender: int) -> Message:
        opened = self._expecting(data, Kind.REQUEST, sender)
        if self._was_answered(opened.head):
            raise Refused("asks again for a round that was answered")
        return schema.read_request(self.spec, opened)

    def _upload(self, data: bytes, sender: int) -> Message:
        opened = self._expecting(data, Kind.UPLOAD, sender)
        if not self._was_answered(opened.head):
            raise Refused("is an upload without a download")
        layout = self.spec.recipe.codec.layout(self.states["codec"], self.round)
        if opened.head.layout != layout:
            raise Refused(f"has layout {opened.head.layout}, the round has {layout}")
        hold = self._hold_of(opened.head.clients, opened.head.draws)
        slices, state = self.spec.recipe.slices, self.states["slices"]

        def sent(axes: dict[str, Axis]) -> Slice:
            return slices.sent(state, self.round, opened.head.clients, hold, dict(axes))

        return schema.read_upload(self.spec, opened, hold, sent)

    def _scores(self, data: bytes, sender: int) -> Message:
        return schema.read_scores(self.spec, self._expecting(data, Kind.SCORES, sender))

    def _part(self, data: bytes, sender: int) -> Message:
        return self.sums.read(self._expecting(data, Kind.PART, sender))

    def _expecting(self, data: bytes, kind: Kind, sender: int) -> Opened:
        """The message, if it is the one that this client is expected to send in this round."""
        opened = self._open(data, kind)
        client, draw = int(opened.head.clients[0]), int(opened.head.draws[0])
        if client != sender:
            raise Refused(f"says it is from client {client}")
        if opened.head.round != self.round:
            raise Refused(f"belongs to round {opened.head.round}, this is round {self.round}")
        if kind is not Kind.ENROL and not bool(self.enrolled.has(opened.head.clients)[0]):
            raise Refused("is from a client that is not enrolled")
        if (client, draw) not in self.awaited:
            raise Refused("was not asked for, or has arrived before")
        return opened

    def _open(self, data: bytes, kind: Kind) -> Opened:
        opened = open_message(data, self.spec.fingerprint)
        if opened.head.kind != kind:
            raise Refused(f"is of kind {opened.head.kind.name.lower()}, expected {kind.name.lower()}")
        return opened

    # --- the inside of a round

    def _begin(self) -> None:
        self._cohort = None
        self._total = self.spec.recipe.combine.begin(self.states["combine"])
        self._statistics = Averages(self.spec)
        self._sums: dict[str, Accumulator] = {}
        self._told: dict[str, list[Tensor]] = {}
        self._taken: list[Tensor] = []
        self._answered = Answered()
        self._scored = []
        self.awaited = Awaited()

    def _meet(self, head: Header) -> Header:
        """Forget what is paired with clients whose last upload, as they know it, is not the one that was taken last.

        Return the header with the rounds of those models alone that clients were sent last. A server that went back to
        an older state has not had the models that clients were sent since, though it reaches the same rounds again.
        """
        known = self.enrolled.upload_round(head.clients)
        strange = (known != head.upload_round) & (known != NEVER)
        if bool(strange.any()):
            clients = head.clients[strange]
            for place, part in self.spec.recipe.parts().items():
                part.forget(self.states[place], clients)
            self.enrolled.forget_rounds(clients)
        sent = self.enrolled.model_round(head.clients)
        if torch.equal(sent, head.model_round):
            return head
        return replace(head, model_round=sent.where(sent == head.model_round, NEVER))

    def _hold_of(self, clients: Tensor, draws: Tensor) -> Slice:
        """Return what these clients hold, as they were answered."""
        hold = self._answered.hold(clients, draws)
        if hold is None:
            raise Refused("is an upload without a download")
        return hold

    def _was_answered(self, head: Header) -> bool:
        return (int(head.clients[0]), int(head.draws[0])) in self._answered

    def _none_taken(self, upload: Message, hold: Slice) -> None:
        """Note uploads of clients all of whom declined."""
        clients = upload.head.clients
        nothing = hold.only(())
        for client in clients.tolist():
            self.events.refused(Refusal(self.round, client, _NOT_FINITE))
        self.awaited.arrived(clients, upload.head.draws)
        taken = torch.zeros(len(clients), dtype=torch.bool)
        self.events.taken(Taken(upload, nothing, Update(nothing, nothing, {}), taken))

    def _tell(self, fields: Fields, body: Body, taken: Tensor) -> None:
        """Keep what parts report on no slice, of clients that were taken."""
        for name, field in fields.items():
            if getattr(field, "on", None) is None:
                self._told.setdefault(name, []).append(body[name][taken.to(body[name].device)])

    def _end(self, change: Step) -> Round:
        cohort = self._cohort
        invited = torch.zeros(0, dtype=torch.int64) if cohort is None else cohort.clients
        return Round(
            number=self.round,
            invited=invited,
            taken=torch.cat(self._taken) if self._taken else invited[:0],
            told={name: torch.cat(parts) for name, parts in self._told.items()},
            sums={name: total.sum() for name, total in self._sums.items()},
            change=change,
            model=self.model,
        )

    def head(self, kind: Kind, clients: Tensor, draws: Tensor, layout: int = 0) -> Header:
        """Return the header of messages of the round at hand."""
        return self._head(kind, self.round, clients, draws, layout)

    def _head(self, kind: Kind, t: int, clients: Tensor, draws: Tensor, layout: int = 0) -> Header:
        rounds = torch.full_like(clients, t)
        return Header(kind, t, clients, draws, rounds, self.enrolled.upload_round(clients), layout)

    # --- checkpoints

    def state_dict(self, facts: bool = True) -> dict[str, Tensor]:
        """Everything that a restart between two rounds needs, as tensors; facts too unless clients enrol again."""
        out = {f"model.{name}": value for name, value in self.model.items()}
        out |= {f"first.{name}": value for name, value in self._first.items()}
        out |= {f"enrolled.{name}": value for name, value in self.enrolled.state_dict().items()}
        out["round"] = torch.tensor(self.round)
        for place, state in self.states.items():
            out |= {f"parts.{place}.{name}": value for name, value in state.state_dict().items()}
        if facts:
            out |= {f"facts.{name}": value for name, value in self.enrolled.facts_dict().items()}
            for place, state in self.states.items():
                out |= {f"learned.{place}.{name}": value for name, value in state.facts_dict().items()}
        return out

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        if any(name.startswith("facts.") for name in state):
            self.enrolled.load_facts_dict(_under(state, "facts."))
            for place, each in self.states.items():
                each.load_facts_dict(_under(state, f"learned.{place}."))
        for name, value in self.model.items():
            value.copy_(state[f"model.{name}"])
        self._first = {name: state[f"first.{name}"].to(self.run.device) for name in self._first}
        self.enrolled.load_state_dict(_under(state, "enrolled."))
        self.round = int(state["round"])
        self._steps += 1
        for place, each in self.states.items():
            each.load_state_dict(_under(state, f"parts.{place}."))
        self._begin()


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _on_slices(fields: Fields, body: Body) -> dict[str, Update]:
    """The entries that sit on slices."""
    out: dict[str, Update] = {}
    for name, field in fields.items():
        on = getattr(field, "on", None)
        if on is not None:
            entries = body[name]
            out[name] = entries if isinstance(entries, Update) else Update(on, on, entries.at(on))
    return out


def _difference(update: Update, model: Values) -> Update:
    """The change to the server's model, of clients that send values."""
    then = update.slice.gather(model)
    values = {name: update.slice.clear(name, value - then[name]) for name, value in update.values.items()}
    return replace(update, values=values)
