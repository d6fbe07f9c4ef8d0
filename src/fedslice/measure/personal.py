"""Personal evaluation: what every client's own model is worth to the client (FDRL; published code).

Three models are a client's own: the one it would start its next round from, the one it ended its last round with, and
the first after a round of local training. All are tested on the client's own test samples. The columns ``test_…``, by
contrast, are of the server's model, which of parameters that never leave a client still has the initial values: with
such a recipe they tell what a newcomer would begin with, and nothing about the clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedslice.core import rng
from fedslice.core.entries import per_client
from fedslice.core.errors import UserError
from fedslice.core.message import Body, Message
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.store import Store
from fedslice.measure.base import Instrument, Moment, Scene
from fedslice.measure.clients import columns, panels, score_columns, scores
from fedslice.metrics import directions
from fedslice.panel import Panel
from fedslice.schema import Column
from fedslice.task import Task
from fedslice.training.engines.scope import noise
from fedslice.training.evaluate import Own
from fedslice.training.events import Trained
from fedslice.training.population import overlaid
from fedslice.training.row_plan import RowPlan
from fedslice.training.work import statistics_of


class Look(NamedTuple):
    """The download that clients would be sent if the next round were theirs; no side takes note of it.

    Args:
        clients: Their numbers.
        download: The message.
        hold: What they hold.
        down: What comes down of it.
        came: Everything that came down.
    """

    clients: Tensor
    download: Message
    hold: Slice
    down: Slice
    came: Body

    @classmethod
    def at(cls, now: Moment, clients: Tensor) -> Look:
        """Look at some clients of a run."""
        population, slices = now.scene.population, now.scene.spec.recipe.slices
        pooled = _pooled(now.scene)
        who = torch.zeros_like(clients) if pooled else clients  # pooled data are in one hand
        download = now.scene.server.glimpse(population.ask(now.round, who.cpu()))
        memory = population.parts["slices"]
        hold = slices.hold(memory, now.round, who)
        down = slices.came(memory, now.round, who, hold)
        return cls(who, download, hold, down, population.receive(download.head, hold, down, download.body))

    def start(self, now: Moment, layout: Slice) -> Values:
        """Return from what they would start, on a layout with any table rows."""
        return now.scene.population.begin(self.clients, self.hold, self.down, layout, self.came)


class Personal(Instrument):
    """The model from which a client would start its next round, as its local method has it (``Term.personal``).

    A table row that a client does not hold, and a test sample names, is the server's.
    """

    label: ClassVar[str] = "personal"
    title: ClassVar[str] = "Personal models"

    def columns(self, task: Task) -> list[Column]:
        """Means over clients of the task's metrics."""
        return score_columns(self.label, task)

    def setup(self, scene: Scene) -> None:
        """Refuse a federation whose clients have nothing to be tested on."""
        test = scene.task.federation.test
        self._samples = test.sizes.cpu()
        self._scores: dict[str, Tensor] = {}
        if not bool(self._samples.any()):
            raise UserError(
                f"measure={self.label} tests every client on its own test samples, but of the {len(test):,} of task "
                f"{scene.task.name!r} none belongs to a client; give clients some, in a set without clients by "
                "split=pfllib or partition=shards."
            )

    def measure(self, now: Moment) -> dict[str, float]:
        """Means over clients, plain, by test samples, and of the worst tenth."""
        self._scores = scores(now.scene.task, now.engine, lambda clients, axes: self._own(now, clients, axes))
        return columns(self.label, self._scores, self._samples, directions(now.scene.task.metrics))

    def clients(self) -> dict[str, Tensor]:
        """The newest scores by client."""
        return {f"{self.label}_{name}": values for name, values in self._scores.items()}

    def panels(self) -> list[Panel]:
        """Return histograms of the scores."""
        return panels(self.title, self._scores, self._samples)

    def state_dict(self) -> Values:
        """The newest scores."""
        return self._scores

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved scores."""
        self._scores = dict(state)

    def _own(self, now: Moment, clients: Tensor, axes: Mapping[str, Axis]) -> Own:
        look = Look.at(now, clients)
        layout = look.hold.replace(axes)
        start = self._start(look, layout, look.start(now, layout))
        local, memory = now.scene.spec.recipe.local, now.scene.population.parts["local"]
        own = local.personal(memory, look.clients, layout, start, look.came)
        return Own(layout, own | self._statistics(look))

    def _start(self, look: Look, layout: Slice, start: Values) -> Values:  # noqa: ARG002
        """From what a client starts its next round to what is tested."""
        return start

    def _statistics(self, look: Look) -> Values:
        """The running statistics of what is tested."""
        return statistics_of(look.came)


class Stale(Personal):
    """The model with which a client ended its last round, however long ago; before its first, what it would start from.

    So FDRL's published code tests clients. What they ended with is kept for this purpose alone, all of the model for
    every client.
    """

    label: ClassVar[str] = "stale"
    title: ClassVar[str] = "Models as clients ended with them"

    def setup(self, scene: Scene) -> None:
        """Refuse cohorts in which a client's memory would be written twice."""
        super().setup(scene)
        _federated(self.label, scene)
        select = scene.spec.recipe.select
        if "repeats" in select.provides:
            raise UserError(
                f"measure=stale keeps a memory per client, and select={select.label} with replacement may "
                "draw a client twice in one round; draw without replacement."
            )
        self._scene = scene
        self._ended = Store(len(scene.population), scene.population.device)

    def trained(self, event: Trained) -> None:
        """Remember the ends of all parameters; beyond a client's slice, what the server had."""
        work, recipe = event.work, self._scene.spec.recipe
        plan = RowPlan.of(recipe)
        for name in work.layout.axes:
            everywhere = Slice.whole(len(work.clients), work.layout.shapes, [name])
            before = work.came["values"].at(everywhere).get(name)
            whole = work.layout.spread(name, event.end[name])
            if before is not None:
                rest = plan.untrained(recipe, work, everywhere, before, name)
                whole = torch.where(work.layout.inside(everywhere, name).to(rest.device), whole, rest)
            fine = event.finite.to(whole.device)
            self._ended.put(f"ended/{name}", work.clients[fine.to(work.clients.device)], whole[fine])
        for name, value in event.statistics.items():
            self._ended.put(f"ended/{name}", work.clients[event.finite.to(work.clients.device)], value[event.finite])

    def state_dict(self) -> Values:
        """The newest scores, and what clients ended with."""
        return super().state_dict() | {f"store.{name}": value for name, value in self._ended.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved scores and models."""
        own = {name.removeprefix("store."): v for name, v in state.items() if name.startswith("store.")}
        self._ended.load_state_dict(own)
        super().load_state_dict({name: value for name, value in state.items() if not name.startswith("store.")})

    def _start(self, look: Look, layout: Slice, start: Values) -> Values:
        """The model before anything came down in this round."""
        nothing = Slice(layout.clients, layout.shapes, {})
        for name in layout.axes:
            if (found := self._ended.get(f"ended/{name}", look.clients)) is not None:
                start[name] = overlaid(found, name, start[name], layout, look.hold, nothing)
        return start

    def _statistics(self, look: Look) -> Values:
        """Those with which clients ended."""
        out = super()._statistics(look)
        for name, value in out.items():
            if (found := self._ended.get(f"ended/{name}", look.clients)) is not None:
                out[name] = torch.where(per_client(found[1], value), found[0], value)
        return out


class Tuned(Personal):
    """The personal model after one more round of local training, of which nothing is sent and nothing is kept.

    This is how fine-tuned FedAvg and FedBABU are judged, and what FDRL's published code does in its last round. A local
    method may name another one that tunes (``Term.tuning``).
    """

    label: ClassVar[str] = "tuned"
    title: ClassVar[str] = "Personal models after local training"

    def setup(self, scene: Scene) -> None:
        """The same recipe, with what tunes in the place of what trains."""
        super().setup(scene)
        _federated(self.label, scene)
        self._recipe, tuner = scene.spec.recipe, scene.spec.recipe.local.tuner()
        self._memory = scene.population.parts["local"]
        if tuner is not self._recipe.local:
            self._recipe = dataclasses.replace(self._recipe, local=tuner)
            self._memory = tuner.client_memory(scene.population.run, "tuner")

    def _own(self, now: Moment, clients: Tensor, axes: Mapping[str, Axis]) -> Own:
        look, population = Look.at(now, clients), now.scene.population
        local, memory = now.scene.spec.recipe.local, population.parts["local"]
        work = population.prepare(look.download, self._recipe, self._memory)
        work = dataclasses.replace(work, start=local.personal(memory, clients, work.layout, work.start, look.came))
        seed = rng.torch_seed(population.run.seed, rng.Purpose.NOISE, now.round, int(clients[0]))
        with noise(population.device, seed):
            trained = now.engine.engine.train(now.scene.task, self._recipe.local, work)
        layout = work.hold.replace(axes)
        start = local.personal(memory, clients, layout, look.start(now, layout), look.came)
        plan = RowPlan.of(self._recipe)
        end = {n: plan.finished(self._recipe, work, trained.end, layout, start, n) for n in layout.axes}
        return Own(layout, end | trained.statistics)


def own_model(now: Moment, client: int) -> Values:
    """Return the whole model from which a client would start its next round, as its local method has it.

    A table row that the client does not hold is the server's, and a channel that its network lacks is zero.
    """
    look = Look.at(now, torch.tensor([client], device=now.scene.population.device))
    rows = {name: sets.rows for sets in now.scene.task.index_sets for name in sets.tables}
    every = {name: Axis.from_flat(torch.arange(count), torch.tensor([count])) for name, count in rows.items()}
    layout = look.hold.replace({name: axis for name, axis in every.items() if name in look.hold.axes})
    local, memory = now.scene.spec.recipe.local, now.scene.population.parts["local"]
    values = local.personal(memory, look.clients, layout, look.start(now, layout), look.came)
    return {name: layout.spread(name, value)[0].detach().cpu().clone() for name, value in values.items()}


def _pooled(scene: Scene) -> bool:
    return "pools" in scene.spec.recipe.select.provides


def _federated(label: str, scene: Scene) -> None:
    if _pooled(scene):
        raise UserError(
            f"measure={label} looks at what each client trains, and with select={scene.spec.recipe.select.label} there "
            "is one client that has all data; use measure=personal."
        )
