"""What a chunk of clients does in a round: it downloads a slice, trains it, and uploads a slice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    features: dict[str, Tensor]
    label: Tensor
    real: Tensor

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

    def client(self, c: int) -> Work:
        """The same work for one client alone."""
        one = slice(c, c + 1)
        return Work(
            self.round,
            self.clients[one],
            self.hold,
            self.down,
            self.layout,
            {n: v[one] for n, v in self.start.items()},
            {n: v[one] for n, v in self.features.items()},
            self.label[one],
            self.real[one],
        )


def download(world: World, recipe: Recipe, model: Values, t: int, clients: Tensor, draws: Tensor) -> Work:
    """Hand out slices and draw batches; every client starts from what it kept, overlaid by what came down."""
    samples = world.task.federation.train
    hold = recipe.slices.hold(t, clients)
    down = recipe.slices.down(t, clients, hold)
    scale = recipe.select.batch_scale()
    batches = recipe.local.batches(t, clients, draws, samples.sizes[clients], scale, world.seed)
    features, label = samples.batch(samples.offsets[clients][:, None, None] + batches.index)
    layout = _relabel(world, recipe, hold, features)
    start = layout.gather(model)
    _recall(world, recipe, clients, hold, down, start)
    return Work(t, clients, hold, down, layout, start, features, label, batches.real)


def upload(world: World, recipe: Recipe, model: Values, work: Work, end: Values) -> tuple[Upload, Tensor]:
    """What the chunk sends, and who of it sent something broken; what clients keep is put away."""
    hold, layout = work.hold, work.layout
    up = recipe.slices.up(work.round, work.clients, hold, work.start, end)
    if recipe.rows_suffice:
        values = {name: end[name] - work.start[name] for name in layout.axes}
    else:
        layout = up
        values = up.pick(end, hold)
        values = {name: values[name] - then for name, then in up.gather(model).items()}
    weights = recipe.combine.weigh(work.clients)
    sent, broken = Upload(work.clients, weights, up, layout, values).without_broken()
    fine = ~broken
    recipe.slices.sent(work.clients, up, fine)
    for name in recipe.slices.kept() if recipe.slices.remembers else ():
        world.store.put(f"kept/{name}", work.clients[fine], end[name][fine])
    return sent, broken


def _relabel(world: World, recipe: Recipe, hold: Slice, features: dict[str, Tensor]) -> Slice:
    """Turn global row ids into places in the client's own tables, in place; the layout those tables then have."""
    axes: dict[str, Axis | None] = {}
    for sets in world.task.index_sets:
        axis = hold.axes[sets.tables[0]][0] if sets.tables[0] in hold.axes else None
        if recipe.rows_suffice:
            axis = sets.relabel(features)
        elif axis is not None:
            sets.relabel(features, axis)
        axes |= dict.fromkeys(sets.tables, axis)
    return hold.replace(axes)


def _recall(world: World, recipe: Recipe, clients: Tensor, hold: Slice, down: Slice, start: Values) -> None:
    """Put what clients kept under what came down."""
    for name in recipe.slices.kept() if recipe.slices.remembers else ():
        memory = world.store.get(f"kept/{name}", clients)
        if memory is None:
            continue
        values, known = memory
        known = known.view(-1, *[1] * (values.dim() - 1))
        start[name] = torch.where(known & ~down.inside(hold, name).to(known.device), values, start[name])
