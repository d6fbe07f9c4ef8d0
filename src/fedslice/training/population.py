"""The clients' side of a run: data, memories and the engine, and no model but what came down."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core import rng, statistics
from fedslice.core.declared import check_declared
from fedslice.core.entries import Maybe, OnSlice, View, empty, merged, per_client
from fedslice.core.errors import Refused
from fedslice.core.header import Header, Kind, open_message
from fedslice.core.memory import NEVER, ClientMemories, Memory
from fedslice.core.message import Body, Field, Fields, Message, unpack
from fedslice.core.part import ClientRun
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.store import Store
from fedslice.privacy.encoding import RingElements
from fedslice.privacy.ring import Elements
from fedslice.privacy.secagg.messages import Vector
from fedslice.recipe import Recipe
from fedslice.select.base import Cohort
from fedslice.task import Task
from fedslice.training import schema
from fedslice.training.devices import Devices
from fedslice.training.engines import Trained, choose
from fedslice.training.engines.choose import Choice
from fedslice.training.engines.memory import keep_freed
from fedslice.training.engines.scope import noise
from fedslice.training.evaluate import Own, client_scores
from fedslice.training.events import Events
from fedslice.training.events import Trained as TrainedEvent
from fedslice.training.row_plan import RowPlan
from fedslice.training.sum_client import SumClients, stacked
from fedslice.training.sums import Purpose, Step, line, placed, tally_vectors, update_vectors
from fedslice.training.work import Work, statistics_of

_AT_ONCE = 1 << 16  # clients that enrol together
_ENTRIES = 1 << 24  # of their facts
_SUMMED = 256  # clients that answer a step of a secure sum together


class Population:
    """Clients that train together. A client on its own is a population of one.

    Args:
        spec: What both sides know.
        task: The network with the clients' data.
        seed: The clients' own seed; by default the shared one.
        secret: The clients' own secret; by default their seed, which hides nothing and is enough for a simulation.
        masked: Whether clients mask what is summed. A simulation may leave it out, and has the same sums.
        devices: How fast the clients are.
        engine: ``auto``, or the name of an engine.
        chunk: How many clients train at once; chosen with the engine by default.
        cohort: How many clients are expected in a round, for the choice of the engine.
        events: Listeners.
    """

    def __init__(
        self,
        spec: Spec,
        task: Task,
        *,
        seed: int | None = None,
        secret: int | None = None,
        masked: bool = False,
        device: torch.device | None = None,
        devices: Devices | None = None,
        engine: str = "auto",
        chunk: int | None = None,
        events: Events | None = None,
    ):
        self.spec = spec
        self.task = task
        self.device = device or torch.device("cpu")
        self.events = events or Events()
        clients = len(task.federation)
        self.memories = ClientMemories(Store(clients, self.device), clients)
        own = spec.seed if seed is None else seed
        hidden = own % (1 << 64) if secret is None else secret
        self.run = ClientRun(spec, task, self.memories, own, self.device, devices, hidden)
        self.parts: dict[str, Memory] = self.run.parts
        for place, part in spec.recipe.parts().items():
            self.parts[place] = part.client_memory(self.run, place)
        self.plan = RowPlan.of(spec.recipe)
        self._asked = (engine, chunk)
        self._chosen: Choice | None = None
        self._kept = spec.recipe.slices.kept(spec)
        self._first = schema.initial_names(spec)
        self._likeness = self._alike()
        self.sums = SumClients(self.run, self._vectors, masked)

    def __len__(self) -> int:
        return len(self.task.federation)

    # --- what the server is told

    def introduce(self, clients: Tensor, t: int = 0) -> Message:
        """Return the messages with which clients enrol before round ``t``."""
        fields = schema.facts(self.spec)
        body: Body = {}
        for place, part in self.spec.recipe.parts().items():
            body |= part.introduce(self.parts[place], clients)
        return Message(self._head(Kind.ENROL, t, clients), fields, body)

    def request(self, invitation: Message) -> Message:
        """Return what clients ask for in the round that they are invited to.

        The invitation says of which round the server took each client's upload last, so that it settles what they have
        written since.
        """
        self.settle(invitation.head.clients, invitation.head.upload_round)
        return self.ask(invitation.head.round, invitation.head.clients, invitation.head.draws)

    def ask(self, t: int, clients: Tensor, draws: Tensor | None = None) -> Message:
        """Return the request of clients that may or may not be invited: nothing is settled."""
        slices, memory, here = self.spec.recipe.slices, self.parts["slices"], clients.to(self.device)
        hold = slices.hold(memory, t, here)
        head = self._head(Kind.REQUEST, t, clients, draws)
        return Message(head, schema.request(self.spec), slices.request(memory, t, here, hold))

    def examined(self, examination: Message) -> Message:
        """Return the request of clients that are asked for scores: for all values, and for rows to test on.

        What they have written since they were last heard of is settled first: their own model depends on it.
        """
        self.settle(examination.head.clients, examination.head.upload_round)
        t, clients, memory = examination.head.round, examination.head.clients, self.parts["slices"]
        head = replace(self._head(Kind.REQUEST, t, clients), model_round=torch.full_like(clients, NEVER))
        hold = self._with_test_rows(t, clients.to(self.device))
        request = self.spec.recipe.slices.request(memory, t, clients.to(self.device), hold)
        return Message(head, schema.request(self.spec), request)

    def score(self, preview: Message) -> Message:
        """Return what the clients' own models are worth on the clients' own test samples."""
        head, local, memory = preview.head, self.spec.recipe.local, self.parts["local"]
        clients = head.clients.to(self.device)
        hold = self._with_test_rows(head.round, clients)
        down = self.spec.recipe.slices.came(self.parts["slices"], head.round, clients, hold)
        with self.memories.untouched():
            came = self.receive(head, hold, down, preview.body)

        def own(_: Tensor, axes: Mapping[str, Axis]) -> Own:
            layout = hold.replace(axes)
            start = self.begin(clients, hold, down, layout, came)
            return Own(layout, local.personal(memory, clients, layout, start, came) | statistics_of(came))

        found = {"samples": self.task.federation.test.sizes_of(clients).cpu()}
        found |= client_scores(self.task, self.engine, clients, own)
        body: Body = {name: found[name][:, None] for name in ("samples", *self.spec.metrics)}
        return Message(self._head(Kind.SCORES, head.round, head.clients), schema.scores(self.spec), body)

    def _with_test_rows(self, t: int, clients: Tensor) -> Slice:
        """Return what clients hold, and the table rows that their test samples name."""
        hold, test = self.spec.recipe.slices.hold(self.parts["slices"], t, clients), self.task.federation.test
        axes: dict[str, Axis | None] = {}
        for sets in self.task.index_sets:
            own = hold.axes[sets.tables[0]][0] if sets.tables[0] in hold.axes else None
            if own is not None:
                more = Axis.from_flat(*sets.over(test).of(clients))
                axes |= dict.fromkeys(sets.tables, own.union(more))
        return hold.replace(axes)

    def chunks(self, stage: str, cohort: Cohort) -> Iterator[Cohort]:
        """Return clients in chunks as large as this side takes at once; in each, clients are alike."""
        if stage == "enrolment":
            entries = sum(math.prod(fact.shape) for fact in schema.facts(self.spec).values() if isinstance(fact, Field))
            size = max(1, min(_AT_ONCE, _ENTRIES // max(entries, 1)))
            for clients, draws in zip(cohort.clients.split(size), cohort.draws.split(size), strict=True):
                yield Cohort(clients, draws)
        elif stage == "sum":
            for clients, draws in zip(cohort.clients.split(_SUMMED), cohort.draws.split(_SUMMED), strict=True):
                yield Cohort(clients, draws)
        elif stage == "evaluation":  # clients without test samples are apart: they have nothing to be padded to
            sizes = self.task.federation.test.sizes.cpu()
            tested = sizes[cohort.clients] > 0
            for some in (tested, ~tested):
                if bool(some.any()):
                    yield from Cohort(cohort.clients[some], cohort.draws[some]).chunks(self.engine.chunk, sizes)
        else:
            yield from cohort.chunks(self.engine.chunk, self._likeness)

    def read(self, data: bytes) -> Message:
        """Read and check a message of the server.

        Raises:
            Refused: If it is not one, or not for a client of this population.
        """
        opened = open_message(data, self.spec.fingerprint)
        kind, t, clients = opened.head.kind, opened.head.round, opened.head.clients
        if int(clients[0]) >= len(self):
            raise Refused(f"is for client {int(clients[0])}, which is not here")
        if kind in (Kind.INVITE, Kind.EXAMINE):
            return unpack(opened, {}, lambda _: {})
        if kind is Kind.WELCOME:
            return unpack(opened, {}, lambda _: schema.WELCOME)
        if kind is Kind.SUM:
            return self.sums.read(opened)
        if kind not in (Kind.DOWNLOAD, Kind.PREVIEW):
            raise Refused(f"is of kind {kind.name.lower()}, which a server does not send")
        slices, memory, here = self.spec.recipe.slices, self.parts["slices"], clients.to(self.device)
        hold = self._with_test_rows(t, here) if kind is Kind.PREVIEW else slices.hold(memory, t, here)
        return schema.read_download(self.spec, opened, hold, slices.came(memory, t, here, hold))

    # --- secure sums

    def summed(self, asked: Message) -> Message:
        """Return clients' parts of a step of a secure sum."""
        t, clients, (purpose, step) = asked.head.round, asked.head.clients, placed(asked.head.layout)
        if purpose is Purpose.UPDATES and step is Step.KEYS:
            self.settle(clients, asked.head.upload_round)
        if purpose is Purpose.UPDATES and step is Step.VECTORS:
            return self.delivered(asked)
        return self.sums.answer(asked, self._head(Kind.PART, t, clients, asked.head.draws), self._tally)

    def delivered(self, asked: Message) -> Message:
        """Return the request of clients that have been sent their neighbours' shares."""
        self.sums.hear_delivery(asked)
        return self.request(asked)

    def _sealed(self, head: Header, up: Slice, fields: Fields, body: Body) -> tuple[Header, Body]:
        """Return uploads as ring elements under masks; clients that are in no sum decline."""
        spec, layout = self.spec, head.layout
        own, whole = (
            {name: each for name, each in schema.plain(spec, part, layout).items() if isinstance(each, Field)}
            for part in (up, schema.whole(spec))
        )
        declined = torch.zeros(len(head.clients), dtype=torch.bool) if head.declined is None else head.declined.clone()
        vectors = {
            name: Vector(each.encoding.ring, each.shape[0])
            for name, each in fields.items()
            if isinstance(each, Field) and isinstance(each.encoding, RingElements)
        }
        found: list[Mapping[str, Elements]] = []
        for at, client in enumerate(head.clients.tolist()):
            member = None if bool(declined[at]) else self.sums.member(client)
            masked: Mapping[str, Elements] = {}
            if member is not None and (member.layout, member.setup.vectors) == (layout, vectors):
                lines = {name: line(own[name], each, body[name], at) for name, each in whole.items()}
                with suppress(Refused):
                    masked = self.sums.seal(member, client, head.round, lines)
            declined[at] = not masked
            found.append(masked)
        ids = {name: entries for name, entries in body.items() if name in fields and name not in vectors}
        return replace(head, declined=declined if bool(declined.any()) else None), ids | stacked(vectors, found)

    def _tally(self, client: int) -> Mapping[str, NDArray[np.int64]]:
        return {
            name: counts
            for place, part in self.spec.recipe.parts().items()
            for name, counts in part.tally(self.parts[place], client).items()
        }

    def _vectors(self, purpose: Purpose, size: int, layout: int, scale: float) -> Mapping[str, Vector]:
        """Return the vectors of a secure sum."""
        if purpose is Purpose.UPDATES:
            return update_vectors(self.spec, size, layout)
        lengths = {n: length for part in self.spec.recipe for n, length in part.tallies(self.spec).items()}
        return tally_vectors(lengths, int(scale))

    def settle(self, clients: Tensor, taken: Tensor) -> None:
        """Commit or drop what clients have written, given the last round of which the server took each upload."""
        self.memories.settle(clients, taken)

    # --- training

    def train(self, download: Message) -> Message:
        """Train the clients of a download and return their uploads."""
        recipe, spec, t = self.spec.recipe, self.spec, download.head.round
        work = self.prepare(download)
        who = int(work.clients[0])
        with noise(self.device, rng.torch_seed(self.run.seed, rng.Purpose.NOISE, t, who)):
            trained = self.engine.engine.train(self.task, recipe.local, work)
        end = trained.end
        slices = recipe.slices
        up, ids = slices.up(self.parts["slices"], t, work.clients, work.hold, work.start, end, work.came)
        update = self.plan.update(recipe, work, up, end)
        fields = schema.upload(spec, work.hold, up, download.head.layout)
        reports = self._reports(fields, work, up, end, trained)
        fine = update.finite()
        for entries in reports.values():
            if not isinstance(entries, Tensor):
                fine &= entries.finite()
        for name, value in trained.statistics.items():
            fine &= statistics.usable(name, value)
        update = update.masked(fine)
        declined = None if bool(fine.all()) else ~fine
        head = self._head(Kind.UPLOAD, t, download.head.clients, download.head.draws, download.head.layout, declined)
        body: Body = dict(ids)
        codes = recipe.codec.encode(self.parts["codec"], head, update, work.came)
        check_declared(f"codec={recipe.codec.label}", recipe.codec.fields(spec, up, head.layout), codes)
        body |= codes
        for name, entries in reports.items():
            masked = entries if isinstance(entries, Tensor) else entries.masked(fine)
            body |= dict.fromkeys((n for n in fields if n == name or n.startswith(f"{name}.")), masked)  # one per type
        for name, value in trained.statistics.items():
            if statistics.PREFIX + name in fields:
                body[statistics.PREFIX + name] = value.reshape(len(value), -1)
            else:
                self.parts["slices"].put(statistics.PREFIX + name, work.clients, value)
        if "sealed" in recipe.codec.provides:
            head, body = self._sealed(head, up, fields, body)
        recipe.local.update_memory(work, end)
        for name in self._kept:
            self.parts["slices"].put(f"kept/{name}", work.clients, work.hold.spread(name, end[name]))
        self.memories.end_round(t, download.head.clients)
        self.memories.model_round.index_fill_(0, download.head.clients, t)
        self.events.trained(TrainedEvent(work, end, fine, trained.losses, trained.statistics))
        return Message(head, fields, body)

    def prepare(self, download: Message, recipe: Recipe | None = None, local: Memory | None = None) -> Work:
        """Return what the clients of a download train on.

        Args:
            download: What came down.
            recipe: The run's recipe with another local method, if that is to train.
            local: The memory of that method.
        """
        plan = self.plan if recipe is None else RowPlan.of(recipe)
        recipe, local = recipe or self.spec.recipe, local or self.parts["local"]
        head = download.head
        t, clients = head.round, head.clients.to(self.device)
        memory = self.parts["slices"]
        hold = recipe.slices.hold(memory, t, clients)
        down = recipe.slices.came(memory, t, clients, hold)
        came = self.receive(head, hold, down, download.body)
        samples = self.task.federation.train
        sizes, scale = samples.sizes_of(clients), recipe.select.batch_scale()
        batches = recipe.local.sampler.batches(t, clients, head.draws, sizes, scale, self.run.seed)
        features, label = samples.batch(samples.offsets[clients][:, None, None] + batches.index)
        layout = plan.layout(self.task, recipe, local, clients, hold, features)
        start = self.begin(clients, hold, down, layout, came)
        terms = recipe.local.constants(local, clients, layout, down, came)
        rates = recipe.local.rates(t, batches.real.any(2).sum(1).cpu(), self.spec.rounds)
        squares = "squares" in schema.reports(self.spec, hold)
        return Work(
            t, clients, head.draws, hold, down, layout, start, terms, rates,
            features, label, batches.real, squares, came, local, cut=self.task.mixes_samples,
        )  # fmt: skip

    def receive(self, head: Header, hold: Slice, down: Slice, body: Body) -> Body:
        """Return everything that came down, read from memory where a client was sent it before."""
        plain = {name: entries.entries if isinstance(entries, Maybe) else entries for name, entries in body.items()}
        came = self.spec.recipe.codec.receive(self.parts["codec"], head, down, plain)
        for name, value in self.spec.statistics.items():
            came[statistics.PREFIX + name] = self._statistic(name, value, head.clients.to(self.device), plain)
        if self._first:
            came["first"] = self._initial(head, hold, plain)
        return came

    def _statistic(self, name: str, first: Tensor, clients: Tensor, body: Body) -> Tensor:
        """Return a running statistic [clients, ...]: what came down, or what clients kept of it."""
        if statistics.PREFIX + name in body:
            came: Tensor = body[statistics.PREFIX + name]
            return came.to(self.device).view(len(clients), *first.shape)
        start = first.to(self.device).expand(len(clients), *first.shape)
        found = self.parts["slices"].get(statistics.PREFIX + name, clients)
        return start if found is None else torch.where(per_client(found[1], start), found[0], start)

    def begin(self, clients: Tensor, hold: Slice, down: Slice, layout: Slice, came: Body) -> Values:
        """Return what clients start from: what came down, over what they kept, on a layout.

        Of parameters that they keep, newcomers have the initial values.
        """
        start = {name: value for name, value in came["values"].at(layout).items() if name not in self._kept}
        for name in self._kept:
            start[name] = self._kept_values(name, clients, hold, down, layout, came)
        if "narrows" in self.spec.recipe.slices.provides:  # channels that a client lacks are as if they were not
            tables = self.spec.tables
            start |= {name: layout.clear(name, start[name]) for name in layout.axes if name not in tables}
        return {name: start[name] for name in layout.axes}

    def _kept_values(self, name: str, clients: Tensor, hold: Slice, down: Slice, layout: Slice, came: Body) -> Tensor:
        """Return a parameter's values: those that came down, else those that clients remember, else the first ones."""
        part = layout.only([name])
        value = came["values"].at(part).get(name)
        if value is None:
            value = came["first"].at(part)[name] if "first" in came else None
        if value is None:
            shape = torch.Size(layout.sizes(name))
            value = torch.zeros(len(clients), *shape, dtype=self.spec.dtypes[name], device=self.device)
        found = self.parts["slices"].get(f"kept/{name}", clients)
        return value if found is None else overlaid(found, name, value, layout, hold, down)

    def _initial(self, head: Header, hold: Slice, body: Body) -> View | OnSlice:
        """Return the initial values of what parts ask for; a device remembers them from its first download."""
        fields = schema.first(self.spec, hold)
        there = [body[name] for name in fields if name in body]
        if there and isinstance(there[0], View):
            return there[0]
        memory = Memory(self.run, "first")
        clients = head.clients.to(self.device)
        part = hold.only(name for name in hold.axes if name in self._first)
        if there:
            values = merged(there).at(part)
            for name, value in values.items():
                memory.keep(name, clients, part.spread(name, value))
            return OnSlice(part, values)
        values = {}
        for name in part.axes:
            found = memory.get(name, clients)
            if found is None:
                return empty(len(clients), hold.shapes)
            values |= part.only([name]).pick({name: found[0]}, Slice.whole(len(clients), hold.shapes, [name]))
        return OnSlice(part, values)

    def _reports(self, wanted: Fields, work: Work, up: Slice, end: Values, trained: Trained) -> dict[str, Any]:
        """Return what parts report besides the update, by field."""
        out: dict[str, Any] = {}
        if "loss" in wanted:
            out["loss"] = trained.losses[:, None].cpu()
        if "squares" in wanted:
            assert trained.squares is not None
            out["squares"] = trained.squares[:, None].cpu()
        for name, entries in self.spec.recipe.local.report(work, end).items():
            out[name] = entries if isinstance(entries, Tensor) else self.plan.report(work, up, dict(entries))
        return out

    def _head(
        self,
        kind: Kind,
        t: int,
        clients: Tensor,
        draws: Tensor | None = None,
        layout: int = 0,
        declined: Tensor | None = None,
    ) -> Header:
        who = clients.cpu()
        return Header(
            kind,
            t,
            who,
            torch.zeros_like(who) if draws is None else draws.cpu(),
            self.memories.model_round.index_select(0, who),
            self.memories.committed.index_select(0, who),
            layout,
            declined,
        )

    # --- the engine

    @property
    def ready(self) -> bool:
        """Whether the engine is chosen."""
        return self._chosen is not None

    @property
    def engine(self) -> Choice:
        """The engine; chosen when first asked for, by counting on two clients that train from zeros."""
        if self._chosen is None:
            first = self.task.federation.train.sizes.cpu().nonzero()[:2, 0]
            self.choose_engine(Cohort(first, torch.zeros_like(first)), len(self))
        assert self._chosen is not None
        return self._chosen

    def choose_engine(self, some: Cohort, size: int) -> None:
        """Choose the engine by counting on a few clients of a cohort of this size."""
        keep_freed()
        work = self.prepare(self._zeros(some))
        self._chosen = choose(*self._asked, self.task, self.spec.recipe.local, work, size)

    def _zeros(self, cohort: Cohort) -> Message:
        """A download of zeros for these clients, of the right shapes."""
        spec = self.spec
        zero = {n: torch.zeros((), dtype=d, device=self.device).expand(spec.shapes[n]) for n, d in spec.dtypes.items()}
        clients = cohort.clients.to(self.device)
        hold = spec.recipe.slices.hold(self.parts["slices"], 0, clients)
        return schema.zeros(spec, self._head(Kind.DOWNLOAD, 0, cohort.clients, cohort.draws), hold, zero)

    def _alike(self) -> Tensor:
        """A number per client: those with similar ones take similar steps, on networks of similar width."""
        sizes = self.task.federation.train.sizes.cpu()
        slices = self.spec.recipe.slices
        if "narrows" not in slices.provides:
            return sizes
        held = slices.held(self.parts["slices"], torch.arange(len(self)))
        order = np.lexsort((sizes.numpy(), held.numpy()))
        return torch.from_numpy(order).argsort()


def overlaid(found: tuple[Tensor, Tensor], name: str, value: Tensor, layout: Slice, hold: Slice, down: Slice) -> Tensor:
    """Return a parameter's values with remembered ones over them, where a client holds it and nothing comes down.

    Args:
        found: Values of the whole parameter by client, and who remembers any [clients].
        name: The parameter.
        value: Its values on the layout.
        layout: Where values sit.
        hold: What clients hold.
        down: What comes down.
    """
    everywhere = Slice.whole(layout.clients, layout.shapes, [name])
    last = layout.clear(name, layout.only([name]).pick({name: found[0]}, everywhere)[name])
    own = per_client(found[1], last) & ~down.inside(layout, name).to(last.device)
    if layout.axes[name] != hold.axes[name]:
        own = own & hold.inside(layout, name).to(own.device)
    return torch.where(own, last, value)
