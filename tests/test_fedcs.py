"""FedCS: orders and budgets by hand, the greedy search against a plain one, and runs (FedDD, section 6.2)."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedslice.core.errors import UserError
from fedslice.recipe import Recipe
from fedslice.select.budget import affordable
from fedslice.select.fedcs import FedCS, greedy
from fedslice.slices import FeatureRows
from fedslice.training.devices import Devices
from fedslice.training.enrolled import Enrolled
from fedslice.training.experiment import Experiment
from toys import SIZES, assert_same, mlp, recommender, training


def population(
    seconds: Any, held: Any = None, samples: Any = None, scale: float = 1.0, **terms: Any
) -> SimpleNamespace:
    """A server's run whose rounds take these seconds, a quarter of them for training unless ``terms`` divide them."""
    run = SimpleNamespace(enrolled=Enrolled(), spec=SimpleNamespace(seed=0))
    enrol(run, range(len(seconds)), seconds, held, samples, scale, **terms)
    return run


def enrol(
    run: Any, clients: Any, seconds: Any, held: Any = None, samples: Any = None, scale: float = 1.0, **terms: Any
) -> None:
    time = np.asarray(seconds, dtype=np.float64)
    held = torch.full((len(time),), 1000) if held is None else torch.as_tensor(held)
    sizes = torch.full((len(time),), 10) if samples is None else torch.as_tensor(samples)
    part = {"download": time / 4, "training": time / 4, "upload": time / 2} | terms
    pace = scale * np.stack(
        [np.asarray(part[name], dtype=np.float64) for name in ("download", "training", "upload")], 1
    )
    facts = {"held": held[:, None], "samples": sizes[:, None], "pace": torch.from_numpy(pace)}
    run.enrolled.add(torch.as_tensor(list(clients)), facts)


def chosen(part: FedCS, run: Any, t: int = 0) -> list[int]:
    cohort = part.choose(part.server_state(run), t)
    assert not cohort.draws.any()
    assert len(cohort.draws) == len(cohort.clients)
    assert cohort.clients.dtype == torch.int64
    return cohort.clients.tolist()


@st.composite
def populations(draw: st.DrawFn) -> tuple[list[int], list[int], float]:
    """Distinct times, any sizes, a budget."""
    seconds = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=12, unique=True))
    held = draw(st.lists(st.integers(1, 50), min_size=len(seconds), max_size=len(seconds)))
    return seconds, held, draw(st.floats(0.01, 1))


# --- a budget of parameters -----------------------------------------------------------------------------------------


def test_the_fastest_within_the_budget() -> None:
    assert chosen(FedCS(), population([5, 1, 4, 2, 3])) == [1, 3, 4], "three of five are 60%"
    assert chosen(FedCS(budget=0.5), population([5, 1, 4, 2, 3])) == [1, 3]
    assert chosen(FedCS(budget=1), population([5, 1, 4, 2, 3])) == [0, 1, 2, 3, 4]
    assert chosen(FedCS(budget=0.01), population([5, 1, 4, 2, 3])) == [1], "one at least"


def test_sizes_count_not_clients() -> None:
    """In order of speed 40, 20, 30 and 10 of 100; the first that does not fit ends it, though the last would."""
    world = population([1, 2, 3, 4], held=[40, 20, 30, 10])
    assert chosen(FedCS(budget=0.6), world) == [0, 1]
    assert chosen(FedCS(budget=0.7), world) == [0, 1]
    assert chosen(FedCS(budget=0.39), world) == [0], "even the first is too large"


def test_the_papers_fast_clients_are_those_with_a_short_communication() -> None:
    """Client 0 is slow to train and quick to send, client 2 the other way round; t_d + t_u = 3, 6, 9, t = 13, 10, 10.5.

    Equations 9 and 11 at D_n = 0 give the times of communication, with equation 7 the total.
    """
    world = population([1, 1, 1], training=[10, 4, 1.5], download=[1, 2, 3], upload=[2, 4, 6])
    for budget, quick, early in ((0.34, [0], [1]), (0.67, [0, 1], [1, 2])):
        assert chosen(FedCS(budget=budget), world) == chosen(FedCS(budget=budget, time="communication"), world) == quick
        assert chosen(FedCS(budget=budget, time="total"), world) == early


def test_ties_go_by_number_and_rounds_are_alike() -> None:
    world = population([2, 1, 2, 2])
    assert chosen(FedCS(budget=0.75), world) == chosen(FedCS(budget=0.75), world, t=7) == [0, 1, 2]


@pytest.mark.parametrize("held", [1, 3, 342_456])
def test_a_share_is_the_decimal_number_it_looks_like(held: int) -> None:
    """0.57 · 100 < 57 and 0.07 · 100 > 7 in binary."""
    order, sizes = np.arange(100), np.full(100, held)
    assert [len(affordable(order, sizes, percent / 100)) for percent in range(1, 101)] == list(range(1, 101))
    assert len(affordable(order[:3], sizes[:3], 2 / 3)) == 2


@settings(deadline=None, max_examples=60)
@given(populations())
def test_the_budget_is_kept_and_used(some: tuple[list[int], list[int], float]) -> None:
    seconds, held, budget = some
    who = chosen(FedCS(budget=budget), population(seconds, held))
    limit = budget * sum(held) + 1e-9
    assert sum(held[n] for n in who) <= limit or len(who) == 1
    rest = [n for n in range(len(held)) if n not in who]
    if rest:
        first = min(rest, key=seconds.__getitem__)
        assert max(seconds[n] for n in who) < seconds[first]
        assert sum(held[n] for n in who) + held[first] > limit - 1e-8


@settings(deadline=None, max_examples=60)
@given(populations(), st.randoms(use_true_random=False), st.sampled_from([2.0**-9, 0.5, 4.0, 2.0**20]))
def test_renumbering_clients_and_slower_clocks_change_nothing(some: Any, random: Any, scale: float) -> None:
    seconds, held, budget = some
    part = FedCS(budget=budget)
    who = chosen(part, population(seconds, held))
    assert chosen(part, population(seconds, held, scale=scale)) == who
    new = list(range(len(held)))  # new[i] is who stands in place i now
    random.shuffle(new)
    moved = chosen(part, population([seconds[n] for n in new], [held[n] for n in new]))
    assert sorted(new[place] for place in moved) == who


# --- a deadline -----------------------------------------------------------------------------------------------------


DOWN, TRAIN, UP = np.array([1.0, 2, 1]), np.array([4.0, 1, 2]), np.array([1.0, 1, 3])


@pytest.mark.parametrize(
    ("deadline", "expected"), [(3.9, []), (4, [1]), (6.9, [1]), (7, [1, 0]), (9.9, [1, 0]), (10, [1, 0, 2])]
)
def test_the_greedy_search_by_hand(deadline: float, expected: list[int]) -> None:
    """Client 1 takes 2 + 1 + 1. Then T = 2 and Θ = 2, and both others add 3: 0 + (4 − 2) + 1 and 0 + 0 + 3."""
    assert greedy(DOWN, TRAIN, UP, deadline).tolist() == expected


def plainly(download: list[int], training: list[int], upload: list[int], deadline: int) -> list[int]:
    """The protocol as published: try all clients that are left, and go on after one that is late."""
    left, found = set(range(len(upload))), []
    longest = elapsed = 0
    while left:
        more = {n: max(0, download[n] - longest) + upload[n] + max(0, training[n] - elapsed) for n in left}
        best = min(left, key=lambda n: (more[n], n))
        left.remove(best)
        after = elapsed + upload[best] + max(0, training[best] - elapsed)
        if max(longest, download[best]) + after <= deadline:
            longest, elapsed = max(longest, download[best]), after
            found.append(best)
    return found


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=14),
    st.integers(0, 80),
)
def test_the_greedy_search_is_the_plain_one(terms: list[tuple[int, int, int]], deadline: int) -> None:
    """Whole numbers are exact in both, so ties are the same ties."""
    columns = [list(column) for column in zip(*terms, strict=True)]
    found = greedy(*(np.array(column, dtype=np.float64) for column in columns), deadline).tolist()
    assert found == plainly(*columns, deadline)


def test_a_deadline_chooses_from_the_devices() -> None:
    world = population([6, 4, 6], download=DOWN, training=TRAIN, upload=UP)
    assert chosen(FedCS(deadline=7.001), world) == [0, 1]
    assert chosen(FedCS(deadline=100), world, t=3) == [0, 1, 2]


# --- a population that changes --------------------------------------------------------------------------------------


def test_who_enrols_or_leaves_changes_the_choice() -> None:
    run = population([5, 1, 4, 2, 3])
    part = FedCS()
    state = part.server_state(run)
    first = part.choose(state, 0)
    assert first.clients.tolist() == [1, 3, 4]
    assert part.choose(state, 1) is first, "it is made once"
    enrol(run, [7], [0.5])
    assert part.choose(state, 2).clients.tolist() == [1, 3, 7], "three of six are 50%, four would be 67%"
    run.enrolled.remove(torch.tensor([1]))
    assert part.choose(state, 3).clients.tolist() == [3, 4, 7]
    enrol(run, [3], [9])
    assert part.choose(state, 4).clients.tolist() == [2, 4, 7], "client 3 has become slow"


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_deadline_that_nobody_meets_is_told_with_the_shortest_round() -> None:
    world = population([6, 4, 6], download=DOWN, training=TRAIN, upload=UP)
    with pytest.raises(UserError, match=r"select=fedcs: .* deadline=3\.5 .* client 1, takes 4; give a longer deadline"):
        chosen(FedCS(deadline=3.5), world)


def test_without_devices_the_sentence_says_what_to_add() -> None:
    with pytest.raises(UserError, match=r"^select=fedcs needs to know .* add --devices feddd, or devices=Devices"):
        Experiment(mlp(), Recipe(select=FedCS()), rounds=1)


@pytest.mark.parametrize(
    "given", [{"budget": 0}, {"budget": 1.01}, {"budget": float("nan")}, {"deadline": 0}, {"deadline": float("inf")}]
)
def test_impossible_limits_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        FedCS(**given)


def test_two_limits_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"budget=0\.5 and deadline=9\.0 are both given; give one"):
        FedCS(budget=0.5, deadline=9.0)


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"budget": 0.5}, {"deadline": 2.0}])
def test_a_run_waits_for_the_chosen_and_resumes(limit: dict[str, float]) -> None:
    task, devices = mlp(), Devices.drawn(len(SIZES), 0)
    recipe = Recipe(select=FedCS(**limit), local=training(epochs=2, batch_size=3))
    whole = Experiment(task, recipe, rounds=3, devices=devices)
    row = whole.run()[-1]
    who = whole.recipe.select.choose(whole.server.states["select"], 2).clients
    assert 1 <= len(who) < len(SIZES)
    size = sum(shape.numel() for shape in task.shapes.values()) * task.itemsize
    slowest = devices.seconds(who, 2 * task.federation.train.sizes[who], size, size).max()
    assert row["clock"] == pytest.approx(3 * slowest)
    assert row["up_bytes"] == 3 * size * len(who)
    half = Experiment(task, recipe, rounds=2, devices=devices)
    half.run()
    rest = Experiment(task, recipe, rounds=3, devices=devices)
    rest.load_state_dict(*half.state_dict())
    assert rest.run()[-1] | {"seconds": 0} == row | {"seconds": 0}
    assert_same(rest.state_dict()[0], whole.state_dict()[0])


def test_the_budget_counts_what_clients_hold() -> None:
    """Slices of unequal size: the bytes of a round, without the ids, stay within the share."""
    task, devices = recommender(), Devices.drawn(len(SIZES), 1)
    run = Experiment(task, Recipe(select=FedCS(budget=0.6), slices=FeatureRows()), rounds=1, devices=devices)
    run.run()
    held = run.population.run.held(torch.arange(len(SIZES)))
    assert len(held.unique()) > 1
    assert torch.equal(run.server.enrolled.all_facts("held")[:, 0], held)
    who = run.recipe.select.choose(run.server.states["select"], 0).clients
    assert held[who].sum() <= 0.6 * held.sum()
    assert run.ledger.down["values"] == task.itemsize * held[who].sum()
