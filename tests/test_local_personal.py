"""FedPer, FedRep, FedBABU, LG-FedAvg, Ditto, APFL and local training against plain loops."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedslice.combine import HeatCorrected
from fedslice.core.entries import View
from fedslice.core.errors import UserError
from fedslice.core.slice import Slice, Values
from fedslice.local import APFL, SGD, Ditto, FedBABU, FedRep
from fedslice.recipe import Recipe
from fedslice.recipes import get
from fedslice.runs import checkpoint
from fedslice.select import Everyone, Uniform
from fedslice.server.drift import Drift
from fedslice.slices import ChannelDropout, FeatureRows, Shared, Width
from fedslice.task import Task
from fedslice.training.events import Listener, Trained
from fedslice.training.experiment import Experiment
from test_local_momentum import CLIENTS, HEAVY, SMALL, Moves, cohort, mean, plain, recipe
from toys import SIZES, assert_close, assert_same, classifier, double, memory_of, mlp, recommender, run, training


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


# --- one model in two parts ---------------------------------------------------------------------------------------

HEAD = ("second.weight", "second.bias")
BODY = ("first.weight", "first.bias")


def split(task: Task, method: Recipe, private: tuple[str, ...], rounds: int, moves: Moves | None) -> tuple[Values, Any]:
    """A plain federation in which some parameters never leave a client."""
    model, own = task.initial(0), [{} for _ in SIZES]
    for t in range(rounds):
        clients = cohort(method, t)
        ends = [plain(task, method.local, model | own[c], t, c, moves) for c in clients]
        model = model | {n: v for n, v in mean(ends).items() if n not in private}
        for c, end in zip(clients, ends, strict=True):
            own[c] = {n: end[n] for n in private}
    return model, own


def kept(experiment: Experiment, client: int, place: str = "slices", kind: str = "kept") -> Values:
    out, part = {}, experiment.population.parts[place]
    for name in experiment.task.shapes:
        memory = part.get(f"{kind}/{name}", torch.tensor([client]))
        if memory is not None and bool(memory[1][0]):
            out[name] = memory[0][0]
        elif (rows := part.get_rows(f"{kind}/{name}", torch.tensor([client]))) is not None:
            out[name] = rows[1][0]
    return out


def own_model(experiment: Experiment, client: int) -> Values:
    return kept(experiment, client, "local", "own")


def everyone_in(method: Recipe, rounds: int) -> list[int]:
    """The clients that take part in some round."""
    return sorted({client for t in range(rounds) for client in cohort(method, t)})


def first_half(s: int, steps: int) -> list[str]:
    return list(HEAD if s < (steps + 1) // 2 else BODY)


PARTED: dict[str, tuple[dict[str, Any], tuple[str, ...], Moves | None]] = {
    "fedper": ({}, HEAD, None),
    "lg-fedavg": ({}, BODY, None),
    "local": ({}, HEAD + BODY, None),
    "fedbabu": ({}, HEAD, lambda s, steps: list(BODY)),
    "fedrep": ({}, HEAD, first_half),
    "fedrep-steps": ({"head_iterations": 3}, HEAD, lambda s, steps: list(HEAD if s < 3 else BODY)),
    "fedrep-passes": (
        {"iterations": None, "epochs": 3, "head_epochs": 2},
        HEAD,
        lambda s, steps: list(HEAD if s < steps * 2 // 3 else BODY),
    ),
}


@pytest.mark.parametrize("options", [{}, HEAVY | {"clip": 0.3}], ids=["plain", "heavy"])
@pytest.mark.parametrize("name", PARTED)
def test_each_is_a_plain_loop_with_private_parts(name: str, options: dict[str, Any]) -> None:
    """Passes over clients of unequal sizes change from head to body in different steps."""
    own, private, moves = PARTED[name]
    task, base = mlp(), name.removesuffix("-steps").removesuffix("-passes")
    method = get(base, cohort=4, weights="uniform", **SMALL | own | options)
    model, memories = split(task, method, private, 3, moves)
    for engine, chunk in (("vectorized", 4), ("sequential", 2)):
        done = run(task, method, rounds=3, engine=engine, chunk=chunk)
        assert_close(done.model, model, rtol=1e-9, atol=1e-12)
        for client, memory in enumerate(memories):
            assert_close(kept(done, client), memory, rtol=1e-9, atol=1e-12)


class Ends(Listener):
    """Where clients start and end their training, from now on."""

    def __init__(self, experiment: Experiment) -> None:
        self.seen: list[tuple[Values, Values]] = []
        experiment.events.add(self)

    def trained(self, event: Trained) -> None:
        self.seen.append((event.work.start, event.end))


@pytest.mark.parametrize("options", [SMALL, SMALL | HEAVY], ids=["plain", "heavy"])
@pytest.mark.parametrize(("steps", "rests", "moves"), [(1, BODY, HEAD), (2, (), HEAD + BODY)])
def test_the_body_rests_while_the_head_is_trained(
    steps: int, rests: tuple[str, ...], moves: tuple[str, ...], options: dict[str, Any]
) -> None:
    """To the bit; with a step more it moves."""
    experiment = Experiment(mlp(), get("fedrep", cohort=3, **options | {"iterations": steps}), rounds=2)
    ends = Ends(experiment)
    experiment.run()
    assert len(ends.seen) >= 2
    for start, end in ends.seen:
        assert all(torch.equal(start[name], end[name]) for name in rests)
        assert not any(torch.equal(start[name], end[name]) for name in moves)


def test_fedbabu_keeps_the_initial_head_and_tunes_everything() -> None:
    task = mlp()
    done = run(task, get("fedbabu", cohort=4, **SMALL | HEAVY), rounds=3)
    start = task.initial(0)
    for client in range(CLIENTS):
        for name, value in kept(done, client).items():
            assert torch.equal(value, start[name])
    assert all(torch.equal(done.model[n], start[n]) == (n in HEAD) for n in start)
    tuner = done.recipe.local.tuner()
    assert tuner.terms == ()
    assert tuner.settings() == {n: v for n, v in done.recipe.local.settings().items() if n in tuner.settings()}


def test_a_model_that_is_all_head_stands_still() -> None:
    class Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.only(x)

    task = classifier(Only())
    done = run(task, recipe(training(FedBABU, **SMALL)), rounds=2)
    assert_same(done.model, task.initial(0))


def test_local_training_sends_nothing() -> None:
    """And receives the initial model, once."""
    task = mlp()
    done = run(task, get("local", cohort=4, **SMALL), rounds=3)
    assert done.ledger.up_bytes == 0
    assert done.ledger.down_bytes == len(everyone_in(done.recipe, 3)) * 51 * 8
    assert_same(done.model, task.initial(0))
    assert len(kept(done, cohort(done.recipe, 0)[0])) == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"head_epochs": 2}, "must be fewer than epochs, which is None"),
        ({"epochs": 2, "head_epochs": 2}, "must be fewer than epochs, which is 2"),
        ({"head_iterations": 10}, "must be fewer than iterations, which is 10"),
        ({"epochs": 2, "head_iterations": 1}, "must be fewer than iterations, which is None"),
    ],
)
def test_a_head_that_leaves_nothing_to_the_body_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        get("fedrep", **options)


# --- two models ---------------------------------------------------------------------------------------------------


def model_of(experiment: Experiment, client: int) -> Values:
    """What a client is tested with."""
    who = torch.tensor([client])
    layout = Slice.whole(1, experiment.task.shapes)
    came = {"first": View(experiment.task.initial(0), layout)}
    start, memory = layout.gather(experiment.model), experiment.population.parts["local"]
    found = experiment.recipe.local.personal(memory, who, layout, start, came)
    return {name: value[0] for name, value in found.items()}


def alone(task: Task, method: Recipe, rounds: int, client: int) -> Values:
    """A client that trains from the initial model whenever its turn comes."""
    model = task.initial(0)
    for t in range(rounds):
        if client in cohort(method, t):
            model = plain(task, method.local, model, t, client)
    return model


TWINS: dict[str, Callable[..., SGD]] = {
    "ditto": lambda **o: training(Ditto, **{"pull": 0.7} | SMALL | o),
    "apfl": lambda **o: training(APFL, **{"alpha": 0.3} | SMALL | o),
    "adaptive": lambda **o: training(APFL, **{"alpha": 0.3, "adaptive": True} | SMALL | o),
}
every_twin = pytest.mark.parametrize("name", TWINS)


@pytest.mark.parametrize("options", [{}, HEAVY | {"clip": 0.3}], ids=["plain", "heavy"])
@every_twin
def test_the_model_that_travels_is_fedavg_to_the_bit(name: str, options: dict[str, Any]) -> None:
    """A client is sent the initial model besides, once."""
    task = mlp()
    one, other = (run(task, recipe(kind), rounds=3) for kind in (TWINS[name](**options), training(**SMALL | options)))
    assert_same(one.model, other.model)
    first = len(everyone_in(one.recipe, 3)) * 51 * 8
    assert (one.ledger.up_bytes, one.ledger.down_bytes) == (other.ledger.up_bytes, other.ledger.down_bytes + first)


def test_ditto_without_a_pull_is_local_training() -> None:
    task, method = mlp(), recipe(training(Ditto, pull=0, **SMALL | HEAVY))
    done = run(task, method, rounds=4)
    for client in range(CLIENTS):
        assert_close(model_of(done, client), alone(task, method, 4, client), rtol=1e-10, atol=1e-13)


def test_ditto_follows_its_algorithm() -> None:
    """Li et al. 2021, algorithm 1: λ/2·‖v − X‖² in a plain loss, X the model that came down."""
    task, method = mlp(), recipe(training(Ditto, pull=0.7, **SMALL))
    done = run(task, method, rounds=3, chunk=3)
    model, own = task.initial(0), [task.initial(0) for _ in SIZES]
    for t in range(3):
        received, clients = model, cohort(method, t)

        def pull(named: dict[str, nn.Parameter], received: Values = received) -> Tensor:
            return 0.35 * sum(((p - received[n]) ** 2).sum() for n, p in named.items())

        for c in clients:
            own[c] = plain(task, method.local, own[c], t, c, term=pull)
        model = mean([plain(task, method.local, received, t, c) for c in clients])
    for client in range(CLIENTS):
        assert_close(model_of(done, client), own[client], rtol=1e-9, atol=1e-12)


def test_apfl_at_its_ends() -> None:
    """α = 0 is FedAvg, α = 1 is local training, for everyone who took part."""
    task = mlp()
    none, whole = (recipe(training(APFL, alpha=alpha, **SMALL)) for alpha in (0, 1))
    done = run(task, none, rounds=3)
    for client in range(CLIENTS):
        assert_same(model_of(done, client), done.model)
    done = run(task, whole, rounds=3)
    for client in range(CLIENTS):
        assert_close(model_of(done, client), alone(task, whole, 3, client), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl_follows_its_algorithm(adaptive: bool) -> None:
    """Deng et al. 2020, algorithm 1 and the step of α, client by client with gradients written out."""
    task, method = mlp(), recipe(training(APFL, alpha=0.3, adaptive=adaptive, **SMALL | {"lr": 0.3}))
    done = run(task, method, rounds=3, chunk=3)
    samples, rate = task.federation.train, method.local.optimizer.lr
    model, own, shares = task.initial(0), [task.initial(0) for _ in SIZES], [0.3] * CLIENTS

    def gradient(at: Values, index: Tensor) -> Values:
        leaves = {n: v.clone().requires_grad_() for n, v in at.items()}
        features, label = samples.batch(index)
        found = torch.autograd.grad(task.loss(task.forward(leaves, features), label).mean(), list(leaves.values()))
        return dict(zip(leaves, found, strict=True))

    for t in range(3):
        trained = []
        for c in cohort(method, t):
            w, v, who = dict(model), own[c], torch.tensor([c])
            batches = method.local.sampler.batches(t, who, torch.zeros(1), samples.sizes[who], 1, 0)
            for s, index in enumerate(batches.index[0] + samples.offsets[c]):
                share = shares[c]
                mixed = gradient({n: share * v[n] + (1 - share) * w[n] for n in w}, index)
                if adaptive and s == 0:
                    slope = sum(float(((v[n] - w[n]) * mixed[n]).sum()) for n in w)
                    shares[c] = min(max(share - rate * slope, 0.0), 1.0)
                v = {n: v[n] - rate * share * mixed[n] for n in v}
                w = {n: w[n] - rate * g for n, g in gradient(w, index).items()}
            own[c] = v
            trained.append(w)
        model = mean(trained)
    assert_close(done.model, model, rtol=1e-9, atol=1e-12)
    for c in range(CLIENTS):
        mixed = {n: shares[c] * own[c][n] + (1 - shares[c]) * model[n] for n in model}
        assert_close(model_of(done, c), mixed, rtol=1e-9, atol=1e-12)
    assert adaptive == (len(set(shares)) > 3), "clients come to mixtures of their own"


def test_a_share_stays_between_nothing_and_everything() -> None:
    done = run(
        mlp(), recipe(training(APFL, alpha=0.5, adaptive=True, **SMALL | {"lr": 5.0}), select=Everyone()), rounds=4
    )
    memory = memory_of(done).get("mixture", torch.arange(CLIENTS))
    assert memory is not None
    assert float(memory[0].min()) == 0
    assert float(memory[0].max()) <= 1


CASES = [(name, mlp, {}) for name in TWINS]
CASES += [(name, recommender, {"slices": FeatureRows(), "combine": HeatCorrected()}) for name in ("ditto", "adaptive")]
every_case = pytest.mark.parametrize(
    ("name", "task_of", "parts"), CASES, ids=[f"{name}-{task.__name__}" for name, task, _ in CASES]
)


@every_case
def test_engines_and_chunks_agree(name: str, task_of: Callable[[], Task], parts: dict[str, Any]) -> None:
    """With passes over unequal clients, on tables of which each holds other rows."""
    task, method = task_of(), recipe(TWINS[name](iterations=None, epochs=1, momentum=0.5), **parts)
    one = run(task, method, rounds=2, engine="vectorized", chunk=6)
    other = run(task, method, rounds=2, engine="sequential", chunk=3)
    assert_close(other.model, one.model, rtol=1e-9, atol=1e-12)
    for client in range(CLIENTS):
        assert_close(own_model(other, client), own_model(one, client), rtol=1e-9, atol=1e-12)


@every_case
def test_resuming_goes_on_to_the_bit(
    name: str, task_of: Callable[[], Task], parts: dict[str, Any], tmp_path: Path
) -> None:
    task, method = task_of(), recipe(TWINS[name](), **parts)
    whole, first = run(task, method, rounds=3), run(task, method, rounds=1)
    checkpoint.save(tmp_path / "state", *first.state_dict())
    second = Experiment(task, method, rounds=3)
    second.load_state_dict(*checkpoint.load(tmp_path / "state"))
    second.run()
    assert_same(second.model, whole.model)
    assert_same(*(done.population.memories.store.state_dict() for done in (second, whole)))


def test_rows_that_a_client_does_not_hold_are_the_servers() -> None:
    task = recommender()
    done = run(task, recipe(TWINS["ditto"](), slices=FeatureRows(), combine=HeatCorrected()), rounds=2)
    client = cohort(done.recipe, 0)[0]
    hold = done.recipe.slices.hold(done.population.parts["slices"], 0, torch.tensor([client]))
    axis, found = hold.axes["item.weight"][0], model_of(done, client)["item.weight"]
    assert axis is not None
    mine = torch.zeros(len(found), dtype=torch.bool)
    mine[axis.ids[0]] = True
    assert torch.equal(found[~mine], done.model["item.weight"][~mine])
    assert not bool((found[mine] == done.model["item.weight"][mine]).any())


@pytest.mark.parametrize("name", ["ditto", "apfl"])
def test_of_a_table_a_client_keeps_its_own_rows_and_no_others(name: str) -> None:
    task = recommender()
    done = run(task, recipe(TWINS[name](), slices=FeatureRows()), rounds=3)
    seen, parts = torch.tensor(everyone_in(done.recipe, 3)), done.population.parts
    for table in ("item.weight", "tag.weight"):
        memory = memory_of(done).get_rows(f"own/{table}", seen)
        held = done.recipe.slices.hold(parts["slices"], 0, seen).axes[table][0]
        assert memory is not None
        assert held is not None
        assert torch.equal(memory[0].ids * memory[0].mask, held.ids * held.mask)
        assert memory_of(done).get(f"own/{table}", seen) is None


def test_a_broken_client_keeps_its_own_model() -> None:
    task, last = mlp(), CLIENTS - 1
    experiment = Experiment(task, recipe(TWINS["adaptive"](), select=Everyone()), rounds=2, eval_every=1)
    rows = experiment.stream()
    next(rows), next(rows)
    before = {n: v.clone() for n, v in own_model(experiment, last).items()}
    column = task.federation.train.features["x"]
    assert isinstance(column, Tensor)
    column[-SIZES[-1] :] = torch.inf
    next(rows)
    assert experiment.rejected == 1
    assert_same(own_model(experiment, last), before)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"slices": Shared("body")}, "slices=shared clients have layers of their own already"),
        ({"slices": ChannelDropout()}, "slices=channel-dropout clients have layers"),
        ({"slices": Width(widths="1,0.5")}, "slices=width clients have layers"),
        ({"select": Uniform(replacement=True)}, "draw without replacement"),
        ({"local": training(Ditto), "server": Drift()}, "local=ditto has none"),
    ],
)
@every_twin
def test_impossible_recipes_are_refused(name: str, parts: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        recipe(**{"local": TWINS[name]()} | parts)


def test_what_is_tuned_is_the_clients_own_model() -> None:
    for local in (training(Ditto), training(APFL), training(FedBABU)):
        assert local.tuner().terms == ()
    assert training(FedRep).tuner().terms == (FedRep(),)
