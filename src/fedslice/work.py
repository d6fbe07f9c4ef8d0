"""What a chunk of clients does in a round: it downloads a slice, trains it, and uploads a slice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedslice.messages import Upload
from fedslice.parts import World
from fedslice.recipe import Recipe
from fedslice.slice import Axis, Slice, Values


@dataclass(frozen=True)
class Batch:
    """One step's samples for every client of a chunk: [clients, batch, …]."""

    features: dict[str, Tensor]
    label: Tensor
    share: Tensor  # what each sample weighs in its client's mean


@dataclass(frozen=True)
class Work:
    """A chunk of clients, ready to train.

    ``hold`` and ``down`` are what the method says a client holds and receives; ``layout`` is where the trained values
    sit, which may be less: table rows that no batch names cannot change.
    """

    round: int
    clients: Tensor
    hold: Slice
    down: Slice
    layout: Slice
    start: Values
    aside: Values  # what the local method brings besides
    reach: Tensor  # the sum of each client's step sizes
    features: dict[str, Tensor]
    label: Tensor
    real: Tensor
    squares: bool  # is the mean squared loss of each client's samples asked for?

    def steps(self) -> Iterator[Batch]:
        """The batches in their order; sequences are cut to the longest of the step."""
        shares = (self.real / self.real.sum(2, keepdim=True).clamp(min=1)).unbind(1)
        columns = {name: column.unbind(1) for name, column in self.features.items()}
        for s, (label, share) in enumerate(zip(self.label.unbind(1), shares, strict=True)):
            features = {name: column[s] for name, column in columns.items()}
            for name in self.features:
                if f"{name}_length" in features:
                    longest = int(features[f"{name}_length"].max())
                    features[name] = features[name][..., :longest]
            yield Batch(features, label, share)

    def part(self, some: slice | Tensor) -> Work:
        """The same work for some of the clients."""
        return replace(
            self,
            clients=self.clients[some],
            start={n: v[some] for n, v in self.start.items()},
            aside={n: v[some] for n, v in self.aside.items()},
            reach=self.reach[some],
            features={n: v[some] for n, v in self.features.items()},
            label=self.label[some],
            real=self.real[some],
        )

    def first(self, steps: int) -> Work:
        """The same work, cut to its first steps."""
        features = {n: v[:, :steps] for n, v in self.features.items()}
        return replace(self, features=features, label=self.label[:, :steps], real=self.real[:, :steps])


def download(world: World, recipe: Recipe, model: Values, t: int, clients: Tensor, draws: Tensor) -> Work:
    """Hand out slices and draw batches."""
    samples = world.task.federation.train
    hold = recipe.slices.hold(t, clients)
    down = recipe.slices.down(t, clients, hold)
    scale = recipe.select.batch_scale()
    batches = recipe.local.batches(t, clients, draws, samples.sizes_of(clients), scale, world.seed)
    features, label = samples.batch(samples.offsets[clients][:, None, None] + batches.index)
    layout = _relabel(world, recipe, clients, hold, features)
    start = begin(world, recipe, model, clients, hold, down, layout)
    aside = recipe.local.bring(clients, layout, down)
    reach = recipe.local.rate(t) * batches.real.any(2).sum(1).cpu().double()
    squares = recipe.select.squares
    return Work(t, clients, hold, down, layout, start, aside, reach, features, label, batches.real, squares)


def begin(
    world: World, recipe: Recipe, model: Values, clients: Tensor, hold: Slice, down: Slice, layout: Slice
) -> Values:
    """What clients start from: the global model, what they kept put over that, what came down over that.

    On a layout with table rows that a client does not hold, these are the server's.
    """
    start = layout.gather(model)
    if recipe.slices.narrows:  # channels that a client lacks, beside clients that have them, are as if they were not
        start |= {name: layout.clear(name, start[name]) for name in layout.axes if name not in world.task.tables}
    for name in recipe.slices.kept() if recipe.slices.remembers else ():
        recall(world, f"kept/{name}", name, clients, hold, down, layout, start)
    return start


def recall(
    world: World, memory: str, name: str, clients: Tensor, hold: Slice, down: Slice, layout: Slice, start: Values
) -> None:
    """Put a parameter's values that clients remember over the start, where they hold it and nothing comes down."""
    found = world.store.get(memory, clients)
    if found is None:
        return
    everywhere = Slice.whole(len(clients), layout.shapes, [name])
    values = layout.clear(name, layout.only([name]).pick({name: found[0]}, everywhere)[name])
    own = found[1].view(-1, *[1] * (values.dim() - 1))
    own = own & ~down.inside(layout, name).to(own.device)
    if layout.axes[name] != hold.axes[name]:
        own = own & hold.inside(layout, name).to(own.device)
    start[name] = torch.where(own, values, start[name])


def upload(world: World, recipe: Recipe, model: Values, work: Work, end: Values) -> tuple[Upload, Upload, Tensor]:
    """What the chunk sends of the model and besides, and who sent something broken; what clients keep is put away."""
    up = recipe.slices.up(work.round, work.clients, work.hold, work.start, end)
    sent, said = _sent(recipe, model, work, up, end), _said(recipe, work, up, end)
    fine = sent.fine() & said.fine()
    recipe.slices.sent(work.clients, up, fine)
    recipe.local.keep(work, end, fine)
    for name in recipe.slices.kept() if recipe.slices.remembers else ():
        world.store.put(f"kept/{name}", work.clients[fine], work.hold.spread(name, end[name])[fine])
    return sent.of(fine), said.of(fine), ~fine


def _sent(recipe: Recipe, model: Values, work: Work, up: Slice, end: Values) -> Upload:
    """How the model changed: on the layout, beyond which it drifted, or on all that goes up."""
    weights = recipe.combine.weigh(work.clients)
    if not recipe.rows_suffice:
        values = up.pick(end, work.hold)
        values = {name: up.clear(name, values[name] - then) for name, then in up.gather(model).items()}
        return Upload(work.clients, weights, up, up, values)
    values = {name: end[name] - work.start[name] for name in work.layout.axes}
    if not recipe.local.drifts:
        return Upload(work.clients, weights, up, work.layout, values)
    sent = Upload(work.clients, weights, up, work.layout, values, work.reach, recipe.local.field())
    for name, drift in work.layout.only(sent.drifting()).gather(sent.drift).items():
        reach = work.reach.to(drift).view(-1, *[1] * (drift.dim() - 1))
        values[name] = values[name] + reach * drift  # what is left when the drift, which all share, is taken out
    return sent


def _said(recipe: Recipe, work: Work, up: Slice, end: Values) -> Upload:
    """What the local method sends besides the model; the server adds it up, every client counting once."""
    report = recipe.local.report(work, end)
    slice_ = up.only(report)
    values = report if recipe.rows_suffice else slice_.pick(report, work.hold)
    layout = work.layout.only(report) if recipe.rows_suffice else slice_
    return Upload(work.clients, torch.ones(len(work.clients), dtype=torch.float64), slice_, layout, values)


def _relabel(world: World, recipe: Recipe, clients: Tensor, hold: Slice, features: dict[str, Tensor]) -> Slice:
    """Turn global row ids into places in the client's own tables, in place; the layout those tables then have."""
    axes: dict[str, Axis | None] = {}
    for sets in world.task.index_sets:
        axis = hold.axes[sets.tables[0]][0] if sets.tables[0] in hold.axes else None
        if recipe.rows_suffice:
            axis = sets.relabel(features, also=recipe.local.rows(sets.tables[0], clients))
        elif axis is not None:
            sets.relabel(features, axis)
        axes |= dict.fromkeys(sets.tables, axis)
    return hold.replace(axes)
