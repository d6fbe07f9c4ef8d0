"""Oort: utilities and scores by hand, laws of both schemes, the pacer, broken clients, runs (FedDD, section 6.2)."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedslice.core.errors import UserError
from fedslice.core.part import Round
from fedslice.core.slice import Values
from fedslice.local import Local, Prox
from fedslice.recipe import Recipe
from fedslice.select.budget import Known
from fedslice.select.oort import Oort, Seen, slowness
from fedslice.training.devices import Devices
from fedslice.training.experiment import Experiment
from test_fedcs import enrol, population
from toys import SIZES, assert_same, double, mlp, recommender, training

NAN, INF = float("nan"), float("inf")
SOME = Devices.drawn(len(SIZES), 0)


@dataclass(frozen=True)
class Ready:
    """A part with its state."""

    part: Oort
    state: Seen

    def scores(self, t: int, clients: Any) -> Any:
        return self.part.scores(self.state, Known.of(self.state.run), t, clients)

    def state_dict(self) -> Values:
        return self.state.state_dict()


def ready(run: Any, **settings: Any) -> Ready:
    part = Oort(**settings)
    return Ready(part, part.server_state(run))


def ended(t: int, invited: Any, taken: Any, squares: torch.Tensor) -> Round:
    return Round(t, torch.as_tensor(invited), torch.as_tensor(taken), {"squares": squares[:, None]}, {}, {}, {})


def tell(one: Ready, t: int, losses: Any, who: Any = None) -> None:
    """A round has ended in which these clients (everyone unless said otherwise) had these losses."""
    clients = torch.arange(len(losses)) if who is None else torch.as_tensor(who)
    own = torch.as_tensor(losses, dtype=torch.float32)
    one.part.observe(one.state, ended(t, clients, clients, own.double().square()))


def chosen(one: Ready, t: int, seed: int = 0) -> list[int]:
    before = copy.deepcopy(one.state_dict())
    one.state.run.spec.seed = seed
    cohort = one.part.choose(one.state, t)
    assert_same(one.state_dict(), before)  # whoever asks twice gets the same answer
    assert cohort.clients.diff().gt(0).all(), "ascending, nobody twice"
    assert torch.equal(cohort.draws, torch.zeros_like(cohort.clients))
    return cohort.clients.tolist()


# --- FedDD's reading: the best in order -----------------------------------------------------------------------------


def test_everyone_first_then_the_most_useful() -> None:
    """|B_i|·loss: 10, 12, 6, 20, 9; all devices are alike."""
    part = ready(population([3] * 5, samples=[10, 4, 3, 5, 1]))
    assert chosen(part, 0) == [0, 1, 2, 3, 4]
    tell(part, 0, [1, 3, 2, 4, 9])
    assert chosen(part, 1) == [0, 1, 3], "three of five are 60%"
    tell(part, 1, [0.1, 3, 4], who=[0, 1, 3])
    assert chosen(part, 2) == [1, 3, 4], "client 0 is worth 1 now, client 4 what it was in round 0"
    assert chosen(part, 0) == [0, 1, 2, 3, 4], "the first round does not depend on what came later"


def test_slowness_by_hand() -> None:
    """T is the median, 4: twice as slow counts a quarter, faster counts no more."""
    assert slowness(np.array([1.0, 2, 4, 8, 16]), 0.5, 2.0).tolist() == [1, 1, 1, 1 / 4, 1 / 16]
    assert slowness(np.array([1.0, 2, 4, 8, 16]), 0.5, 0.0).tolist() == [1] * 5
    assert slowness(np.array([1.0, 2, 4, 8, 16]), 1.0, 2.0).tolist() == [1] * 5


@pytest.mark.parametrize(("alpha", "loss", "expected"), [(2, 3.9, [0, 1]), (2, 4.1, [0, 4]), (0, 1.1, [0, 4])])
def test_a_slow_client_must_be_worth_it(alpha: float, loss: float, expected: list[int]) -> None:
    """T = 2 at A = 0.5, so client 4 is twice as slow and counts a quarter."""
    part = ready(population([1, 1, 2, 3, 4]), budget=0.5, alpha=alpha)
    tell(part, 0, [2, 1, 0.5, 0.5, loss])
    assert chosen(part, 1) == expected


def test_the_top_keeps_a_budget_of_parameters() -> None:
    """In order of utility clients hold 40, 20, 30 and 10 of 100."""
    world = population([3] * 4, held=[30, 40, 10, 20])
    for budget, expected in ((0.6, [1, 3]), (0.9, [0, 1, 3]), (0.3, [1])):
        part = ready(world, budget=budget)
        tell(part, 0, [2, 4, 1, 3])
        assert chosen(part, 1) == expected


def test_equal_utilities_go_by_number() -> None:
    part = ready(population([3] * 5))
    tell(part, 0, [1] * 5)
    assert chosen(part, 1) == [0, 1, 2]


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_a_broken_loss_does_not_count(broken: float) -> None:
    part = ready(population([3] * 5), budget=0.4)
    tell(part, 0, [1, 5, broken, 3, 2])
    assert chosen(part, 1) == [1, 3]
    tell(part, 1, [broken, 4], who=[1, 3])
    assert chosen(part, 2) == [1, 3], "client 1 keeps its last finite loss"
    everyone = ready(population([3] * 5), budget=1.0)
    tell(everyone, 0, [broken] * 5)
    assert chosen(everyone, 1) == [0, 1, 2, 3, 4]
    none = ready(population([3] * 5), budget=0.8)
    tell(none, 0, [broken, 0.1, 0.1, 0.1, 0.1])
    assert chosen(none, 1) == [1, 2, 3, 4], "never finite is worth nothing"


def test_a_negative_loss_counts_as_its_square_does() -> None:
    part = ready(population([3] * 3), budget=0.4)
    tell(part, 0, [-2, 1, 0.5])
    assert chosen(part, 1) == [0]


def test_a_loss_whose_square_overflows_does_not_count() -> None:
    part = ready(population([3] * 3), budget=0.4)
    huge = torch.tensor([1.0, 1e30, 2.0])
    part.part.observe(part.state, ended(0, range(3), range(3), huge.square()))
    assert chosen(part, 1) == [2]


@pytest.mark.parametrize(
    "local", [training(lr=0.01, epochs=2, batch_size=3), training(Prox, mu=3.0, lr=0.01, epochs=2, batch_size=3)]
)
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_a_clients_utility_is_its_samples_times_the_root_mean_square_of_their_losses(local: Local, engine: str) -> None:
    """|B_i|·√(1/|B_i|·Σ loss²) by hand: every sample of two passes, with the loss before the step it is part of."""
    with double():
        task = recommender()
        train = task.federation.train
        run = Experiment(task, Recipe(select=Oort(), local=local), rounds=1, engine=engine, chunk=3, devices=SOME)
        run.run()
        expected = []
        for client, size in enumerate(train.sizes.tolist()):
            x, start, squares = task.initial(0), task.initial(0), []
            one = local.sampler.batches(0, torch.tensor([client]), torch.zeros(1), train.sizes[[client]], 1, 0)
            for index, real in zip(one.index[0], one.real[0], strict=True):
                features, label = train.batch(index[real] + train.offsets[client])
                now = {name: value.clone().requires_grad_() for name, value in x.items()}
                each = task.loss(task.forward(now, features), label)
                if len(each):
                    squares += each.square().tolist()
                    slopes = torch.autograd.grad(each.mean(), list(now.values()))
                    pull = local.settings().get("prox", {}).get("mu", 0.0)
                    x = {
                        name: value - local.optimizer.lr * (slope + pull * (value - start[name]))
                        for (name, value), slope in zip(x.items(), slopes, strict=True)
                    }
            assert len(squares) == 2 * size
            expected.append(size * np.sqrt(np.mean(squares)))
        assert run.server.states["select"].utility.tolist() == pytest.approx(expected)


@st.composite
def seen(draw: st.DrawFn) -> tuple[list[int], list[int], list[float]]:
    """Times, sizes and distinct losses."""
    count = draw(st.integers(1, 10))
    seconds = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count, unique=True))
    held = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    return seconds, held, draw(st.permutations(range(1, count + 1)))


@settings(deadline=None, max_examples=60)
@given(seen(), st.floats(0.01, 1), st.randoms(use_true_random=False), st.sampled_from([2.0**-9, 0.5, 2.0**20]))
def test_laws_of_the_top(some: Any, budget: float, random: Any, scale: float) -> None:
    """The budget is kept; slower clocks, larger losses and other numbers change nothing."""
    seconds, held, losses = some
    count = len(held)
    part = ready(population(seconds, held), budget=budget)
    tell(part, 0, losses)
    who = chosen(part, 1)
    assert sum(held[n] for n in who) <= budget * sum(held) + 1e-9 or len(who) == 1
    slower = ready(population(seconds, held, scale=scale), budget=budget)
    tell(slower, 0, [loss * scale for loss in losses])
    assert chosen(slower, 1) == who
    utility = part.state_dict()["utility"].numpy() * slowness(np.array(seconds, dtype=np.float64), budget, 2.0)
    if len(np.unique(utility)) == count:
        new = list(range(count))  # new[i] is who stands in place i now
        random.shuffle(new)
        moved = ready(population([seconds[n] for n in new], [held[n] for n in new]), budget=budget)
        tell(moved, 0, [losses[n] for n in new])
        assert sorted(new[place] for place in chosen(moved, 1)) == who


# --- a population that changes --------------------------------------------------------------------------------------


def test_who_enrols_late_comes_first_until_it_was_invited() -> None:
    part = ready(population([3] * 4), budget=0.5)
    tell(part, 0, [1, 4, 2, 3])
    assert chosen(part, 1) == [1, 3]
    enrol(part.state.run, [4, 6], [3, 3])
    assert chosen(part, 1) == [1, 4, 6], "three of six: both newcomers, and the best"
    part.part.observe(part.state, ended(1, [1, 4, 6], [1, 4], torch.tensor([1.0, 25.0])))
    assert part.state_dict()["last"].tolist() == [1, 2, 1, 1, 2, 0, 2], "invited counts as seen"
    assert chosen(part, 2) == [2, 3, 4], "client 4 is worth 50; client 6, whose upload was not taken, comes last"


def test_a_round_in_which_nothing_was_taken_is_over_as_well() -> None:
    for scheme in ("top", "full"):
        part = ready(population([3] * 4), scheme=scheme, budget=0.5)
        part.part.observe(part.state, Round(0, torch.arange(4), torch.zeros(0).long(), {}, {}, {}, {}))
        assert part.state_dict()["last"].tolist() == [1] * 4
        assert len(chosen(part, 1)) == 2


def test_who_leaves_is_forgotten() -> None:
    part = ready(population([3] * 4), budget=0.5)
    tell(part, 0, [1, 4, 2, 3])
    part.part.leave(part.state, torch.tensor([1]), {})
    part.state.run.enrolled.remove(torch.tensor([1]))
    assert chosen(part, 1) == [3], "half of three"
    enrol(part.state.run, [1], [3])
    assert chosen(part, 1) == [1, 3], "who comes back is new"


def test_a_full_draw_explores_who_enrols_late() -> None:
    part = ready(population([1] * 6), scheme="full", budget=0.5, exploration=0, exploration_min=0.5)
    tell(part, 0, [1, 2, 3, 4, 5, 6])
    enrol(part.state.run, [9], [1])
    assert all(9 in chosen(part, 5, seed) for seed in range(20))


# --- the published method -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.floats(0.01, 1), st.floats(0, 1), st.floats(0.1, 1), st.integers(0, 10**9))
def test_the_full_cohort_is_exact_and_distinct(
    clients: int, budget: float, exploration: float, cut_off: float, seed: int
) -> None:
    """``chosen`` checks that nobody comes twice; losses are broken now and then; slower clocks change nothing."""
    draw = np.random.default_rng(seed)
    seconds, samples = draw.integers(1, 1000, clients), draw.integers(1, 50, clients)
    settings = {"budget": budget, "scheme": "full", "exploration": exploration, "exploration_min": 0, "pacer_step": 1}
    parts = [
        ready(population(seconds, samples=samples, scale=scale), cut_off=cut_off, **settings) for scale in (1.0, 0.25)
    ]
    for t in range(6):
        who, again = (chosen(part, t, seed) for part in parts)
        assert who == again
        assert len(who) == max(round(budget * clients), 1)
        losses = draw.choice([NAN, INF, 0.0, 1e-30, 0.5, 2.0, 1e30], len(who))
        for part in parts:
            tell(part, t, losses, who)


def test_nothing_left_to_explore_and_no_slack_is_the_top() -> None:
    """Utilities 10·loss, none capped; the temporal term is the same for all."""
    part = ready(population([1, 2, 3, 4, 5]), scheme="full", cut_off=1.0, cap=1.0, round_threshold=100)
    tell(part, 0, [5, 1, 4, 2, 3])
    assert [chosen(part, t, seed) for t, seed in ((1, 0), (1, 1), (9, 2))] == [[0, 2, 4]] * 3
    strict = ready(population([1, 2, 3, 4, 5]), scheme="full", cut_off=1.0, cap=1.0, round_threshold=0, alpha=50)
    tell(strict, 0, [5, 1, 4, 2, 3])
    assert chosen(strict, 1) == [0, 1, 2], "with T of the fastest and a steep penalty it is speed"


def test_scores_by_hand() -> None:
    """Capped at the median of 10, 20, 40, 80 and 1000, scaled to [0, 1], plus √(0.1·ln r / r_i); T = 2."""
    part = ready(population([1, 2, 2, 2, 4]), scheme="full", cap=0.5, round_threshold=50)
    tell(part, 0, [1, 2, 4, 8, 100])
    tell(part, 2, [2], who=[1])
    late = np.sqrt(0.1 * np.log(5))
    expected = [0 + late, 1 / 3 + late / np.sqrt(3), 1 + late, 1 + late, (1 + late) / 4]
    assert part.scores(4, np.arange(5)) == pytest.approx(expected)
    assert part.scores(4, np.array([2])) == pytest.approx([late]), "alone it has nobody to be better than"


def test_who_is_not_seen_again_gains_from_round_to_round() -> None:
    part = ready(population([1, 1]), scheme="full")
    tell(part, 0, [1, 1])
    for t in range(1, 30):
        tell(part, t, [1], who=[1])
        scores = part.scores(t + 1, np.arange(2))
        assert scores[0] > scores[1]
        assert scores[0] == pytest.approx(np.sqrt(0.1 * np.log(t + 2)))
        assert scores[0] > part.scores(t, np.arange(2))[0]


def test_exploration_falls_to_its_floor_and_ends_with_the_unknown() -> None:
    """Of 100 places in a population of 1,000."""
    part = ready(population([1] * 1000), scheme="full", budget=0.1, exploration=0.5, exploration_decay=0.8)
    known: set[int] = set()
    for t in range(50):
        who = chosen(part, t)
        fresh = len(set(who) - known)
        wish = round(100 * max(0.5 * 0.8 ** (t + 1), 0.2))
        assert fresh == min(100 if t == 0 else wish, 1000 - len(known)), t
        known |= set(who)
        tell(part, t, np.linspace(1, 2, 100), who)
    assert len(known) == 1000


def frequency(one: Ready, t: int, client: int, times: int = 1000) -> float:
    found = 0
    for seed in range(times):
        one.state.run.spec.seed = seed
        found += client in one.part.choose(one.state, t).clients
    return found / times


def test_the_unknown_are_drawn_by_their_samples() -> None:
    """One place for 9 or 1 sample; six standard errors of 1,000 draws."""
    part = ready(population([1, 1], samples=[9, 1]), scheme="full", budget=0.5)
    assert abs(frequency(part, 0, 0) - 0.9) < 6 * np.sqrt(0.09 / 1000)


def test_the_known_are_drawn_by_their_scores() -> None:
    """Utilities at both ends of the scale: scores 1 + √(0.1·ln 3) and √(0.1·ln 3); the loser is in reach, or not."""
    late = np.sqrt(0.1 * np.log(3))
    expected = (1 + late) / (1 + 2 * late)
    for cut_off, share in ((0.1, expected), (0.9, 1.0)):
        part = ready(population([1, 1]), scheme="full", budget=0.5, cut_off=cut_off, cap=1.0)
        tell(part, 0, [2, 1])
        assert abs(frequency(part, 2, 0) - share) <= 6 * np.sqrt(share * (1 - share) / 1000)


def test_every_round_and_seed_has_a_draw_of_its_own() -> None:
    part = ready(population([1] * 100), scheme="full", budget=0.1)
    draws = {(t, seed): tuple(chosen(part, t, seed)) for t in range(3) for seed in range(3)}
    assert len(set(draws.values())) == len(draws)


def test_who_is_worth_nothing_fills_the_cohort_last() -> None:
    """So steep a penalty leaves only the fastest a score above zero."""
    part = ready(population([1, 2, 3, 4, 5]), scheme="full", alpha=1e6, round_threshold=0)
    tell(part, 0, [1, 2, 3, 4, 5])
    assert (part.scores(1, np.arange(5)) > 0).tolist() == [True, False, False, False, False]
    cohorts = [chosen(part, 1, seed) for seed in range(20)]
    assert all(0 in who and len(who) == 3 for who in cohorts)
    assert len({tuple(who) for who in cohorts}) > 1


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0] * 12, [30, 30, 30, 30, 30, 35, 35, 40, 40, 45, 45, 50]),
        ([1.0] * 4 + [1.5, 1.5, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75], [30] * 9 + [35, 35, 40]),
        ([1.0] * 4 + [10.0] * 8, [30, 30, 30, 30, 30, 25, 25, 30, 30, 35, 35, 40]),
        ([1.0] * 4 + [2.0, 2.0] + [20.0] * 6, [30] * 7 + [25, 25, 30, 30, 35]),
    ],
)
def test_the_pacer_moves_at_its_steps_only(losses: list[float], expected: list[int]) -> None:
    """Steps of two rounds, from the fourth on. In round 0 nobody has been seen before, which counts as nothing."""
    part = ready(population([1, 2]), scheme="full", pacer_step=2)
    found = []
    for t, loss in enumerate(losses):
        tell(part, t, [loss, loss])
        found.append(round(float(part.state_dict()["threshold"])))
    assert found == expected
    assert len(part.state_dict()["history"]) == 4, "it remembers two steps"


def test_the_pacer_stays_within_its_ends() -> None:
    up = ready(population([1, 2]), scheme="full", pacer_step=1, pacer_delta=40)
    down = ready(population([1, 2]), scheme="full", pacer_step=1, pacer_delta=20)
    for t in range(6):
        tell(up, t, [1, 1])
        tell(down, t, [10.0**t] * 2)
    assert float(up.state_dict()["threshold"]) == 100
    assert float(down.state_dict()["threshold"]) == 20
    assert (up.scores(6, np.arange(2)) == np.sqrt(0.1 * np.log(7) / 6)).all(), "then nobody is too slow"


def test_a_broken_client_does_not_reach_the_pacer_or_the_scores() -> None:
    part = ready(population([1, 2, 3]), scheme="full")
    tell(part, 0, [1, NAN, 2])
    tell(part, 1, [INF, NAN, 2])
    assert part.state_dict()["history"].tolist() == [0, 20]
    assert part.state_dict()["utility"].tolist() == [10, 0, 20]
    assert np.isfinite(part.scores(2, np.arange(3))).all()


# --- memory, refusals and runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["top", "full"])
def test_a_resumed_state_chooses_the_same(scheme: str) -> None:
    world = population([5, 3, 8, 1, 9, 2, 7], samples=[3, 9, 4, 4, 8, 1, 2])
    part = ready(world, scheme=scheme, pacer_step=2, budget=0.4)
    draw = np.random.default_rng(0)
    first = chosen(part, 0)
    for t in range(12):
        who = chosen(part, t)
        again = ready(world, scheme=scheme, pacer_step=2, budget=0.4)
        again.state.load_state_dict(part.state_dict())
        assert chosen(again, t) == who
        assert chosen(again, 0) == first, "a resumed run tries out round 0 as the first one did"
        losses = draw.uniform(0, 3, len(who))
        for one in (part, again):
            tell(one, t, losses, who)
        assert_same(again.state_dict(), part.state_dict())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"loss": torch.zeros(3)}, "has no state 'loss'"),
        ({"utility": torch.zeros(4, dtype=torch.float64)}, "4 clients in 'utility' and 3 in 'last'"),
        ({"last": torch.zeros(3)}, "'last' of torch.int64"),
        ({"threshold": torch.zeros(1, dtype=torch.float64)}, "'threshold' of torch.float64 with 0 dimensions"),
        ({"history": torch.zeros(2, 2, dtype=torch.float64)}, "'history' of torch.float64 with 1 dimensions"),
    ],
)
def test_a_state_of_something_else_is_refused(wrong: dict[str, torch.Tensor], says: str) -> None:
    part = ready(population([1, 2, 3]))
    tell(part, 0, [1, 2, 3])
    with pytest.raises(ValueError, match=says):
        part.state.load_state_dict(part.state_dict() | wrong)
    with pytest.raises(ValueError, match="needs a state"):
        part.state.load_state_dict({})


def test_without_devices_the_sentence_says_what_to_add() -> None:
    with pytest.raises(UserError, match=r"^select=oort needs to know .* add --devices feddd, or devices=Devices"):
        Experiment(mlp(), Recipe(select=Oort()), rounds=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget", 0),
        ("alpha", -1),
        ("scheme", "best"),
        ("exploration", 1.1),
        ("exploration_decay", 0),
        ("exploration_min", -0.1),
        ("cut_off", 0),
        ("cap", 2),
        ("round_threshold", 101),
        ("pacer_step", 0),
        ("pacer_delta", -1),
    ],
)
def test_impossible_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        Oort(**{name: value})


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("scheme", ["top", "full"])
def test_a_run_resumes_to_the_same_state(scheme: str, chunk: int | None) -> None:
    task, devices = mlp(), Devices.drawn(len(SIZES), 0)
    recipe = Recipe(select=Oort(scheme=scheme, budget=0.5, pacer_step=1), local=training(epochs=1, batch_size=3))
    options: dict[str, Any] = {"devices": devices, "chunk": chunk, "seed": 4}
    whole = Experiment(task, recipe, rounds=3, **options)
    row = whole.run()[-1]
    size = sum(shape.numel() for shape in task.shapes.values()) * task.itemsize
    squares = task.itemsize  # the mean squared loss of a client's samples
    assert row["up_bytes"] == (size + squares) * (3 + 3 + (6 if scheme == "top" else 3))
    half = Experiment(task, recipe, rounds=2, **options)
    half.run()
    rest = Experiment(task, recipe, rounds=3, **options)
    rest.load_state_dict(*half.state_dict())
    assert rest.run()[-1] | {"seconds": 0} == row | {"seconds": 0}
    assert_same(rest.state_dict()[0], whole.state_dict()[0])


@pytest.mark.parametrize("scheme", ["top", "full"])
def test_a_run_goes_on_with_a_client_that_has_no_finite_loss(scheme: str) -> None:
    task = recommender()
    train = task.federation.train
    train.label[train.offsets[3] : train.offsets[4]] = 1e30  # its square is infinite in float32
    recipe = Recipe(select=Oort(scheme=scheme, budget=0.7), local=training(lr=0.01, iterations=2))
    run = Experiment(task, recipe, rounds=4, devices=Devices.drawn(len(SIZES), 0))
    run.run()
    state = run.server.states["select"].state_dict()
    assert run.rejected > 0
    assert state["utility"].isfinite().all()
    assert state["utility"][3] == 0
    assert (state["utility"] > 0).sum() == len(SIZES) - 1
    if scheme == "top":
        assert run.rejected == 1, "after the first round it is not chosen again"
