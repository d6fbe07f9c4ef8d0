"""Clients with networks of different widths: prefix slices, their packing, narrow training, HeteroFL and FjORD."""

import copy
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedslice.combine import Coverage
from fedslice.core.encodings import Floats, Ids
from fedslice.core.entries import OnSlice
from fedslice.core.errors import Refused, UserError
from fedslice.core.header import HEADER_BYTES, Header, Kind, open_message
from fedslice.core.message import Field, Fields, Message, unpack
from fedslice.core.slice import Axis, Slice, Values
from fedslice.data.federation import Federation
from fedslice.models.images import ImageClassifier
from fedslice.network.graph import Layer
from fedslice.recipe import Recipe
from fedslice.select import Everyone
from fedslice.slices import Width
from fedslice.slices.width import WidthMemory
from fedslice.task import Task
from fedslice.training.engines.choose import ENGINES
from fedslice.training.events import Listener, Taken
from fedslice.training.experiment import Experiment, spec_of
from fedslice.training.population import Population
from fedslice.training.schema import WELCOME
from fedslice.training.work import Work
from toys import (
    MLP,
    Cut,
    assert_close,
    classifier,
    cuts,
    double,
    mlp,
    numbers_like,
    plain_training,
    run,
    values_on,
)

TRAINING = {"iterations": 3, "batch_size": 4, "lr": 0.05}
ALL = torch.arange(6)


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


def ready(task: Task, seed: int = 0, **options: Any) -> tuple[Width, WidthMemory]:
    """The part, and what it knows of a task's clients."""
    recipe = Recipe(select=Everyone(), slices=Width(**options), combine=Coverage())
    memory = Population(spec_of(task, recipe, seed, None), task).parts["slices"]
    assert isinstance(recipe.slices, Width)
    assert isinstance(memory, WidthMemory)
    return recipe.slices, memory


def work_of(experiment: Experiment, clients: Tensor) -> Work:
    """What these clients would train on in the next round."""
    population = experiment.population
    return population.prepare(experiment.server.glimpse(population.ask(experiment.round, clients)))


class Uploads(Listener):
    """Every chunk of uploads that the server has decoded."""

    def __init__(self, experiment: Experiment) -> None:
        self.seen: list[Taken] = []
        experiment.events.add(self)

    def taken(self, event: Taken) -> None:
        self.seen.append(event)


def by_width(widths: str, **options: Any) -> Recipe:
    return Recipe(select=Everyone(), slices=Width(widths=widths), combine=Coverage()).with_options(TRAINING | options)


# --- slices -------------------------------------------------------------------------------------------------------


@given(cuts(), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_spread_puts_values_at_their_places_and_zeros_elsewhere(cut: Cut, seed: int) -> None:
    values = values_on(cut, seed)
    for name, axes in cut.slice.axes.items():
        found = cut.slice.spread(name, values[name])
        expected = torch.zeros(cut.slice.clients, *cut.slice.shapes[name], dtype=torch.float64)
        cleared = torch.zeros_like(values[name])
        for c in range(cut.slice.clients):
            own = cut.real(name, c)
            expected[c][np.ix_(*cut.chosen[name][c])] = values[name][c][own]
            cleared[c][own] = values[name][c][own]
            assert cut.slice.own(name, c) == tuple(
                slice(None) if axis is None else own[dim] for dim, axis in enumerate(axes)
            )
        assert torch.equal(found, expected)
        assert torch.equal(cut.slice.clear(name, values[name]), cleared)


@st.composite
def narrow(draw: st.DrawFn) -> tuple[list[int], Slice]:
    """Hidden outputs of some of the clients in any order, and what they hold."""
    hidden = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    clients = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    part, memory = ready(toy(), widths=",".join(map(str, hidden)))
    return [hidden[c % len(hidden)] for c in clients], part.hold(memory, 0, torch.tensor(clients))


@cache
def toy() -> Task:
    return mlp()


@given(narrow(), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_a_narrow_slice_is_a_prefix_and_comes_back(drawn: tuple[list[int], Slice], seed: int) -> None:
    """T38: gather, spread, pick; summed and divided by who holds it, a model is itself where somebody does."""
    hidden, hold = drawn
    shapes = toy().shapes
    model = numbers_like(shapes, seed)
    values = hold.gather(model)
    total, cover = ({name: torch.zeros_like(value) for name, value in model.items()} for _ in range(2))
    hold.scatter_add(total, values)
    hold.scatter_add(cover, {name: torch.ones_like(value) for name, value in values.items()})
    whole = {name: value.expand(len(hidden), *value.shape) for name, value in model.items()}
    picked = hold.pick(whole, Slice.whole(len(hidden), shapes))
    again = {name: hold.spread(name, value) for name, value in values.items()}
    for c, outputs in enumerate(hidden):
        cuts = {
            "first.weight": (outputs, 4),
            "first.bias": (outputs,),
            "second.weight": (3, outputs),
            "second.bias": (3,),
        }
        for name, counts in cuts.items():
            own = tuple(map(slice, counts))
            assert torch.equal(values[name][c][hold.own(name, c)], model[name][own])
            assert torch.equal(picked[name][c][hold.own(name, c)], model[name][own])
            expected = torch.zeros_like(model[name])
            expected[own] = model[name][own]
            assert torch.equal(again[name][c], expected)
    for name, value in model.items():
        held = cover[name] > 0
        assert torch.equal(total[name][held], (value * cover[name])[held])
        assert not total[name][~held].any()
    assert hold.numbers().tolist() == [outputs * (4 + 1 + 3) + 3 for outputs in hidden]


# --- bytes --------------------------------------------------------------------------------------------------------


FINGERPRINT = bytes(8)


def position_fields(part: Slice) -> dict[str, Field]:
    """A field for every dimension of which a slice leaves something out."""
    sliced = ((n, d, part.shapes[n][d]) for n, axes in part.axes.items() for d, a in enumerate(axes) if a is not None)
    return {f"{name}/{dim}": Field(Ids(), of=extent) for name, dim, extent in sliced}


def from_axes(part: Slice, axes: Mapping[str, Axis]) -> Slice:
    """The slice that these fields describe: parameters and sliced dimensions are those of ``part``."""
    found = {n: tuple(axes.get(f"{n}/{dim}") for dim in range(len(own))) for n, own in part.axes.items()}
    return Slice(1, part.shapes, found)


def value_fields(part: Slice) -> Fields:
    return {"values": Field(Floats(torch.float64), on=part)}


def message(part: Slice, values: Values) -> Message:
    """Positions and values."""
    who = torch.arange(part.clients)
    ids = position_fields(part)
    axes = {name: part.axes[name.partition("/")[0]][int(name.rpartition("/")[2])] for name in ids}
    head = Header(Kind.UPLOAD, 0, who, who, who, who)
    return Message(head, {**ids, **value_fields(part)}, {**axes, "values": OnSlice(part, values)})


def read(data: bytes, part: Slice) -> tuple[Slice, Message]:
    """The slice that a message describes, and the message."""
    found = unpack(
        open_message(data, FINGERPRINT), position_fields(part), lambda axes: value_fields(from_axes(part, axes))
    )
    return from_axes(part, {n: body for n, body in found.body.items() if isinstance(body, Axis)}), found


@given(narrow())
@settings(deadline=None, max_examples=30)
def test_first_positions_cost_no_ids_and_survive_packing(drawn: tuple[list[int], Slice]) -> None:
    hidden, hold = drawn
    model = numbers_like(toy().shapes, 0)
    sent = message(hold, hold.gather(model))
    assert not any(bool(sent.sizes()[name].any()) for name in position_fields(hold))
    for c in range(len(hidden)):
        data = sent.pack(c, FINGERPRINT)
        assert len(data) == int(sent.framing()[c]) + 8 * int(hold.numbers()[c])
        back, found = read(data, hold)
        values = found.body["values"]
        assert isinstance(values, OnSlice)
        assert int(back.numbers()[0]) == int(hold.numbers()[c])
        own = back.gather(model)
        assert own.keys() == values.values.keys()
        for name, value in own.items():
            assert torch.equal(value, values.values[name])


@pytest.mark.parametrize(
    ("count", "first", "said"),
    [
        (7, True, "names 7 of 6 positions"),
        (2**63 - 1, True, f"names {2**63 - 1} of 6 positions"),
        (5, True, "has a body of 32 bytes, its header says 40"),
        (3, True, "has a body of 32 bytes, its header says 24"),
        (4, False, "has a body of 32 bytes, its header says 33"),
        (10**15, True, "names 1000000000000000 of 6 positions"),
        (10**15, False, "names 1000000000000000 of 6 positions"),
    ],
)
def test_a_header_that_lies_about_first_positions_is_refused(count: int, first: bool, said: str) -> None:
    held = Axis(torch.tensor([4]), torch.arange(4)[None], torch.tensor([True]))
    part = Slice(1, toy().shapes, {"first.bias": (held,)})
    data = message(part, {"first.bias": torch.ones(1, 4)}).pack(0, FINGERPRINT)
    number = slice(HEADER_BYTES, HEADER_BYTES + 8)
    assert data[number] == struct.pack("<Q", 4 << 1 | True)
    assert read(data, part)[0].numbers().tolist() == [4]
    with pytest.raises(Refused, match=said):
        read(data[: number.start] + struct.pack("<Q", count << 1 | first) + data[number.stop :], part)


@pytest.mark.parametrize("wire", [False, True], ids=["in memory", "packed"])
@pytest.mark.parametrize(
    "options", [{}, {"drawn": True}, {"own_labels": True}, {"slices": "channel-dropout", "rate": 0.5}], ids=str
)
def test_the_ledger_counts_what_narrow_clients_pack(options: dict[str, Any], wire: bool) -> None:
    """Values, and the names of outputs of which some stay at home: here never more than 8, so a byte for each layer.

    A width that is drawn is asked for by its number, in a byte.
    """
    experiment = Experiment(toy(), by_width("1,0.5,0.34", **options), rounds=3, chunk=4, wire=wire)
    uploads = Uploads(experiment)
    experiment.run()
    packed, counted = [], []
    for event in uploads.seen:
        sent, part = event.message, event.part
        names = [name for name, field in sent.fields.items() if isinstance(field.encoding, Ids)]
        for c in range(sent.clients):
            data = sent.pack(c, experiment.spec.fingerprint)
            packed.append(len(open_message(data, experiment.spec.fingerprint).payload))
            named = [int(sent.body[name].counts[c]) < int(sent.fields[name].extents(sent.clients)[c]) for name in names]
            counted.append(4 * int(part.numbers()[c]) + sum(named))
    assert len(packed) == 18
    assert packed == counted
    assert experiment.ledger.up_bytes == sum(packed) + (18 if "drawn" in options else 0)
    facts = {name: size for name, size in experiment.ledger.enrol.items() if name not in WELCOME}
    assert facts == {"samples": 6 * 4, "width": 6}, "the number of a network is a byte"


# --- what clients hold --------------------------------------------------------------------------------------------


SETS = {
    "feddd-a": [3_973_194, 2_203_466, 2_191_206, 2_153_446, 2_153_446],
    "feddd-b": [3_973_194, 2_767_690, 1_578_826, 1_458_090, 609_962],
}


@pytest.mark.parametrize("name", SETS)
def test_the_sub_models_of_s3(name: str) -> None:
    """Tables 3 and 6 as parameters that clients hold, in turn; the global model is the first."""
    client = np.repeat(np.arange(7), 1)
    pictures = np.random.default_rng(0).integers(0, 256, (7, 3, 32, 32)).astype(np.uint8)
    data = Federation.from_arrays(client=client, features={"image": pictures}, label=client % 3, test=0.0)
    task = Task(
        data,
        lambda: ImageClassifier("vgg-a1", (3, 32, 32), (0.5,) * 3, (0.2,) * 3),
        nn.CrossEntropyLoss(reduction="none"),
    )
    experiment = Experiment(task, by_width(name), rounds=1)
    expected = [*SETS[name], *SETS[name][:2]]
    slices, memory = experiment.recipe.slices, experiment.population.parts["slices"]
    assert slices.held(memory, torch.arange(7)).tolist() == expected
    assert experiment.server.states["slices"].held().tolist() == expected, "as it was told at enrolment"


@pytest.mark.usefixtures("float64")
def test_coverage_is_the_share_of_clients_that_hold_a_channel() -> None:
    """Six clients in turn with 6, 3 and 1 of the first layer's outputs; all have the classes."""
    part = Experiment(mlp(), by_width("1,0.5,0.1"), rounds=1).server.states["slices"]
    first, second = (Layer(n, o, 1, (f"{n}.weight",)) for n, o in (("first", 6), ("second", 3)))
    assert part.coverage(first).tolist() == [1, 2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 3]
    assert part.coverage(second).tolist() == [1, 1, 1]
    assert part.held().tolist() == [51, 27, 11] * 2


@pytest.mark.parametrize("widths", ["0", "1.5", "-3", "nan", "", "1,,1", "a", "3-0", "2.5-3", "feddd-c", "1e-3"])
def test_widths_that_are_none_are_refused(widths: str) -> None:
    with pytest.raises(
        UserError, match=r"slices=width: widths=.* is no width; give shares above 0 up to 1 .*feddd-b\.$"
    ) as told:
        Recipe().with_options({"slices": "width", "widths": widths})
    assert "\n" not in str(told.value)


# --- training -----------------------------------------------------------------------------------------------------


def cnn1(small: bool = False) -> ImageClassifier:
    """FedDD's CNN1, or by hand the same with fewer outputs; 4 by 4 pixels are left of each channel."""
    model = ImageClassifier("cnn1", (1, 28, 28), (0.5,), (0.25,))
    if small:
        model.conv1, model.conv2 = nn.Conv2d(1, 3, 5), nn.Conv2d(3, 7, 5)
        model.full1, model.classes = nn.Linear(7 * 16, 20), nn.Linear(20, 10)
    return model


def on_images(model: nn.Module) -> Task:
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(4), (3, 5, 2, 4))
    pictures = draw.integers(0, 256, (14, 1, 28, 28)).astype(np.uint8)
    data = Federation.from_arrays(client=client, features={"image": pictures}, label=draw.integers(0, 10, 14), test=0.0)
    return Task(data, model, nn.CrossEntropyLoss(reduction="none"))


NETWORKS: dict[str, tuple[Callable[[], Task], Callable[[Task], Task], str]] = {
    "mlp": (mlp, lambda task: Task(task.federation, MLP(hidden=2), task.loss), "1,2"),
    "cnn1": (lambda: on_images(cnn1()), lambda task: on_images(cnn1(small=True)), "1,3-7-20"),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{}, {"local": "prox", "mu": 0.5}, {"clip": 0.1}], ids=["sgd", "prox", "clip"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_narrow_client_trains_a_network_of_its_own_size(network: str, options: dict[str, Any], engine: str) -> None:
    """Beside wide ones it does what a plain module of its size does alone; padding stays zero, to the bit."""
    make, shrink, widths = NETWORKS[network]
    torch.manual_seed(0)
    task = make()
    small, recipe = shrink(task), by_width(widths, **options)
    experiment = Experiment(task, recipe, rounds=1)
    work = work_of(experiment, torch.arange(4))
    end = ENGINES[engine]().train(task, recipe.local, work).end
    padded = 0
    for c in range(4):
        alone = small if c % 2 else task
        start = {n: task.initial(0)[n][tuple(map(slice, shape))].clone() for n, shape in alone.shapes.items()}
        expected = plain_training(alone, recipe, start, 0, c, mu=options.get("mu", 0.0))
        for name, value in expected.items():
            own = work.layout.own(name, c)
            torch.testing.assert_close(end[name][c][own], value, rtol=0, atol=1e-12)
            rest = end[name][c].clone()
            rest[own] = 0
            assert not rest.any(), "padding"
            padded += rest.numel() - value.numel()
    assert padded, "there must be some"


class Watching(MLP):
    """Notes how many outputs its first layer has."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        seen.append(hidden.shape[-1])
        return self.second(hidden.tanh())


seen: list[int] = []


def test_one_client_at_a_time_trains_nothing_but_its_own_width() -> None:
    task = classifier(Watching())
    experiment = Experiment(task, by_width("1,2,4"), rounds=1)
    work = work_of(experiment, torch.arange(3))
    seen.clear()
    ENGINES["sequential"]().train(task, experiment.recipe.local, work)
    assert seen == [6] * 3 + [2] * 3 + [4] * 3


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drawn": True},
        {"own_labels": True},
        {"codec": "subspace", "combine": "mean", "rank": 2, "warmup": 1},
    ],
    ids=["width", "drawn", "own labels", "projected"],
)
def test_chunks_and_engines_agree(options: dict[str, Any]) -> None:
    task, recipe = mlp(), by_width("1,0.5,0.34", **options)
    found = [
        run(task, recipe, rounds=4, engine=engine, chunk=chunk)
        for engine, chunk in (("vectorized", 6), ("vectorized", 1), ("vectorized", 4), ("sequential", 6))
    ]
    for other in found[1:]:
        assert_close(other.model, found[0].model, rtol=0, atol=1e-12)
        assert other.ledger.down_bytes == found[0].ledger.down_bytes


def test_bytes_do_not_depend_on_the_chunk() -> None:
    recipe = by_width("1,0.5", own_labels=True)
    assert run(toy(), recipe, chunk=1).ledger.up_bytes == run(toy(), recipe, chunk=6).ledger.up_bytes


@pytest.mark.usefixtures("float64")
def test_a_merged_value_is_the_mean_of_who_holds_it() -> None:
    task, recipe = mlp(), by_width("1,2", weights="uniform")
    small = Task(task.federation, MLP(hidden=2), task.loss)
    total, held = ({n: torch.zeros(shape) for n, shape in task.shapes.items()} for _ in range(2))
    for c in range(6):
        alone = small if c % 2 else task
        start = {n: task.initial(0)[n][tuple(map(slice, shape))] for n, shape in alone.shapes.items()}
        for name, value in plain_training(alone, recipe, start, 0, c).items():
            own = tuple(map(slice, value.shape))
            total[name][own] += value
            held[name][own] += 1
    assert_close(run(task, recipe).model, {n: total[n] / held[n] for n in total}, rtol=0, atol=1e-12)


# --- FjORD --------------------------------------------------------------------------------------------------------


def test_drawn_widths_are_among_those_no_wider_than_the_clients_own() -> None:
    part, memory = ready(toy(), widths="0.5,6,1,0.1,4", drawn=True)
    hidden = {27: 3, 51: 6, 11: 1, 35: 4}
    own = [3, 6, 6, 1, 4, 3]
    seen: list[set[int]] = [set() for _ in own]
    for t in range(60):
        together = part.hold(memory, t, ALL).numbers().tolist()
        alone = [int(part.hold(memory, t, torch.tensor([c])).numbers()) for c in range(6)]
        assert together == alone, "a draw knows nothing of the chunk"
        for c, number in enumerate(together):
            seen[c].add(hidden[number])
    assert seen == [{w for w in (1, 3, 4, 6) if w <= mine} for mine in own]
    assert part.held(memory, ALL).tolist() == [8 * mine + 3 for mine in own], (
        "a device is as large as the widest it trains"
    )


def test_drawn_widths_change_with_round_client_and_seed() -> None:
    (part, memory), (_, other) = (ready(toy(), seed, widths="1,1,1,0.5", drawn=True) for seed in (0, 1))
    draws = torch.stack([part.hold(memory, t, ALL).numbers() for t in range(40)])
    assert all(len(column.unique()) == 2 for column in draws.T[:3])
    assert len({tuple(column.tolist()) for column in draws.T[:3]}) == 3
    assert not torch.equal(draws, torch.stack([part.hold(other, t, ALL).numbers() for t in range(40)]))


# --- HeteroFL -----------------------------------------------------------------------------------------------------


CLASSES = [{0}, {0, 1}, {1}]


def of_classes() -> Task:
    """Client c has samples of ``CLASSES[c]``; nobody has any of class 2."""
    draw = np.random.default_rng(0)
    pairs = [(c, label) for c, mine in enumerate(CLASSES) for label in (*mine, *mine)]
    client, label = (np.array(column) for column in zip(*pairs, strict=True))
    x = draw.normal(size=(len(pairs), 4))
    torch.manual_seed(0)
    data = Federation.from_arrays(client=client, features={"x": x}, label=label, test=0.0)
    return Task(data, MLP(), nn.CrossEntropyLoss(reduction="none"))


@pytest.mark.usefixtures("float64")
def test_only_rows_of_own_classes_go_up_and_a_class_of_nobody_keeps_its_row() -> None:
    task, recipe = of_classes(), by_width("1", own_labels=True, weights="uniform")
    experiment = Experiment(task, recipe, rounds=1)
    uploads = Uploads(experiment)
    experiment.run()
    (event,) = uploads.seen
    for name, row in itertools.product(("second.weight", "second.bias"), range(3)):
        sent = event.part.inside(Slice.whole(3, task.shapes), name).view(3, -1)[:, row].tolist()
        assert sent == [row in CLASSES[c] for c in event.message.head.clients.tolist()]
    ends = [plain_training(task, recipe, task.initial(0), 0, c) for c in range(3)]
    for name in ("second.weight", "second.bias"):
        assert torch.equal(experiment.model[name][2], task.initial(0)[name][2])
        for row in (0, 1):
            mean = sum(end[name][row] for end, mine in zip(ends, CLASSES, strict=True) if row in mine) / 2
            torch.testing.assert_close(experiment.model[name][row], mean, rtol=0, atol=1e-12)
    body = sum(end["first.weight"] for end in ends) / 3
    torch.testing.assert_close(experiment.model["first.weight"], body, rtol=0, atol=1e-12)
    assert experiment.ledger.down_bytes == 3 * 51 * 8


@pytest.mark.parametrize("label", [np.arange(12) % 3 + 0.5, np.arange(12) % 4, np.arange(12) % 3 - 1])
def test_own_labels_that_are_no_classes_are_refused(label: np.ndarray) -> None:
    def loss(output: Tensor, label: Tensor) -> Tensor:
        return output.sum(-1) - label

    data = Federation.from_arrays(client=np.arange(12) % 2, features={"x": np.ones((12, 4))}, label=label, test=0.0)
    with pytest.raises(UserError, match=r"own_labels=true needs class numbers from 0 to 2 .*'second'; leave it out\.$"):
        ready(Task(data, copy.deepcopy(toy().module), loss), own_labels=True)
