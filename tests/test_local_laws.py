"""What holds for every local method that FLSS compares: engines, chunks, resuming, broken clients, bytes (T70)."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedslice.combine import Coverage, HeatCorrected, Mean
from fedslice.core.errors import UserError
from fedslice.local import SGD, FedDyn, FedGen, FedNTD, FedRep, Local, Moon, Scaffold
from fedslice.recipe import Recipe
from fedslice.runs import checkpoint
from fedslice.select import Everyone, Uniform
from fedslice.server import ServerSGD
from fedslice.server.drift import Drift
from fedslice.slices import ChannelDropout, FeatureRows, Shared, Width
from fedslice.task import Task
from fedslice.training.experiment import Experiment
from toys import (
    SIZES,
    assert_close,
    assert_same,
    chosen,
    classifier,
    double,
    mlp,
    pair,
    recommender,
    run,
    training,
)

SMALL: dict[str, Any] = {"iterations": 3, "batch_size": 4, "lr": 0.05}
TINY = {"width": 6, "generated": 4, "server_steps": 3}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


def recipe(local: Local, **parts: Any) -> Recipe:
    server = Drift() if "accumulates" in local.provides else ServerSGD()
    given: dict[str, Any] = {"select": Uniform(cohort=4), "combine": Mean(weights="uniform"), "server": server}
    return Recipe(local=local, **(given | parts))


METHODS: dict[str, Callable[..., SGD]] = {
    "moon": lambda **o: training(Moon, **{"mu": 1.0, "tau": 0.5} | SMALL | o),
    "fedntd": lambda **o: training(FedNTD, **{"beta": 1.0, "tau": 2.0} | SMALL | o),
    "feddyn": lambda **o: training(FedDyn, **SMALL | o),
    "feddc": lambda **o: training(FedDyn, Scaffold, **SMALL | o),
    "fedgen": lambda **o: training(FedGen, **TINY | SMALL | o),
}
ON_TABLES = ("moon", "feddyn", "feddc")
CASES = [(name, mlp, {}) for name in METHODS]
CASES += [(name, recommender, {}) for name in ON_TABLES]
CASES += [(name, recommender, {"slices": FeatureRows(), "combine": HeatCorrected()}) for name in ON_TABLES]
IDS = [f"{name}-{task.__name__}{'-rows' if parts else ''}" for name, task, parts in CASES]
every_case = pytest.mark.parametrize(("name", "task_of", "parts"), CASES, ids=IDS)
every_method = pytest.mark.parametrize("name", METHODS)


@every_case
def test_engines_and_chunks_agree(name: str, task_of: Callable[[], Task], parts: dict[str, Any]) -> None:
    """With passes over unequal clients, who take unequal numbers of steps."""
    task, method = task_of(), recipe(METHODS[name](iterations=None, epochs=1), **parts)
    one = run(task, method, rounds=2, engine="vectorized", chunk=6)
    for engine, chunk in (("vectorized", 2), ("sequential", 4)):
        other = run(task, method, rounds=2, engine=engine, chunk=chunk)
        assert_close(other.model, one.model, rtol=1e-9, atol=1e-12)
        assert_close(other.server.state_dict(), one.server.state_dict(), rtol=1e-8, atol=1e-11)


@every_case
def test_resuming_goes_on_to_the_bit(
    name: str, task_of: Callable[[], Task], parts: dict[str, Any], tmp_path: Path
) -> None:
    task, method = task_of(), recipe(METHODS[name](), **parts)
    whole, first = run(task, method, rounds=3, chunk=3), run(task, method, rounds=2, chunk=3)
    checkpoint.save(tmp_path / "state", *first.state_dict())
    second = Experiment(task, method, rounds=3, chunk=3)
    second.load_state_dict(*checkpoint.load(tmp_path / "state"))
    second.run()
    assert_same(second.model, whole.model)
    assert_same(second.population.memories.state_dict(), whole.population.memories.state_dict())
    assert_same(second.server.state_dict(), whole.server.state_dict())


@every_method
def test_a_state_of_another_kind_is_refused(name: str) -> None:
    experiment = Experiment(mlp(), recipe(METHODS[name]()), rounds=1)
    with pytest.raises(ValueError, match="state"):
        experiment.server.states["local"].load_state_dict({"momentum.first.weight": torch.zeros(1)})


def memories(experiment: Experiment, client: int) -> dict[str, Tensor]:
    """All that a client remembers."""
    out, who, places = {}, torch.tensor([client]), experiment.population.parts["local"].terms.values()
    keys = [f"{kind}/{name}" for name in experiment.task.shapes for kind in ("last", "drift", "variate")]
    for place, key in product(places, keys):
        dense, rows = place.get(key, who), place.get_rows(key, who)
        if dense is not None:
            out[key] = dense[0]
        elif rows is not None:
            out[key], out[f"{key}/ids"] = rows[1], rows[0].ids
    return out


@pytest.mark.parametrize("task_of", [mlp, recommender])
@pytest.mark.parametrize("name", ON_TABLES)
def test_a_broken_client_leaves_its_memories_as_they_were(name: str, task_of: Callable[[], Task]) -> None:
    task, last = task_of(), len(SIZES) - 1
    experiment = Experiment(task, recipe(METHODS[name](), select=Everyone()), rounds=2, eval_every=1)
    rows = experiment.stream()
    next(rows), next(rows)
    before = {client: memories(experiment, client) for client in (0, last)}
    assert any(bool(value.any()) for value in before[last].values())
    for column in (*task.federation.train.features.values(), task.federation.train.label):
        if isinstance(column, Tensor) and column.is_floating_point():
            column[-SIZES[-1] :] = torch.inf
    next(rows)
    assert experiment.rejected == 1
    assert_same(memories(experiment, last), before[last])
    assert any(not torch.equal(value, before[0][key]) for key, value in memories(experiment, 0).items())
    assert all(bool(torch.isfinite(value).all()) for value in experiment.model.values())
    states = [*experiment.server.state_dict().values(), *memories(experiment, 0).values()]
    assert all(bool(torch.isfinite(value).all()) for value in states)


@pytest.mark.parametrize("name", ON_TABLES)
def test_a_first_round_without_a_fine_client_leaves_no_memories(name: str) -> None:
    task = mlp()
    experiment = Experiment(task, recipe(METHODS[name](), select=Everyone()), rounds=2, eval_every=1)
    column = task.federation.train.features["x"]
    assert isinstance(column, Tensor)
    true = column.clone()
    rows = experiment.stream()
    next(rows)
    column.fill_(torch.inf)
    next(rows)
    column.copy_(true)
    assert experiment.rejected == len(SIZES)
    assert_same(experiment.model, task.initial(0))
    next(rows)
    assert experiment.rejected == len(SIZES)


@every_method
def test_bytes(name: str) -> None:
    """FedDC doubles both ways. FedGen adds the generator and the shares of labels on the way down, and how many samples
    of each label a client has when it enrols; MOON the initial model, once for each client that takes part.
    """
    task, method = mlp(), recipe(METHODS[name]())
    plain, done = run(task, recipe(training(**SMALL)), rounds=2), run(task, method, rounds=2)
    cohorts = [set(chosen(method, t).clients.tolist()) for t in range(2)]
    sent, newcomers = 2 * 4, len(set.union(*cohorts))  # messages, and those that are a client's first
    assert newcomers > 4
    generator = (6 + 3) * 6 + 6 + 2 * 6 + 6 * 6 + 6
    extra = {
        "feddc": (sent * 51 * 8, sent * 51 * 8),
        "fedgen": (0, sent * (8 * generator + 4 * 3)),
        "moon": (0, newcomers * 51 * 8),
    }
    up, down = extra.get(name, (0, 0))
    assert plain.ledger.up_bytes == plain.ledger.down_bytes == sent * 51 * 8
    assert (done.ledger.up_bytes, done.ledger.down_bytes) == (sent * 51 * 8 + up, sent * 51 * 8 + down)
    told = {"labels": len(SIZES) * 4 * 3} if name == "fedgen" else {}
    assert done.ledger.enrol == plain.ledger.enrol | told


@pytest.mark.parametrize(
    ("local", "task_of"),
    [
        (lambda: training(Moon, mu=0, **SMALL), mlp),
        (lambda: training(Moon, mu=0, **SMALL), recommender),
        (lambda: training(FedNTD, beta=0, **SMALL), mlp),
        (lambda: training(FedGen, weight=0, **TINY, **SMALL), mlp),
        (lambda: training(FedGen, weight=0, **TINY | {"server_steps": 0}, **SMALL), mlp),
    ],
)
def test_without_its_term_a_method_is_fedavg(local: Callable[[], SGD], task_of: Callable[[], Task]) -> None:
    """T70."""
    task = task_of()
    assert_close(
        run(task, recipe(local()), rounds=3).model, run(task, recipe(training(**SMALL)), rounds=3).model, 1e-12, 1e-14
    )


@every_method
def test_with_its_term_it_is_not(name: str) -> None:
    task = mlp()
    one, other = run(task, recipe(METHODS[name]()), rounds=3), run(task, recipe(training(**SMALL)), rounds=3)
    assert all(float((one.model[n] - other.model[n]).abs().max()) > 1e-5 for n in ("second.weight", "second.bias"))


@pytest.mark.parametrize("name", ON_TABLES)
def test_private_parameters_are_trained_as_they_are(name: str) -> None:
    """With shared blocks nothing private is remembered but the block itself."""
    done = run(pair(), recipe(METHODS[name](), slices=Shared(patterns="shared.*")), rounds=3)
    stored = done.population.memories.store.state_dict()
    kept = [key for key in stored if not key.startswith("slices.kept/") and not key.endswith("/places")]
    assert kept
    assert all("/shared." in key for key in kept)


NARROW = Width(widths="1,0.5")


@pytest.mark.parametrize(
    ("name", "parts", "says"),
    [
        *((name, {"slices": ChannelDropout()}, "starts from parts that only the client") for name in ON_TABLES),
        ("fedntd", {"slices": ChannelDropout()}, "starts from parts that only the client"),
        *((name, {"slices": NARROW}, "memories of whole layers") for name in ON_TABLES),
        *((name, {"select": Uniform(replacement=True)}, "draw without replacement") for name in ON_TABLES),
        ("fedgen", {"slices": NARROW}, "layers of their own"),
        ("fedgen", {"slices": Shared(patterns="shared.*")}, "layers of their own"),
        ("feddyn", {"server": ServerSGD()}, "use server=drift"),
        ("feddc", {"server": ServerSGD()}, "use server=drift"),
        ("moon", {"server": Drift()}, "local=moon has none"),
        ("feddyn", {"combine": Coverage()}, "divides each coordinate by the round's senders"),
    ],
)
def test_impossible_recipes_are_refused(name: str, parts: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        recipe(METHODS[name](), **parts)


class Headless(nn.Module):
    """A network whose only layer is not Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Bilinear(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x, x)


class Silent(nn.Module):
    """A network that uses the weight of its last layer and never calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.last.weight.mT + self.last.bias


@pytest.mark.parametrize(
    ("local", "task_of", "says"),
    [
        (
            training(Moon),
            lambda: classifier(Headless()),
            "no Linear layer of its own that is trained, and local=moon needs",
        ),
        (training(Moon), lambda: classifier(Silent()), "never calls its last Linear layer 'last'"),
        (training(FedGen), lambda: classifier(Headless()), "no Linear layer .*, and local=fedgen needs"),
        (training(FedRep), lambda: classifier(Headless()), "no Linear layer .*, and local=fedrep needs"),
        (
            training(FedGen),
            recommender,
            "^local=fedgen needs labels that are class numbers, .* has float64 numbers as labels",
        ),
        (
            training(FedNTD),
            recommender,
            "^local=fedntd needs labels that are class numbers, .* has float64 numbers as labels",
        ),
        (training(FedNTD), lambda: two_classes(2), "at least 3 classes"),
        (training(FedGen), lambda: two_classes(1), "has 1 outputs"),
    ],
)
def test_tasks_that_do_not_fit_are_refused(local: Local, task_of: Callable[[], Task], says: str) -> None:
    task = task_of()
    with pytest.raises(UserError, match=says):
        run(task, recipe(local))


class Few(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


def two_classes(outputs: int) -> Task:
    task = mlp()
    task.federation.train.label.clamp_(max=1)
    return Task(task.federation, Few(outputs), lambda output, label: (output[:, 0] - label) ** 2)


def test_fedntd_trains_narrow_networks() -> None:
    """The received narrow network is the teacher of the narrow one; padding says nothing."""
    task, method = mlp(), recipe(METHODS["fedntd"](), slices=NARROW, combine=Coverage())
    one, other = (run(task, method, rounds=3, engine=engine, chunk=3) for engine in ("vectorized", "sequential"))
    assert_close(one.model, other.model, rtol=1e-9, atol=1e-12)


def test_a_frozen_network_draws_no_dropout() -> None:
    """The teacher is asked without dropout, and the network in training has it."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = module

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    task = classifier(Net())
    seen: list[bool] = []
    module[1].register_forward_hook(lambda layer, *_: seen.append(layer.training))
    run(
        task,
        recipe(training(Moon, **SMALL | {"iterations": 2}), select=Uniform(cohort=1)),
        engine="sequential",
        chunk=1,
    )
    trained = [seen[i : i + 3] for i in range(1, len(seen)) if seen[i]]
    assert trained
    assert all(pattern == [True, False, False] for pattern in trained)
