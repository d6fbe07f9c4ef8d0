"""Merges that look at single updates: the median and the trimmed mean against NumPy, however they are kept and read."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean
from torch import Tensor

from fedslice.combine import Coverage, Mean, Median, Robust, TrimmedMean
from fedslice.combine.cohort import Cohort, Stack, read_rows
from fedslice.core.entries import View
from fedslice.core.errors import UserError
from fedslice.core.message import Message
from fedslice.core.slice import Slice, Values
from fedslice.core.update import Step, Uniform, Update
from fedslice.recipe import Recipe
from fedslice.recipes import get
from fedslice.select import Everyone
from fedslice.select import Uniform as Sample
from fedslice.server import ServerSGD
from fedslice.slices import FeatureRows
from fedslice.training.experiment import Experiment
from toys import (
    SIZES,
    Cut,
    assert_close,
    double,
    fitting,
    nested,
    numbers_like,
    readers,
    recommender,
    run,
    shards,
    values_on,
)

SEEDS = st.integers(0, 2**32 - 1)
LIMITS = st.sampled_from([0.0, 64.0, 1e3, 1e9])  # bytes: from one row at a time, all of it in files, to all in memory
SMALL: dict[str, Any] = {"iterations": 3, "batch_size": 4, "lr": 0.1}


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


def merged(part: Robust, updates: list[tuple[Update, Tensor]], limit: float, folder: Path | None = None) -> Step:
    def merge(name: str, stack: Stack) -> Tensor:
        return part.merge(None, name, *stack)

    cohort = Cohort(merge, limit, folder, part.label)
    for update, weights in updates:
        cohort.add(update, weights)
    return cohort.mean()


def dense(step: Step, shapes: Any) -> Values:
    model = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    ServerSGD().step(None, model, step, 1.0)
    return model


def senders(parts: list[tuple[Cut, Update, Tensor]], name: str, place: tuple[int, ...]) -> list[float]:
    """What the clients that sent one coordinate sent, by a loop."""
    out = []
    for cut, update, weights in parts:
        for client in range(cut.slice.clients if name in cut.slice.axes else 0):
            chosen = cut.chosen[name][client]
            if weights[client] and all(at in ids for at, ids in zip(place, chosen, strict=True)):
                inner = tuple(ids.index(at) for at, ids in zip(place, chosen, strict=True))
                out.append(float(update.values[name][client][inner]))
    return out


@settings(deadline=None, max_examples=100)
@given(shards(), SEEDS, LIMITS, st.sampled_from([0.0, 0.1, 0.25, 0.34, 0.49]), st.data())
def test_each_coordinate_is_the_statistic_of_its_senders(
    cuts: list[Cut], seed: int, limit: float, trim: float, data: st.DataObject
) -> None:
    """For any slices, of rows and of channels; padding is never read, refused clients do not count."""
    parts = []
    for number, cut in enumerate(cuts):
        values = values_on(cut, seed + number)
        values = {n: v.masked_fill(cut.padding(values)[n], torch.nan) for n, v in values.items()}
        weights = torch.tensor(data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=cut.slice.clients)))
        parts.append((cut, Update(cut.slice, cut.slice, values), weights[: cut.slice.clients].double()))
    shapes = cuts[0].slice.shapes
    for part in (Median(), TrimmedMean(trim=trim)):
        found = dense(merged(part, [(update, weights) for _, update, weights in parts], limit), shapes)
        for name, shape in shapes.items():
            for place in itertools.product(*map(range, shape)):
                sent = senders(parts, name, place)
                if not sent:
                    expected = 0.0
                elif isinstance(part, Median):
                    expected = float(np.median(sent))
                else:
                    expected = float(trim_mean(sent, trim))
                assert float(found[name][place]) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(nested(least=1), SEEDS, st.booleans(), st.data())
def test_rows_are_read_as_the_whole_update_says(
    both: tuple[Cut, Cut], seed: int, drifts: bool, data: st.DataObject
) -> None:
    """Of what is sent and was not trained the update is zero, or the drift that all clients share."""
    (inner, outer), shapes = both, both[1].slice.shapes
    names = [name for name in inner.slice.axes if _rows_alone(inner.slice, name) and _rows_alone(outer.slice, name)]
    sent, layout = outer.slice.only(names), inner.slice.only(names)
    values = {name: layout.clear(name, value) for name, value in values_on(inner, seed).items() if name in names}
    direction = View(numbers_like(shapes, seed + 1), sent, factor=0.5)
    amount = torch.arange(1.0, sent.clients + 1, dtype=torch.float64)
    update = Update(sent, layout, values, Uniform(amount, direction) if drifts else None)
    for name in names:
        rows = torch.tensor(sorted(data.draw(st.sets(st.integers(0, shapes[name][0] - 1), min_size=1))))
        found, present = read_rows(update, name, rows)
        assert found.shape == present.shape == (sent.clients, len(rows), *shapes[name][1:])
        for client in range(sent.clients):
            own = sent.only([name])
            whole = own.one(client).spread(name, update.only([name]).one(client, own)[name])[0]
            flags = own.one(client).spread(name, torch.ones_like(update.only([name]).one(client, own)[name]))[0]
            assert torch.equal(found[client], whole[rows])
            assert torch.equal(present[client], flags[rows].bool())


def _rows_alone(part: Slice, name: str) -> bool:
    return all(axis is None for axis in part.axes[name][1:])


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(0, 3), st.sampled_from([1e30, -1e30, 1e-30]), SEEDS)
def test_hostile_clients_cannot_move_the_median_out_of_the_honest_range(
    honest: int, hostile: int, size: float, seed: int
) -> None:
    hostile = min(hostile, honest - 1)
    draw = np.random.default_rng(seed)
    good = torch.from_numpy(draw.normal(size=(honest, 5)))
    bad = torch.full((hostile, 5), size, dtype=torch.float64)
    part = Slice.whole(honest + hostile, {"w": torch.Size([5])})
    update = Update(part, part, {"w": torch.cat([good, bad])})
    found = merged(Median(), [(update, torch.ones(honest + hostile))], 1e9)["w"].values
    assert bool(((found >= good.amin(0)) & (found <= good.amax(0))).all())


@pytest.mark.parametrize("part", [Median(), TrimmedMean(trim=0.3)])
def test_large_values_do_not_overflow(part: Robust) -> None:
    whole = Slice.whole(4, {"w": torch.Size([2])})
    update = Update(whole, whole, {"w": torch.full((4, 2), 3e38, dtype=torch.float32)})
    if isinstance(part, Median):
        assert torch.equal(merged(part, [(update, torch.ones(4))], 1e9)["w"].values, torch.full((2,), 3e38))
    else:  # a sum of them is infinite: it is told, and no model is spoilt
        with pytest.raises(UserError, match="combine=trimmed-mean: merge returned NaN or infinity for 2 rows of 'w'"):
            merged(part, [(update, torch.ones(4))], 1e9)


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_nothing_trimmed_is_the_mean_over_senders() -> None:
    task = recommender()
    options: dict[str, Any] = {"slices": FeatureRows(), "select": Sample(cohort=4)}
    one = run(task, Recipe(combine=TrimmedMean(trim=0.0), **options).with_options(SMALL), rounds=4)
    two = run(task, Recipe(combine=Coverage(weights="uniform"), **options).with_options(SMALL), rounds=4)
    assert_close(one.model, two.model, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsubavg", "feddd", "heterofl", "sign", "lbgm", "fdrl"])
@pytest.mark.parametrize("label", ["median", "trimmed-mean"])
def test_how_updates_are_kept_and_read_does_not_matter(name: str, label: str, tmp_path: Path) -> None:
    """In memory or in files, in one piece or row by row, of a chunk of clients or of one, packed or not."""
    task, recipe = fitting(name)
    recipe = recipe.with_options({"combine": label})
    first = run(task, recipe, rounds=3)
    spilled = recipe.with_options({"combine.memory": 1e-8})
    for other in (
        run(task, spilled, rounds=3, scratch=tmp_path / "scratch"),
        run(task, recipe, rounds=3, chunk=1),
        run(task, spilled, rounds=3, wire=True),
    ):
        assert_close(other.model, first.model, rtol=1e-9, atol=1e-12)
    assert not list(tmp_path.glob("scratch/*")), "nothing is left behind"


@pytest.mark.usefixtures("float64")
def test_one_hostile_client_moves_the_mean_and_not_the_median() -> None:
    """A client whose every update is huge: the median stays among those of the others."""
    task = recommender()
    recipes = {part.label: Recipe(select=Everyone(), combine=part).with_options(SMALL) for part in (Mean(), Median())}
    far = {}
    for label, recipe in recipes.items():
        experiment = Experiment(task, recipe, rounds=1)
        take = experiment.server.take

        def shout(upload: Message, take: Callable[[Message], None] = take) -> None:
            for entries in upload.body.values():
                if isinstance(entries, Update):
                    for value in entries.values.values():
                        value[upload.head.clients == 0] = 1e12
            take(upload)

        experiment.server.take = shout  # type: ignore[method-assign]
        experiment.run()
        far[label] = max(float(value.abs().max()) for value in experiment.model.values())
    assert far["mean"] > 1e10
    assert far["median"] < 1e2


def test_rows_that_nobody_holds_keep_their_values() -> None:
    task = recommender()
    done = run(task, Recipe(slices=FeatureRows(), select=Sample(cohort=2), combine=Median()), rounds=3)
    first = task.initial(0)
    held = {
        client: done.recipe.slices.hold(done.population.parts["slices"], 0, torch.tensor([client]))
        for client in range(len(SIZES))
    }
    for name in task.tables:
        rows = torch.cat([part.axes[name][0].flat for part in held.values() if part.axes[name][0] is not None]).unique()
        rest = torch.ones(len(first[name]), dtype=torch.bool).index_fill_(0, rows, False)
        assert torch.equal(done.model[name][rest], first[name][rest])
        assert not torch.equal(done.model[name], first[name])


@pytest.mark.parametrize("codec", ["subspace", "fetchsgd"])
@pytest.mark.parametrize("label", ["median", "trimmed-mean"])
def test_sums_of_codes_are_refused_by_name(codec: str, label: str) -> None:
    with pytest.raises(UserError, match=f"combine={label} looks at each .* which codec={codec} no"):
        get("fedavg", codec=codec, combine=label)


def test_a_merge_of_the_wrong_shape_is_told() -> None:
    class Short(Robust):
        label = "short"

        def merge(
            self, state: Any, name: str, rows: Tensor, values: Tensor, present: Tensor, weights: Tensor
        ) -> Tensor:
            return values.sum()

    with pytest.raises(UserError, match=r"combine=short: merge returned values of shape \(\) for .* of '.*', expected"):
        run(readers(), Recipe(select=Everyone(), combine=Short()).with_options(SMALL))


def test_updates_that_find_no_room_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    part = Slice.whole(1, {"w": torch.Size([2])})
    cohort = Cohort(lambda name, stack: stack.values[0], 0, tmp_path / "file", "median")
    with pytest.raises(UserError, match=r"combine=median keeps a round's updates, and .* cannot be written"):
        cohort.add(Update(part, part, {"w": torch.ones(1, 2)}), torch.ones(1))


def test_a_cohort_of_which_nothing_was_taken_moves_nothing() -> None:
    part = Slice.whole(2, {"w": torch.Size([2])})
    assert merged(Median(), [(Update(part, part, {"w": torch.ones(2, 2)}), torch.zeros(2))], 1e9) == {}
