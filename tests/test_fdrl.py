"""FDRL against a plain loop, its distances against their formulas, its theorems on a convex instance (T60 to T64)."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedslice.combine import HeatCorrected, Mean
from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.data.federation import Federation
from fedslice.local import FDRL
from fedslice.local.sgd import Forward
from fedslice.models.discriminative import Discriminative
from fedslice.recipe import Recipe
from fedslice.recipes import get
from fedslice.select import Uniform
from fedslice.select.base import Cohort, Select
from fedslice.slices import Shared
from fedslice.task import Loss, Task
from fedslice.training.experiment import Experiment
from fedslice.training.work import Batch, Work
from toys import SIZES, Pair, assert_close, assert_same, chosen, classifier, double, kept, mlp, pair, readers, run

CLIENTS = len(SIZES)
SMALL: dict[str, Any] = {"iterations": 3, "batch_size": 4, "lr": 0.05}
Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


# --- the method -----------------------------------------------------------------------------------------------------


def published(module: Pair, x: Tensor) -> tuple[Tensor, Tensor]:
    """S_m and S_r, one number after the other."""
    w, q = module.shared.weight, module.private.weight
    alike = torch.exp(-((w - q) ** 2).sum().sqrt() / ((w**2).sum().sqrt() + (q**2).sum().sqrt()))
    cosines = [a @ b / a.norm() / b.norm() for a, b in zip(module.shared(x), module.private(x), strict=True)]
    return alike, torch.stack(cosines).mean()


def convex(module: Pair, x: Tensor) -> tuple[Tensor, Tensor]:
    both = module.shared(x) + module.private(x)
    return ((module.shared.weight + module.private.weight) ** 2).sum() / 2, (both**2).sum(1).mean() / 2


DISTANCES = {"published": published, "convex": convex}


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
@pytest.mark.parametrize("distance", DISTANCES)
def test_it_is_the_published_method(distance: Any, engine: str) -> None:
    """W, Q and H descend together; only W is averaged, every client counting alike (FDRL, equations 4, 5 and 10)."""
    task, alpha, beta = pair(), 0.7, 1.3
    method = get("fdrl", cohort=4, epochs=1, batch_size=4, lr=0.1, alpha=alpha, beta=beta, distance=distance)
    samples, model, own = task.federation.train, task.initial(0), [{} for _ in SIZES]
    for t in range(3):
        ends = {}
        for client in chosen(method, t).clients.tolist():
            module, who = copy.deepcopy(task.module), torch.tensor([client])
            module.load_state_dict(model | own[client])
            assert isinstance(module, Pair)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            batches = method.local.batches(t, who, torch.zeros(1), samples.sizes[who], 1, 0)
            for index, real in zip(batches.index[0], batches.real[0], strict=True):
                if bool(real.any()):
                    features, label = samples.batch(index[real] + samples.offsets[client])
                    alike, agree = DISTANCES[distance](module, features["x"])
                    optimizer.zero_grad()
                    (F.cross_entropy(module(**features), label) + alpha * alike + beta * agree).backward()
                    optimizer.step()
            ends[client] = {n: v.detach() for n, v in module.state_dict().items()}
            own[client] = {n: v for n, v in ends[client].items() if not n.startswith("shared.")}
        model |= {n: torch.stack([e[n] for e in ends.values()]).mean(0) for n in model if n.startswith("shared.")}
    done = run(task, method, rounds=3, engine=engine, chunk=3)
    assert_close(done.model, model, rtol=1e-9, atol=1e-11)
    for client in range(CLIENTS):
        assert_close(kept(done, client), own[client], rtol=1e-9, atol=1e-11)


def test_defaults_are_those_of_the_published_code() -> None:
    local, combine = get("fdrl").local, get("fdrl").combine
    assert isinstance(local, FDRL)
    assert (local.alpha, local.beta, local.distance) == (1, 1, "published")
    assert isinstance(combine, Mean)
    assert combine.weights == "uniform"


class Nothing(nn.Module):
    """An encoder without parameters and without features."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :0]


def test_without_a_private_encoder_and_distances_it_is_fedper() -> None:
    """T60, to the bit."""
    torch.manual_seed(0)
    task = classifier(Discriminative(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), Nothing(), nn.Linear(5, 3)))
    one = run(task, get("fdrl", cohort=4, alpha=0, beta=0, **SMALL), rounds=3)
    other = run(task, get("fedper", cohort=4, weights="uniform", **SMALL), rounds=3)
    assert_same(one.model, other.model)
    assert_same(*(done.population.memories.store.state_dict() for done in (one, other)))
    assert (one.ledger.up_bytes, one.ledger.down_bytes) == (other.ledger.up_bytes, other.ledger.down_bytes)


def test_if_all_take_part_a_cohort_is_everyone() -> None:
    """T62: with T = m, equation 10 is equation 5."""
    task = pair()
    one = run(task, get("fdrl", cohort=CLIENTS, **SMALL), rounds=3)
    other = run(task, get("fdrl", select="everyone", **SMALL), rounds=3)
    assert_same(one.model, other.model)
    assert_same(*(done.population.memories.store.state_dict() for done in (one, other)))


class Just(Select):
    """These clients, in every round."""

    label: ClassVar[str] = "just"

    def __init__(self, clients: tuple[int, ...]) -> None:
        self._clients = torch.tensor(clients)

    def choose(self, state: Any, t: int) -> Cohort:
        return Cohort(self._clients, torch.zeros_like(self._clients))

    @classmethod
    def setting_names(cls) -> list[str]:
        return []


def test_the_shared_encoder_is_unbiased_over_all_cohorts() -> None:
    """FDRL, lemma 2.1: the mean over all cohorts of T clients is what all m clients make."""
    task = pair()
    everyone = run(task, get("fdrl", select="everyone", **SMALL)).model
    cohorts = list(itertools.combinations(range(CLIENTS), 3))
    method = get("fdrl", **SMALL)
    models = [run(task, dataclasses.replace(method, select=Just(cohort))).model for cohort in cohorts]
    found = {n: torch.stack([m[n] for m in models]).mean(0) for n in everyone}
    assert_close(found, everyone, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(models[0]["shared.weight"], everyone["shared.weight"], rtol=1e-3)


# --- its distances --------------------------------------------------------------------------------------------------

numbers = st.floats(-3, 3).filter(lambda x: x == 0 or abs(x) > 1e-3)
weights = st.lists(st.lists(numbers, min_size=1, max_size=4), min_size=1, max_size=3)


def alike(shared: list[list[float]], private: list[list[float]]) -> float:
    pairs = [(torch.tensor([w]), torch.tensor([q])) for w, q in zip(shared, private, strict=True)]
    return float(FDRL().likeness(pairs))


@given(weights, st.data())
@settings(deadline=None)
def test_likeness_lies_between_its_bounds(shared: list[list[float]], data: st.DataObject) -> None:
    """T63: from 1/e to 1, and 1 for equal weights alone."""
    private = [data.draw(st.lists(numbers, min_size=len(w), max_size=len(w))) for w in shared]
    found = alike(shared, private)
    assert math.exp(-1) * (1 - 1e-12) <= found <= 1
    assert (found == 1) == (shared == private)
    assert found == pytest.approx(alike(private, shared))


@given(weights, st.floats(0.01, 100))
@settings(deadline=None)
def test_likeness_is_least_for_opposite_weights(shared: list[list[float]], scale: float) -> None:
    """T63: 1/e at W = −c·Q."""
    if any(value for w in shared for value in w):
        assert alike(shared, [[-scale * value for value in w] for w in shared]) == pytest.approx(math.exp(-1))


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_equal_encoders_have_a_finite_gradient(value: float) -> None:
    """‖W − Q‖ has a corner where W = Q, and both sizes are zero where W = Q = 0."""
    w, q = (torch.full((1, 2, 2), value, requires_grad=True) for _ in range(2))
    found = FDRL().likeness([(w, q)])
    assert found.item() == 1
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(found.sum(), (w, q)))


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 3))
@settings(deadline=None, max_examples=20)
def test_the_gradient_of_likeness_is_its_slope(seed: int, clients: int, layers: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    values = [torch.randn(clients, 2, n + 2, generator=chance, requires_grad=True) for n in range(layers) for _ in "WQ"]
    assert torch.autograd.gradcheck(lambda *w: FDRL().likeness(list(zip(w[::2], w[1::2], strict=True))), values)


@given(st.integers(0, 2**31), st.floats(0, 1))
@settings(deadline=None, max_examples=30)
def test_the_convex_distances_are_convex(seed: int, share: float) -> None:
    """The paper's assumption, on chords between random points."""
    chance = torch.Generator().manual_seed(seed)
    local = FDRL(distance="convex")
    one, other = (torch.randn(2, 1, 3, 4, generator=chance) for _ in range(2))
    between = share * one + (1 - share) * other
    for distance in (lambda w: local.likeness([tuple(w)]), lambda z: local.agreement(*z).mean(1)):  # type: ignore[list-item]
        chord = share * distance(one) + (1 - share) * distance(other)
        assert float(distance(between)) <= float(chord) + 1e-12


# --- what a model must have -----------------------------------------------------------------------------------------


class Deaf(Pair):
    """A pair whose private encoder is never called."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.shared(x)] * 2, -1))


def two(shared: int, private: int) -> Task:
    return classifier(Discriminative(nn.Linear(4, shared), nn.Linear(4, private), 3))


@pytest.mark.parametrize(
    ("task_of", "options", "says"),
    [
        (mlp, {}, "MLP has no 'shared'; build one with"),
        (lambda: two(3, 5), {}, "one name and one shape, and Discriminative has none"),
        (lambda: two(3, 5), {"alpha": 0}, r"have shapes \[3\] and \[5\]; make them one shape, or give beta=0"),
        (lambda: classifier(Deaf()), {}, "Deaf shows no output of its submodule 'private'"),
    ],
)
def test_models_that_do_not_fit_are_refused(task_of: Callable[[], Task], options: dict[str, Any], says: str) -> None:
    task = task_of()
    with pytest.raises(UserError, match=says):
        run(task, Recipe(local=FDRL(**SMALL | options), select=Uniform(cohort=2)))


def test_encoders_of_two_kinds_train_without_distances() -> None:
    task = two(3, 5)
    one = run(task, get("fdrl", cohort=4, alpha=0, beta=0, **SMALL))
    other = run(task, get("fdrl", cohort=4, local="sgd", **SMALL))
    assert_same(one.model, other.model)


def test_how_representations_are_integrated() -> None:
    torch.manual_seed(0)
    shared, private, x = nn.Linear(4, 3), nn.Linear(4, 3), torch.randn(5, 4)
    a, b = shared(x), private(x)
    assert torch.equal(Discriminative(shared, private)(x), torch.cat([a, b], 1))
    assert torch.equal(Discriminative(shared, private, integrate="sum")(x=x), a + b)
    gated = Discriminative(shared, private, 2, "gated")
    share = torch.sigmoid(torch.cat([a, b], 1) @ gated.gate.weight.T + gated.gate.bias)
    expected = (share * a + (1 - share) * b) @ gated.head.weight.T + gated.head.bias
    torch.testing.assert_close(gated(x), expected, rtol=1e-12, atol=1e-14)
    assert Discriminative(shared, private, 7)(x).shape == (5, 7)
    names = [name for name, _ in gated.named_parameters() if not name.startswith("shared.")]
    assert {name.partition(".")[0] for name in names} == {"private", "gate", "head"}
    with pytest.raises(UserError, match="unknown integrate 'gate'; did you mean 'gated'"):
        Discriminative(shared, private, integrate="gate")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ReLU has no Linear layer"):
        Discriminative(nn.ReLU(), private, 2)


# --- tables in both encoders ----------------------------------------------------------------------------------------


def test_padding_has_no_distance() -> None:
    """S_m of clients side by side is that of each alone, over the rows that it holds."""
    task, method = readers(), get("fdrl", cohort=5, inner="feature-rows", combine="heat", **SMALL)
    assert isinstance(method.combine, HeatCorrected)
    one = run(task, method, rounds=3, engine="vectorized", chunk=5)
    for engine, chunk in (("vectorized", 1), ("sequential", 5)):
        other = run(task, method, rounds=3, engine=engine, chunk=chunk)
        assert_close(other.model, one.model, rtol=1e-9, atol=1e-12)
        for client in range(CLIENTS):
            assert_close(kept(other, client), kept(one, client), rtol=1e-9, atol=1e-12)


# --- its theorems ---------------------------------------------------------------------------------------------------

ALPHA, BETA, INPUTS = 0.2, 0.3, 2


class Scheduled(FDRL):
    """η_k = 2/(μ·(γ + k)) in every step, k from 1, and a note of the largest gradient of a client."""

    def plan(self, mu: float, gamma: float) -> "Scheduled":
        self._mu, self._gamma, self._tau, self.largest = mu, gamma, self.iterations or 1, 0.0
        return self

    def _eta(self, k: int) -> float:
        return 2 / (self._mu * (self._gamma + k))

    def rate(self, t: int) -> float:
        return self._eta(t * self._tau + 1)

    def objective(self, forward: Forward, loss: Loss, parameters: Values, batch: Batch, work: Work, s: int) -> Tensor:
        self._ratio = self._eta(work.round * self._tau + s + 1) / self.rate(work.round)
        return super().objective(forward, loss, parameters, batch, work, s) * self._ratio

    def direction(self, gradient: Values, parameters: Values, work: Work) -> Values:
        squares = sum(g.flatten(1).square().sum(1) for g in gradient.values()) / self._ratio**2
        self.largest = max(self.largest, float(squares.max()))
        return super().direction(gradient, parameters, work)


class Instance:
    """Clients with linear encoders and squared errors: G_t = ½·uᵀH_t·u + b_tᵀu + c_t of u = (W, Q_t)."""

    def __init__(self, clients: int, samples: int = 12, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.clients = clients
        x = draw.normal(size=(clients, samples, INPUTS))
        y = 2 * x @ draw.normal(size=(INPUTS, 2)) + x @ draw.normal(size=(clients, INPUTS, 2)) / 2
        data = Federation.from_arrays(
            client=np.repeat(np.arange(clients), samples),
            features={"x": x.reshape(-1, INPUTS)},
            label=y.reshape(-1, 2),
            test=0.0,
        )
        torch.manual_seed(seed)
        model = Discriminative(*(nn.Linear(INPUTS, 1, bias=False) for _ in range(2)))
        self.task = Task(data, model, lambda out, label: ((out - label) ** 2).sum(-1) / 2)
        second = np.einsum("csi,csj->cij", x, x) / samples
        eye, both = np.eye(INPUTS), np.ones((2, 2))
        self.forms = np.stack([np.kron(np.eye(2), a) + np.kron(both, ALPHA * eye + BETA * a) for a in second])
        self.slopes = -np.einsum("csi,csk->cki", x, y).reshape(clients, -1) / samples
        self.offsets = (y**2).sum((1, 2)) / samples / 2

    def value(self, shared: Array, private: Array) -> float:
        """G(W, Q_1, …, Q_m) = Σ p_t·G_t."""
        u = np.concatenate([np.broadcast_to(shared, private.shape), private], 1)
        each = np.einsum("ci,cij,cj->c", u, self.forms, u) / 2 + (self.slopes * u).sum(1) + self.offsets
        return float(each.mean())

    def best(self) -> tuple[Array, Array]:
        """(W⁺, Q⁺): Q_t⁺ given W is linear, which leaves a system for W alone."""
        n = INPUTS
        a, b, d = self.forms[:, :n, :n], self.forms[:, :n, n:], self.forms[:, n:, n:]
        inverse = np.linalg.inv(d)
        form = (a - b @ inverse @ b.transpose(0, 2, 1)).mean(0)
        slope = (self.slopes[:, :n] - np.einsum("cij,cjk,ck->ci", b, inverse, self.slopes[:, n:])).mean(0)
        shared = np.linalg.solve(form, -slope)
        private = -np.einsum("cij,cj->ci", inverse, self.slopes[:, n:] + np.einsum("cji,j->ci", b, shared))
        return shared, private

    def gamma(self) -> float:
        """Γ = G⁺ − Σ p_t·G_t⁺."""
        alone = [-(b @ np.linalg.solve(h, b)) / 2 for h, b in zip(self.forms, self.slopes, strict=True)]
        return self.value(*self.best()) - float((np.array(alone) + self.offsets).mean())


def course(instance: Instance, steps: int, rounds: int, cohort: int, seed: int) -> tuple[Array, Array]:
    """G − G⁺ after every round, and the bounds (8) or (14) at those steps.

    A client's own variables count p_t in ‖·‖², as in the paper (equation 3); gradients are exact, so that σ_t = 0.
    """
    values = np.linalg.eigvalsh(instance.forms)
    mu, smooth = float(values.min()), float(values.max())
    kappa, m = smooth / mu, instance.clients
    gamma = max(8 * kappa, steps)
    local = Scheduled(iterations=steps, batch_size=None, alpha=ALPHA, beta=BETA, distance="convex").plan(mu, gamma)
    method = Recipe(Uniform(cohort=cohort), Shared(), local, combine=Mean(weights="uniform"))
    experiment = Experiment(instance.task, method, rounds=rounds, eval_every=1, seed=seed)
    first = instance.task.initial(seed)["private.weight"].numpy()
    (shared, private), least, errors = instance.best(), instance.value(*instance.best()), []
    distance = 0.0
    for row in experiment.stream():
        memory = experiment.population.parts["slices"].get("kept/private.weight", torch.arange(m))
        own = np.repeat(first, m, 0) if memory is None else np.where(memory[1][:, None], memory[0][:, 0].numpy(), first)
        now = experiment.model["shared.weight"].numpy()[0]
        errors.append(instance.value(now, own) - least)
        if row["round"] == 0:
            distance = float(((now - shared) ** 2).sum() + ((own - private) ** 2).sum(1).mean())
    assert isinstance(experiment.recipe.local, Scheduled)
    largest = experiment.recipe.local.largest  # G²
    spread = 6 * smooth * instance.gamma() + 8 * (steps - 1) ** 2 * largest  # B
    spread += 4 * (m - cohort) / (cohort * (m - 1)) * steps**2 * largest  # C
    k = 1 + steps * np.arange(rounds + 1)
    return np.array(errors), kappa / (gamma + k - 1) * (2 * spread / mu + mu * gamma / 2 * distance)


def test_the_instance_is_what_the_network_computes() -> None:
    """Its minimum is where the network's own loss, with both distances, has no gradient."""
    instance = Instance(4)
    shared, private = instance.best()
    task, total, gradient = instance.task, 0.0, torch.zeros(INPUTS)
    for client in range(4):
        w, q = (torch.tensor(v)[None].requires_grad_() for v in (shared, private[client]))
        features, label = task.federation.train.batch(torch.arange(12) + 12 * client)
        x = features["x"]
        loss = task.loss(task.forward({"shared.weight": w, "private.weight": q}, features), label).mean()
        loss = loss + ALPHA * ((w + q) ** 2).sum() / 2 + BETA * ((x @ (w + q).T) ** 2).sum(1).mean() / 2
        by_w, by_q = torch.autograd.grad(loss, (w, q))
        assert float(by_q.abs().max()) < 1e-12
        gradient, total = gradient + by_w[0], total + loss.item() / 4
    assert float(gradient.abs().max()) < 1e-12
    assert total == pytest.approx(instance.value(shared, private), rel=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
def test_theorem_1(steps: int) -> None:
    """T64, equation 8: with everyone in every round the error stays below its bound, and falls like 1/K."""
    instance = Instance(4)
    errors, bounds = course(instance, steps, rounds=60, cohort=4, seed=0)
    assert bool((errors >= -1e-12).all())
    assert bool((errors <= bounds).all())
    assert bool((errors <= errors[0] * bounds / bounds[0]).all())


@pytest.mark.parametrize("steps", [1, 3])
def test_theorem_2(steps: int) -> None:
    """T64, equation 14: three of four clients in a round, the mean over seeds.

    The paper lets the private parts of absent clients go on; here they rest, which the bound has room for.
    """
    instance = Instance(4)
    courses = [course(instance, steps, rounds=60, cohort=3, seed=seed) for seed in range(3)]
    errors, bounds = (np.mean(part, axis=0) for part in zip(*courses, strict=True))
    assert bool((errors <= bounds).all())
    assert bool((errors <= errors[0] * bounds / bounds[0]).all())
