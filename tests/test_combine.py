"""Merging: running sums against loops, and the laws of FedSubAvg's correction (T02, T03, T07, T08, T31)."""

import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedslice.combine import Accumulator, Combine, Coverage, HeatCorrected, Mean
from fedslice.core.slice import Axis, Shapes, Slice, Values
from fedslice.core.update import RowDelta, Step, Update
from fedslice.recipe import Recipe
from fedslice.recipes import RECIPES
from fedslice.select import Everyone
from fedslice.server import ServerSGD
from fedslice.slices import FeatureRows, Whole
from fedslice.task import Task
from fedslice.training.enrolled import Enrolled
from fedslice.training.experiment import Experiment
from toys import (
    SIZES,
    Cut,
    assert_close,
    assert_same,
    double,
    fitting,
    index_set,
    nested,
    numbers_like,
    recommender,
    run,
    shards,
    values_on,
)

SEEDS = st.integers(0, 2**32 - 1)
NAN = float("nan")


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


def spread(step: Step, shapes: Shapes) -> Values:
    """A step on the whole model, zero where it says nothing."""
    model = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    ServerSGD().step(None, model, step, 1.0)
    return model


# --- running sums -------------------------------------------------------------------------------------------------


def update_on(cut: Cut, seed: int, counted: Slice | None = None) -> Update:
    """Whole numbers on a slice, and NaN wherever nothing belongs to anybody."""
    values = values_on(cut, seed)
    values = {n: v.masked_fill(cut.padding(values)[n], NAN) for n, v in values.items()}
    return Update(counted or cut.slice, cut.slice, values)


def looped(parts: Sequence[tuple[Cut, Update, Tensor]], covered: Sequence[Cut] | None) -> Values:
    """The mean of uploads, one client and one coordinate at a time."""
    shapes = parts[0][0].slice.shapes
    top = {n: np.zeros(s) for n, s in shapes.items()}
    below = {n: np.zeros(s) for n, s in shapes.items()}
    for number, (cut, update, weights) in enumerate(parts):
        for client, weight in enumerate(weights.tolist()):
            for name in cut.slice.axes:
                where = np.ix_(*cut.chosen[name][client])
                top[name][where] += weight * update.values[name][client][cut.real(name, client)].numpy()
                if covered is not None:
                    below[name][np.ix_(*covered[number].chosen[name][client])] += weight
    if covered is None:
        total = sum(float(weights.sum()) for *_, weights in parts)
        below = {n: np.full(s, total) for n, s in shapes.items()}
    out = {n: np.divide(top[n], below[n], out=np.zeros_like(top[n]), where=below[n] > 0) for n in top}
    return {n: torch.from_numpy(v) for n, v in out.items()}


@settings(deadline=None, max_examples=80)
@given(shards(), SEEDS, st.booleans(), st.randoms(use_true_random=False))
def test_any_split_into_shards_gives_the_same_mean(
    cuts: list[Cut], seed: int, covered: bool, chance: random.Random
) -> None:
    """Chunks added one by one, or summed apart and merged in any order: the loop's mean. Padding is never read."""
    draw = np.random.default_rng(seed)
    weights = [torch.from_numpy(draw.integers(0, 4, cut.slice.clients).astype(float)) for cut in cuts]
    parts = [(cut, update_on(cut, seed + i), w) for i, (cut, w) in enumerate(zip(cuts, weights, strict=True))]
    expected = looped(parts, cuts if covered else None)
    together = Accumulator(covered)
    apart = []
    for _, update, own in parts:
        together.add(update, own)
        apart.append(Accumulator(covered))
        apart[-1].add(update, own)
    while len(apart) > 1:
        chance.shuffle(apart)
        apart[0].merge(apart.pop())
    for total in (together, apart[0]):
        assert total.weight == sum(float(w.sum()) for w in weights)
        assert total.clients == sum(int((w > 0).sum()) for w in weights)
        assert_same(spread(total.mean(), cuts[0].slice.shapes), expected)


@settings(deadline=None, max_examples=80)
@given(nested(least=1), SEEDS)
def test_who_sent_a_coordinate_counts_even_if_its_update_is_left_out(both: tuple[Cut, Cut], seed: int) -> None:
    """``layout`` leaves out zeros of ``slice``: the mean over senders divides by the senders."""
    inner, outer = both
    weights = torch.from_numpy(np.random.default_rng(seed).integers(1, 4, inner.slice.clients).astype(float))
    update = update_on(inner, seed, counted=outer.slice)
    total = Accumulator(per_sender=True)
    total.add(update, weights)
    assert_same(spread(total.mean(), inner.slice.shapes), looped([(inner, update, weights)], [outer]))


@settings(deadline=None, max_examples=60)
@given(shards(), SEEDS)
def test_what_nobody_sent_keeps_its_value_to_the_bit(cuts: list[Cut], seed: int) -> None:
    draw, total = np.random.default_rng(seed), Accumulator(per_sender=True)
    shapes = cuts[0].slice.shapes
    sent = {n: np.zeros(s, dtype=bool) for n, s in shapes.items()}
    for cut in cuts:
        total.add(update_on(cut, seed), torch.ones(cut.slice.clients).double())
        for name, client in itertools.product(cut.slice.axes, range(cut.slice.clients)):
            sent[name][np.ix_(*cut.chosen[name][client])] = True
    model = {n: torch.from_numpy(draw.normal(size=tuple(s))) for n, s in shapes.items()}
    before = {n: v.clone() for n, v in model.items()}
    ServerSGD(server_lr=0.3).step(None, model, total.mean(), 1.0)
    for name, mask in sent.items():
        assert torch.equal(model[name][~mask], before[name][~mask])
        assert bool(torch.isfinite(model[name]).all())


@settings(deadline=None, max_examples=80)
@given(st.lists(st.one_of(st.none(), st.sets(st.integers(0, 6), max_size=7)), min_size=2, max_size=4), SEEDS)
def test_sums_on_rows_and_on_everything_mix(parts: list[set[int] | None], seed: int) -> None:
    size, draw = torch.Size([7, 2]), np.random.default_rng(seed)
    expected, total = np.zeros(size), None
    for part in parts:
        rows = range(7) if part is None else sorted(part)
        values = draw.integers(-9, 9, (len(rows), 2)).astype(float)
        expected[list(rows)] += values
        one = RowDelta(None if part is None else torch.tensor(list(rows), dtype=torch.int64), torch.from_numpy(values))
        total = one if total is None else total.merge(one, size)
    assert total is not None
    assert np.array_equal(total.dense(size).numpy(), expected)
    if total.rows is not None:
        assert total.rows.tolist() == sorted(set().union(*(part for part in parts if part is not None)))
        some = total.rows[::2].contiguous()
    else:
        some = torch.arange(0, 7, 2)
    assert np.array_equal(total.at(some, size).numpy(), expected[some.numpy()])
    assert np.array_equal(total.at(None, size).numpy(), expected)


def test_a_round_in_which_everyone_is_silenced_changes_nothing() -> None:
    cut = Cut(Slice.whole(2, {"a": torch.Size([2])}), {"a": [[[0, 1]], [[0, 1]]]})
    for covered in (False, True):
        total = Accumulator(covered)
        total.add(update_on(cut, 0), torch.zeros(2).double())
        assert total.mean() == {}
        assert total.clients == 0


# --- the correction by heat ---------------------------------------------------------------------------------------


def place_of(task: Task, combine: Combine) -> Experiment:
    """All clients of a task have enrolled with a server that combines in this way."""
    return Experiment(task, Recipe(select=Everyone(), slices=FeatureRows(), combine=combine), rounds=1)


def deltas(task: Task, seed: int = 0) -> list[Values]:
    """An update of the whole model for every client; what it does not hold is never looked at."""
    return [numbers_like(task.shapes, seed + c) for c in range(len(task.federation))]


def sent_by(place: Experiment, clients: Sequence[int], updates: list[Values]) -> Update:
    """The clients' updates on their feature rows."""
    hold = place.recipe.slices.hold(place.population.parts["slices"], 0, torch.tensor(clients))
    values: Values = {}
    for name, (axis, *_) in hold.axes.items():
        own = [updates[c][name] if axis is None else updates[c][name][axis.ids[i]] for i, c in enumerate(clients)]
        values[name] = torch.stack(own)
        if axis is not None:
            values[name][~axis.mask] = NAN
    return Update(hold, hold, values)


def step_of(place: Experiment, clients: Sequence[int], updates: list[Values]) -> Values:
    combine, state = place.recipe.combine, place.server.states["combine"]
    total = combine.begin(place.server.states["combine"])
    total.add(sent_by(place, clients, updates), combine.weigh(state, torch.tensor(clients)))
    return spread(combine.correct(state, total.mean(), total), place.task.shapes)


def coefficients(place: Experiment, table: str) -> Tensor:
    combine = place.recipe.combine
    assert isinstance(combine, HeatCorrected)
    return combine.coefficients(place.server.states["combine"], table)


def holders_mean(task: Task, updates: list[Values], weights: Sequence[float]) -> Values:
    """Σ w_i·Δ_i / Σ w_i over the clients that hold a row; zero on rows that nobody holds."""
    out: Values = {}
    for name, shape in task.shapes.items():
        top, below = np.zeros(shape), np.zeros(shape)
        for client, weight in enumerate(weights):
            rows = sorted(index_set(task, name, client)) if name in task.tables else list(range(shape[0]))
            top[rows] += weight * updates[client][name].numpy()[rows]
            below[rows] += weight
        out[name] = torch.from_numpy(np.divide(top, below, out=np.zeros_like(top), where=below > 0))
    return out


def expected_step(combine: HeatCorrected, cohort: int, sizes: Sequence[int]) -> tuple[Values, Values]:
    """The mean step over all cohorts of one size, and what it should be."""
    place = place_of(recommender(sizes), combine)
    updates = deltas(place.task)
    steps = [step_of(place, c, updates) for c in itertools.combinations(range(len(sizes)), cohort)]
    mean = {n: torch.stack([step[n] for step in steps]).mean(0) for n in place.task.shapes}
    return mean, holders_mean(place.task, updates, sizes if combine.weights == "samples" else [1.0] * len(sizes))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cohort", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "combine",
    [
        HeatCorrected(weights="uniform"),
        HeatCorrected(weights="uniform", estimator="horvitz-thompson"),
        HeatCorrected(estimator="horvitz-thompson"),
    ],
    ids=["uniform", "uniform horvitz-thompson", "weighted horvitz-thompson"],
)
def test_the_expected_step_of_a_row_is_the_mean_over_its_holders(combine: HeatCorrected, cohort: int) -> None:
    """T02, exactly: all C(N, K) cohorts are enumerated."""
    mean, expected = expected_step(combine, cohort, [3, 7, 1, 12, 5, 4])
    assert_close(mean, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_the_ratio_is_biased_unless_all_take_part() -> None:
    mean, expected = expected_step(HeatCorrected(), 2, [3, 7, 1, 12, 5, 4])
    assert not torch.allclose(mean["item.weight"], expected["item.weight"], rtol=1e-3)
    mean, expected = expected_step(HeatCorrected(), 6, [3, 7, 1, 12, 5, 4])
    assert_close(mean, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("estimator", ["ratio", "horvitz-thompson"])
@pytest.mark.parametrize("clients", [(0,), (1, 3), (0, 2, 4)])
def test_equal_weights_are_no_weights(estimator: str, clients: tuple[int, ...]) -> None:
    """T08."""
    task = recommender([3] * 5)
    steps = []
    for weights in ("samples", "uniform"):
        combine = HeatCorrected(weights=weights, estimator=estimator)  # type: ignore[arg-type]
        steps.append(step_of(place_of(task, combine), clients, deltas(task)))
    assert_close(*steps, rtol=1e-12, atol=1e-12)


def both_with_everything(weights: str, ragged: bool, sizes: Sequence[int]) -> None:
    task = recommender(sizes, items=12, ragged=ragged, everything=True)
    assert all(len(index_set(task, t, c)) == task.shapes[t][0] for t in task.tables for c in range(len(sizes)))
    options = {"cohort": 3, "iterations": 4, "weights": weights}
    one, two = (run(task, RECIPES[n].with_options(options), rounds=4) for n in ("fedavg", "fedsubavg"))
    assert_same(one.model, two.model)
    assert not torch.equal(one.model["item.weight"], task.initial(0)["item.weight"])


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("ragged", [False, True])
def test_fedsubavg_is_fedavg_where_everyone_holds_everything(weights: str, ragged: bool) -> None:
    """T03, to the bit, over several rounds."""
    both_with_everything(weights, ragged, (8, 9, 7, 12, 10))


@pytest.mark.usefixtures("float64")
def test_fedsubavg_is_fedavg_in_double_precision_too() -> None:
    """T03 with 49 samples: 49 · (1/49) is not one."""
    both_with_everything("samples", False, (8, 9, 7, 12, 13))


@pytest.mark.parametrize("estimator", ["ratio", "horvitz-thompson"])
def test_rows_that_nobody_holds_stay_to_the_bit(estimator: str) -> None:
    """T07."""
    task = recommender(items=40, seed=3)
    heat = task.index_sets[0].heat
    assert 0 < int((heat == 0).sum()) < 40
    experiment = run(task, RECIPES["fedsubavg"].with_options({"cohort": 3, "estimator": estimator}), rounds=5)
    start = task.initial(0)
    assert torch.equal(experiment.model["item.weight"][heat == 0], start["item.weight"][heat == 0])
    assert not torch.equal(experiment.model["item.weight"][heat > 0], start["item.weight"][heat > 0])
    assert all(bool(torch.isfinite(value).all()) for value in experiment.model.values())
    assert coefficients(experiment, "item.weight")[heat == 0].unique().tolist() == [1.0]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_coefficients_and_their_bound(weights: str) -> None:
    sizes = [3, 7, 1, 12, 5, 4]
    task = recommender(sizes, items=30)
    w = sizes if weights == "samples" else [1] * 6
    held = [[c for c in range(6) if m in index_set(task, "item.weight", c)] for m in range(30)]
    expected = [sum(w) / sum(w[c] for c in who) if who else 1.0 for who in held]
    for bound in (None, 2.5):
        place = place_of(task, HeatCorrected(weights=weights, max_coef=bound))  # type: ignore[arg-type]
        limited = [min(c, bound or c) for c in expected]
        assert coefficients(place, "item.weight").tolist() == pytest.approx(limited)
    assert max(expected) > 2.5 > min(expected), "the bound must bind, and not everywhere"
    plain = place_of(task, Mean(weights=weights))  # type: ignore[arg-type]
    updates = deltas(task)
    step, mean = (step_of(one, (0, 2), updates)["item.weight"].abs() for one in (place, plain))
    assert bool((step <= 2.5 * mean + 1e-12).all())
    assert bool((step > 2 * mean).any())


@settings(deadline=None, max_examples=25)
@given(st.randoms(use_true_random=False), st.booleans(), st.integers(1, 6), st.sampled_from(["samples", "uniform"]))
def test_heat_does_not_depend_on_who_enrols_when(chance: random.Random, leaves: bool, most: int, weights: str) -> None:
    """In any order and any blocks, and with a client that comes and goes: the same coefficients to the bit."""
    task = recommender([3, 7, 1, 12, 5, 4], items=30)
    whole = place_of(task, HeatCorrected(weights=weights))  # type: ignore[arg-type]
    server = copy.copy(whole.server)
    server.enrolled = Enrolled()
    server.run = replace(server.run, enrolled=server.enrolled)
    server.states = whole.server.states | {"combine": server.spec.recipe.combine.server_state(server.run)}
    order = torch.tensor(chance.sample(range(6), 6))
    for block in order.split(most):
        server.enrol(whole.population.introduce(block))
        if leaves:
            server.leave(whole.population.introduce(block[:1]))
            server.enrol(whole.population.introduce(block[:1]))
    for table in task.tables:
        found = whole.recipe.combine.coefficients(server.states["combine"], table)  # type: ignore[attr-defined]
        assert torch.equal(found, coefficients(whole, table))


def test_a_row_whose_last_holder_has_left_counts_as_held_by_nobody() -> None:
    place = place_of(recommender(items=30), HeatCorrected())
    server = place.server
    server.leave(place.population.introduce(torch.tensor([3])))
    kept = [index_set(place.task, "item.weight", c) for c in range(6) if c != 3]
    only = sorted(index_set(place.task, "item.weight", 3) - set().union(*kept))
    assert only
    assert coefficients(place, "item.weight")[only].unique().tolist() == [1.0]
    sizes = [size for c, size in enumerate(SIZES) if c != 3]
    row = min(kept[0])
    heat = sum(size for size, held in zip(sizes, kept, strict=True) if row in held)
    assert coefficients(place, "item.weight")[row].item() == pytest.approx(sum(sizes) / heat)


def test_rows_in_one_line_are_the_rows_of_the_padded_axis() -> None:
    (sets, *_) = recommender(items=30).index_sets
    axis = sets.axis(torch.tensor([3, 0, 2]))
    assert torch.equal(axis.flat, axis.ids[axis.mask])
    assert torch.equal(axis.flat, Axis(axis.counts, axis.ids).flat)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_coverage_on_feature_rows_is_the_mean_over_the_cohort_s_holders(weights: str) -> None:
    place = place_of(recommender(), Coverage(weights=weights))  # type: ignore[arg-type]
    updates = deltas(place.task)
    for cohort in ((0,), (1, 4), (0, 2, 3, 5)):
        sizes = place.task.federation.train.sizes.tolist()
        present = [(sizes[c] if weights == "samples" else 1) if c in cohort else 0 for c in range(6)]
        assert_close(step_of(place, cohort, updates), holders_mean(place.task, updates, present), rtol=1e-12)


@pytest.mark.usefixtures("float64")
def test_the_mean_counts_what_a_client_does_not_hold_as_zero() -> None:
    place = place_of(recommender(), Mean())
    updates = deltas(place.task)
    step = step_of(place, (1, 4), updates)
    sizes = place.task.federation.train.sizes.tolist()
    expected = {n: torch.zeros(s) for n, s in place.task.shapes.items()}
    for name, client in itertools.product(expected, (1, 4)):
        rows = sorted(index_set(place.task, name, client)) if name in place.task.tables else slice(None)
        expected[name][rows] += sizes[client] / (sizes[1] + sizes[4]) * updates[client][name][rows]
    assert_close(step, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_the_mean_on_feature_rows_is_fedavg_with_fewer_bytes() -> None:
    task, recipe = fitting("fedavg")
    whole, rows = (run(task, Recipe(slices=s, select=recipe.select), rounds=3) for s in (Whole(), FeatureRows()))
    assert_close(whole.model, rows.model, rtol=1e-12)
    assert 0 < rows.ledger.up_bytes < whole.ledger.up_bytes
    assert 0 < rows.ledger.down_bytes < whole.ledger.down_bytes
