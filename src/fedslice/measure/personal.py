"""Personal evaluation: what every client's own model is worth to the client (S2; published code).

Three models are a client's own: the one it would start its next round from, the one it ended its last round with, and
the first after a round of local training. All are tested on the client's own test samples. The columns ``test_…``, by
contrast, are of the server's model, which of parameters that never leave a client still has the initial values: with
such a recipe they tell what a newcomer would begin with, and nothing about the clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedslice import rng
from fedslice.engines.scope import noise
from fedslice.errors import UserError
from fedslice.local import SGD
from fedslice.measure.base import Instrument, Moment
from fedslice.measure.clients import Own, columns, panels, scores
from fedslice.metrics import directions
from fedslice.panel import Panel
from fedslice.parts import World
from fedslice.slice import Axis, Slice, Values
from fedslice.work import Work, begin, download, recall


class Personal(Instrument):
    """The model from which a client would start its next round, as its local method has it (``SGD.personal``).

    A table row that a client does not hold, and a test sample names, is the server's.
    """

    label: ClassVar[str] = "personal"
    title: ClassVar[str] = "Personal models"

    def setup(self, world: World) -> None:
        """Refuse a federation whose clients have nothing to be tested on."""
        test = world.task.federation.test
        self._samples = test.sizes.cpu()
        self._scores: dict[str, Tensor] = {}
        if not bool(self._samples.any()):
            raise UserError(
                f"measure={self.label} tests every client on its own test samples, but of the {len(test):,} of task "
                f"{world.task.name!r} none belongs to a client; give clients some, in a set without clients by "
                "split=pfllib or partition=shards."
            )

    def measure(self, now: Moment) -> dict[str, float]:
        """Means over clients, plain, by test samples, and of the worst tenth."""
        self._scores = scores(now.world.task, now.engine, lambda clients, axes: self._own(now, clients, axes))
        return columns(self.label, self._scores, self._samples, directions(now.world.task.metrics))

    def clients(self) -> dict[str, Tensor]:
        """The newest scores by client."""
        return {f"{self.label}_{name}": values for name, values in self._scores.items()}

    def panels(self) -> list[Panel]:
        """How they are spread."""
        return panels(self.title, self._scores, self._samples)

    def state_dict(self) -> Values:
        """The newest scores."""
        return self._scores

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved scores."""
        self._scores = dict(state)

    def _own(self, now: Moment, clients: Tensor, axes: Mapping[str, Axis]) -> Own:
        world, recipe = now.world, now.world.recipe
        who = clients if recipe.select.remote else torch.zeros_like(clients)  # pooled data are in one hand
        hold = recipe.slices.hold(now.round, who)
        down = recipe.slices.down(now.round, who, hold)
        layout = hold.replace(axes)
        start = begin(world, recipe, now.model, who, hold, down, layout)
        return Own(layout, recipe.local.personal(who, layout, self._start(world, who, hold, layout, start)))

    def _start(self, world: World, clients: Tensor, hold: Slice, layout: Slice, start: Values) -> Values:  # noqa: ARG002
        """From what a client starts its next round to what is tested."""
        return start


class Stale(Personal):
    """The model with which a client ended its last round, however long ago; before its first, what it would start from.

    So S2's published code tests clients. What they ended with is kept for this purpose alone, all of the model for
    every client.
    """

    label: ClassVar[str] = "stale"
    title: ClassVar[str] = "Models as clients ended with them"

    def setup(self, world: World) -> None:
        """Refuse cohorts in which a client's memory would be written twice."""
        super().setup(world)
        _federated(self.label, world)
        if world.recipe.select.repeats():
            raise UserError(
                f"measure=stale keeps a memory per client, and select={world.recipe.select.label} with replacement may "
                "draw a client twice in one round; draw without replacement."
            )
        self._world = world

    def trained(self, work: Work, model: Values, end: Values, fine: Tensor) -> None:
        """Remember the ends of what the recipe itself does not keep; beyond a client's slice, what the server had."""
        for name in work.layout.axes.keys() - _kept(self._world):
            everywhere = Slice.whole(len(work.clients), work.layout.shapes, [name])
            rest = _drifted(self._world.recipe.local, work, everywhere, everywhere.gather(model)[name], name)
            there = work.layout.inside(everywhere, name).to(rest.device)
            whole = torch.where(there, work.layout.spread(name, end[name]), rest)
            self._world.store.put(f"ended/{name}", work.clients[fine], whole[fine])

    def _start(self, world: World, clients: Tensor, hold: Slice, layout: Slice, start: Values) -> Values:
        """What came down since then is not yet there."""
        nothing, kept = Slice(len(clients), layout.shapes, {}), _kept(world)
        for name in layout.axes:
            memory = f"{'kept' if name in kept else 'ended'}/{name}"
            recall(world, memory, name, clients, hold, nothing, layout, start)
        return start


class Tuned(Personal):
    """The personal model after one more round of local training, of which nothing is sent and nothing is kept.

    This is how fine-tuned FedAvg and FedBABU are judged, and what S2's published code does in its last round. A local
    method may name another one that tunes (``SGD.tuner``).
    """

    label: ClassVar[str] = "tuned"
    title: ClassVar[str] = "Personal models after local training"

    def setup(self, world: World) -> None:
        """The same recipe, with what tunes in the place of what trains."""
        super().setup(world)
        _federated(self.label, world)
        self._recipe, tuner = world.recipe, world.recipe.local.tuner()
        if tuner is not world.recipe.local:
            self._recipe = dataclasses.replace(world.recipe, local=tuner)
            tuner.setup(world)

    def _own(self, now: Moment, clients: Tensor, axes: Mapping[str, Axis]) -> Own:
        world, recipe = now.world, self._recipe
        personal = world.recipe.local.personal
        work = download(world, recipe, now.model, now.round, clients, torch.zeros_like(clients).cpu())
        work = dataclasses.replace(work, start=personal(clients, work.layout, work.start))
        with noise(world.device, rng.torch_seed(world.seed, rng.Purpose.NOISE, now.round, int(clients[0]))):
            end = now.engine.engine.train(world.task, recipe.local, work).end
        layout = work.hold.replace(axes)
        start = personal(clients, layout, begin(world, recipe, now.model, clients, work.hold, work.down, layout))
        return Own(layout, {name: _moved(recipe.local, work, end, layout, start, name) for name in layout.axes})


def _moved(local: SGD, work: Work, end: Values, layout: Slice, start: Values, name: str) -> Tensor:
    """A parameter's values after training on a layout that has other table rows than was trained on."""
    if layout.axes[name] == work.layout.axes[name]:
        return end[name]
    trained = layout.only([name]).pick(end, work.layout)[name]
    rest = _drifted(local, work, layout, start[name], name)
    there, own = (part.inside(layout, name).to(rest.device) for part in (work.layout, work.hold))
    return torch.where(there, trained, torch.where(own, rest, start[name]))


def _drifted(local: SGD, work: Work, layout: Slice, start: Tensor, name: str) -> Tensor:
    """Where coordinates end that are not trained because their gradient is zero."""
    if not local.drifts:
        return start
    field = layout.only([name]).gather(local.field())[name]
    return start - work.reach.to(field).view(-1, *[1] * (field.dim() - 1)) * field


def _kept(world: World) -> frozenset[str]:
    return world.recipe.slices.kept() if world.recipe.slices.remembers else frozenset()


def _federated(label: str, world: World) -> None:
    if not world.recipe.select.remote:
        raise UserError(
            f"measure={label} looks at what each client trains, and with select={world.recipe.select.label} there is "
            "one client that has all data; use measure=personal."
        )
