"""Toys for the tests of the core: small federations and modules, plain reference loops, generators of slices."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from fedslice.core.memory import Memory
from fedslice.core.part import ServerRun, State
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.update import Update
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.data.samples import Samples
from fedslice.local import Local, Term
from fedslice.models.discriminative import Discriminative
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.select import FedCS, Oort
from fedslice.select.base import Cohort
from fedslice.task import Task
from fedslice.training.devices import Devices
from fedslice.training.enrolled import Enrolled
from fedslice.training.events import Listener, Taken
from fedslice.training.experiment import Experiment
from fedslice.training.work import Work

torch.set_num_threads(1)  # toys are too small to share out

SIZES = (3, 7, 1, 12, 5, 4)  # training samples per client, unequal on purpose
ITEMS, TAGS = 14, 6


@contextmanager
def double() -> Iterator[None]:
    """Tensors made inside are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# --- modules and tasks ------------------------------------------------------------------------------------------


def squared(output: Tensor, label: Tensor) -> Tensor:
    return (output - label) ** 2


def squared_single(output: Tensor, label: Tensor) -> Tensor:
    return (output.squeeze(-1) - label) ** 2


class Recommender(nn.Module):
    """Two tables, one of them indexed by a column pair and by a history, and a dense layer."""

    def __init__(self, items: int = ITEMS, tags: int = TAGS, dim: int = 3):
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.tag = nn.Embedding(tags, dim)
        self.out = nn.Linear(3 * dim, 1)

    def forward(self, item: Tensor, tag: Tensor, history: Tensor, history_length: Tensor) -> Tensor:
        valid = torch.arange(history.shape[-1]) < history_length[..., None]
        read = (self.item(history) * valid[..., None]).sum(-2)
        return self.out(torch.cat([self.item(item).sum(-2), self.tag(tag), read.tanh()], -1)).squeeze(-1)


class Plain(nn.Module):
    """The same without a history."""

    def __init__(self, items: int = ITEMS, tags: int = TAGS, dim: int = 3):
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.tag = nn.Embedding(tags, dim)
        self.out = nn.Linear(2 * dim, 1)

    def forward(self, item: Tensor, tag: Tensor) -> Tensor:
        return self.out(torch.cat([self.item(item).sum(-2), self.tag(tag)], -1)).squeeze(-1)


class MLP(nn.Module):
    """Two layers of which every output channel can be left out."""

    def __init__(self, inputs: int = 4, hidden: int = 6, classes: int = 3):
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


class Pair(nn.Module):
    """A shared and a private encoder side by side, and a private head (FDRL)."""

    def __init__(self, inputs: int = 4, hidden: int = 3, classes: int = 3):
        super().__init__()
        self.shared = nn.Linear(inputs, hidden)
        self.private = nn.Linear(inputs, hidden)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.shared(x).tanh(), self.private(x).tanh()], -1))


class Reader(nn.Module):
    """An encoder with two tables."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, 3)
        self.tag = nn.Embedding(TAGS, 3)
        self.out = nn.Linear(6, 4)

    def forward(self, item: Tensor, tag: Tensor) -> Tensor:
        return self.out(torch.cat([self.item(item).sum(-2), self.tag(tag)], -1)).tanh()


def recommender(
    sizes: Sequence[int] = SIZES, seed: int = 0, ragged: bool = True, items: int = ITEMS, everything: bool = False
) -> Task:
    """A recommender in which clients hold few and differing rows, or (``everything``) all of them."""
    draw = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    count = len(client)
    low = draw.integers(0, items - 4, len(sizes))[client]
    item = low[:, None] + draw.integers(0, 4, (count, 2))
    tag = draw.integers(0, TAGS, count)
    features: dict[str, Any] = {"item": item, "tag": tag}
    if everything:
        firsts = np.searchsorted(client, np.arange(len(sizes)))
        assert min(sizes) >= max((items + 1) // 2, TAGS)
        for first in firsts:
            item[first : first + (items + 1) // 2] = np.resize(np.arange(items), ((items + 1) // 2, 2))
            tag[first : first + TAGS] = np.arange(TAGS)
    if ragged:
        lengths = draw.integers(0, 4, count)
        features["history"] = Ragged.from_lists(
            [(low[i] + draw.integers(0, 4, n)).tolist() for i, n in enumerate(lengths)]
        )
    federation = Federation.from_arrays(client=client, features=features, label=draw.normal(size=count), test=0.0)
    torch.manual_seed(seed)
    tables = {"item.weight": ("item", "history") if ragged else "item", "tag.weight": "tag"}
    return Task(federation, Recommender(items) if ragged else Plain(items), squared, tables=tables)


def classifier(module: nn.Module, sizes: Sequence[int] = SIZES, seed: int = 0) -> Task:
    """A module that takes four numbers and tells three classes apart."""
    draw = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = draw.normal(size=(len(client), 4)) + 0.5 * client[:, None]
    federation = Federation.from_arrays(
        client=client, features={"x": x}, label=draw.integers(0, 3, len(client)), test=0.0
    )
    return Task(federation, module, nn.CrossEntropyLoss(reduction="none"))


def mlp(sizes: Sequence[int] = SIZES, seed: int = 0) -> Task:
    torch.manual_seed(seed)
    return classifier(MLP(), sizes, seed)


def pair(sizes: Sequence[int] = SIZES, seed: int = 0) -> Task:
    torch.manual_seed(seed)
    return classifier(Pair(), sizes, seed)


def readers(sizes: Sequence[int] = SIZES) -> Task:
    """A pair of them; the clients hold other rows each, and not the same number."""
    torch.manual_seed(0)
    tables = {f"{who}.{what}.weight": what for who in ("shared", "private") for what in ("item", "tag")}
    model = Discriminative(Reader(), Reader(), 1)
    return Task(recommender(sizes, ragged=False).federation, model, squared_single, tables=tables)


def fitting(name: str, sizes: Sequence[int] = SIZES, **options: Any) -> tuple[Task, Recipe]:
    """A named recipe at toy size and a toy task that it can train."""
    small: dict[str, dict[str, Any]] = {
        "centralsgd": {"cohort": 2},
        "feddd": {"rate": 0.5, "full_every": 3},
        "flss": {"cohort": 4, "rank": 3, "warmup": 1, "every": 2},
        "fedcs": {"budget": 0.7},
        "oort": {"budget": 0.7},
        "fedgen": {"cohort": 4, "server_steps": 2, "width": 4, "generated": 4},
    }
    projected = ("flss", "sign+flss", "fedprox+flss")
    small |= dict.fromkeys(projected, small["flss"])
    classified = ("moon", "fedgen", "fedntd")
    channelled = ("feddd", "heterofl", "fjord", *projected, *classified)
    task = mlp(sizes) if name in channelled else pair(sizes) if name == "fdrl" else recommender(sizes)
    own = small.get(name, {"cohort": 4}) | {"iterations": 3, "batch_size": 4, "lr": 0.05}
    if "epochs" in options:
        own.pop("iterations")
    return task, RECIPES[name].with_options(own | options)


def training(*terms: Term | type[Term], **settings: Any) -> Local:
    """Local training with these terms, or those of these kinds, and settings by their short names."""
    made = Local(tuple(term if isinstance(term, Term) else term() for term in terms))
    for name, value in settings.items():
        if name in ("clip", "accumulate"):
            made = made.changed({name: value})
        else:
            (owner,) = (owner for owner, piece in made.inside().items() if name in piece.setting_names())
            made = made.changed({owner: made.inside()[owner].changed({name: value})})
    return made


def memory_of(experiment: Experiment, label: str | None = None) -> Memory:
    """What clients remember for a term of the local method; for the first one by default."""
    terms: dict[str, Memory] = experiment.population.parts["local"].terms
    return terms[label or next(iter(terms))]


def state_of(experiment: Experiment, label: str | None = None) -> Any:
    """The server's state of a term of the local method; of the first one by default."""
    terms = experiment.server.states["local"].terms
    return terms[label or next(iter(terms))]


def begun(task: Task, recipe: Recipe, **options: Any) -> Experiment:
    """An experiment, with devices if its recipe cannot do without."""
    if isinstance(recipe.select, FedCS | Oort):
        options.setdefault("devices", Devices.drawn(len(task.federation), 0))
    return Experiment(task, recipe, **options)


def run(task: Task, recipe: Recipe, rounds: int = 1, **options: Any) -> Experiment:
    """An experiment that has run its rounds."""
    experiment = begun(task, recipe, rounds=rounds, **options)
    experiment.run()
    return experiment


class _Updates(Listener):
    def __init__(self) -> None:
        self.seen: list[Update] = []

    def taken(self, event: Taken) -> None:
        self.seen.append(event.update)


def watched(experiment: Experiment) -> list[Update]:
    """Every update that the server decodes, from now on."""
    listener = _Updates()
    experiment.server.events.add(listener)
    return listener.seen


def chosen(recipe: Recipe, t: int, clients: int = len(SIZES), seed: int = 0) -> Cohort:
    """The cohort of a round out of so many enrolled clients, for a part that knows nothing else of them."""
    enrolled = Enrolled()
    enrolled.add(torch.arange(clients), {})
    run = SimpleNamespace(enrolled=enrolled, spec=SimpleNamespace(seed=seed))
    return recipe.select.choose(State(cast(ServerRun, run)), t)


def kept(experiment: Experiment, client: int) -> dict[str, Tensor]:
    """What a client remembers."""
    out = {}
    for name in experiment.task.shapes:
        memory = experiment.population.parts["slices"].get(f"kept/{name}", torch.tensor([client]))
        if memory is not None and bool(memory[1][0]):
            out[name] = memory[0][0].clone()
    return out


def work_of(experiment: Experiment, clients: Tensor) -> Work:
    """What these clients would train on in the round at hand."""
    request = experiment.population.ask(experiment.round, clients)
    return experiment.population.prepare(experiment.server.glimpse(request))


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Equal to the bit."""
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_close(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], rtol: float = 1e-6, atol: float = 1e-9
) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


# --- plain reference computations ---------------------------------------------------------------------------------


def samples_of(samples: Samples, client: int) -> list[int]:
    return list(range(int(samples.offsets[client]), int(samples.offsets[client + 1])))


def index_set(task: Task, table: str, client: int) -> set[int]:
    """S(i), by looking at every sample of the client; the padding row of a sequence belongs to everyone."""
    features = task.tables[table]
    found: set[int] = set()
    for name in [features] if isinstance(features, str) else features:
        column = task.federation.train.features[name]
        for sample in samples_of(task.federation.train, client):
            if isinstance(column, Ragged):
                found |= set(column.values[column.offsets[sample] : column.offsets[sample + 1]].tolist())
                found.add(0)
            else:
                found |= set(column[sample].flatten().tolist())
    return found


def plain_training(
    task: Task,
    recipe: Recipe,
    start: Values,
    t: int,
    client: int,
    draw: int = 0,
    mu: float = 0.0,
    scale: int = 1,
    seed: int = 0,
    losses: list[float] | None = None,
) -> Values:
    """One client's local training with a module of its own and ``torch.optim.SGD``, sample numbers from the recipe."""
    samples, local = task.federation.train, recipe.local
    module = copy.deepcopy(task.module)
    named = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in start.items():
            named[name].copy_(value)
    optimizer = torch.optim.SGD(module.parameters(), lr=local.optimizer.lr * local.schedule.decay**t)
    who, again = torch.tensor([client]), torch.tensor([draw])
    batches = local.sampler.batches(t, who, again, samples.sizes[who], scale, seed)
    for index, real in zip(batches.index[0], batches.real[0], strict=True):
        chosen = index[real] + samples.offsets[client]
        if not len(chosen):
            continue
        features, label = samples.batch(chosen)
        loss = task.loss(module(**features), label).mean()
        if losses is not None:
            losses.append(loss.item())
        loss = loss + mu / 2 * sum(((p - start[n]) ** 2).sum() for n, p in named.items())
        optimizer.zero_grad()
        loss.backward()
        if local.clip is not None:
            norm = torch.sqrt(sum((p.grad**2).sum() for p in named.values()))
            if norm > local.clip:
                for p in named.values():
                    p.grad *= local.clip / norm
        optimizer.step()
    return {name: p.detach().clone() for name, p in named.items()}


# --- generators ---------------------------------------------------------------------------------------------------

Chosen = list[list[list[int]]]  # per client, per dimension: the positions held


@dataclass
class Cut:
    """A slice and the same in lists: ``chosen[name][client][dimension]``."""

    slice: Slice
    chosen: dict[str, Chosen]

    def real(self, name: str, client: int) -> tuple[slice, ...]:
        """Where a client's own values stand in the padded values of a parameter."""
        axes = self.slice.axes[name]
        lists = self.chosen[name][client]
        return tuple(slice(None) if a is None else slice(len(ids)) for a, ids in zip(axes, lists, strict=True))

    def padding(self, values: Values) -> dict[str, Tensor]:
        """True where a value is filled up."""
        out = {name: torch.ones_like(value, dtype=torch.bool) for name, value in values.items()}
        for name, client in itertools.product(self.slice.axes, range(self.slice.clients)):
            out[name][client][self.real(name, client)] = False
        return out

    def coordinates(self, name: str, client: int) -> set[tuple[int, ...]]:
        return set(itertools.product(*self.chosen[name][client])) if name in self.chosen else set()


def axis_of(lists: Sequence[Sequence[int]]) -> Axis:
    flat = torch.tensor([i for ids in lists for i in ids], dtype=torch.int64)
    return Axis.from_flat(flat, torch.tensor([len(ids) for ids in lists]))


def shapes_of(draw: st.DrawFn) -> dict[str, torch.Size]:
    extents = st.lists(st.integers(1, 5), min_size=1, max_size=3)
    return {name: torch.Size(draw(extents)) for name in "abc"[: draw(st.integers(1, 3))]}


def subset(draw: st.DrawFn, of: Sequence[int], least: int) -> list[int]:
    if not of:
        return []
    return sorted(draw(st.sets(st.sampled_from(list(of)), min_size=min(least, len(of)))))


@st.composite
def cuts(draw: st.DrawFn, least: int = 0, most_clients: int = 4, shapes: Mapping[str, torch.Size] | None = None) -> Cut:
    """Any slice of any few parameters: absent ones, several sliced dimensions, clients that hold nothing."""
    clients, shapes = draw(st.integers(1, most_clients)), shapes or shapes_of(draw)
    axes: dict[str, tuple[Axis | None, ...]] = {}
    chosen: dict[str, Chosen] = {}
    for name, shape in shapes.items():
        if draw(st.integers(0, 4)) == 0:
            continue
        own: list[Axis | None] = []
        lists: Chosen = [[] for _ in range(clients)]
        for extent in shape:
            every = list(range(extent))
            sliced = draw(st.booleans())
            picked = [subset(draw, every, least) if sliced else every for _ in range(clients)]
            own.append(axis_of(picked) if sliced else None)
            for c, ids in enumerate(picked):
                lists[c].append(ids)
        axes[name], chosen[name] = tuple(own), lists
    return Cut(Slice(clients, shapes, axes), chosen)


@st.composite
def shards(draw: st.DrawFn) -> list[Cut]:
    """A cohort in parts: slices of the same parameters, of which each part may leave out some."""
    shapes = shapes_of(draw)
    return draw(st.lists(cuts(shapes=shapes, most_clients=3), min_size=1, max_size=4))


@st.composite
def nested(draw: st.DrawFn, least: int = 0) -> tuple[Cut, Cut]:
    """A slice inside another: ``(inner, outer)``; some axes are the very same object."""
    outer = draw(cuts(least=least))
    clients = outer.slice.clients
    axes: dict[str, tuple[Axis | None, ...]] = {}
    chosen: dict[str, Chosen] = {}
    for name, theirs in outer.slice.axes.items():
        if draw(st.integers(0, 4)) == 0:
            continue
        own: list[Axis | None] = []
        lists: Chosen = [[] for _ in range(clients)]
        for dim, axis in enumerate(theirs):
            held = [outer.chosen[name][c][dim] for c in range(clients)]
            smaller = draw(st.booleans())
            picked = [subset(draw, ids, least) for ids in held] if smaller else held
            own.append(axis_of(picked) if smaller else axis)
            for c, ids in enumerate(picked):
                lists[c].append(ids)
        axes[name], chosen[name] = tuple(own), lists
    return Cut(Slice(clients, outer.slice.shapes, axes), chosen), outer


def numbers_like(shapes: Mapping[str, Sequence[int]], seed: int) -> Values:
    """Small whole numbers as float64: their sums are exact in any order."""
    draw = np.random.default_rng(seed)
    return {n: torch.from_numpy(draw.integers(-50, 50, tuple(s)).astype(np.float64)) for n, s in shapes.items()}


def values_on(cut: Cut, seed: int) -> Values:
    """Values of every client on a slice, padding included."""
    sizes = {
        name: (
            cut.slice.clients,
            *(e if a is None else a.ids.shape[1] for e, a in zip(cut.slice.shapes[name], axes, strict=True)),
        )
        for name, axes in cut.slice.axes.items()
    }
    return numbers_like(sizes, seed)
