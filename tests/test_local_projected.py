"""Projected gradients (FLSS, table 5): steps in the subspace, what they have in common with plain ones, refusals."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedslice.codecs.basis import Basis, with_directions
from fedslice.codecs.subspace import Subspace
from fedslice.core.entries import OnSlice, View
from fedslice.core.errors import UserError
from fedslice.core.slice import Slice, Values
from fedslice.local import Projected
from fedslice.recipe import Recipe
from fedslice.recipes import get
from fedslice.training.events import Listener, Trained
from fedslice.training.experiment import Experiment
from fedslice.training.work import Work
from toys import assert_close, assert_same, double, mlp, plain_training, run

COMMON: dict[str, Any] = {"select": "everyone", "iterations": 3, "batch_size": 4, "lr": 0.1}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


def projected(**options: Any) -> Recipe:
    return get("flss", **COMMON | {"local": "projected", "rank": 3, "warmup": 2, "every": 4} | options)


def state_of(experiment: Experiment) -> Subspace:
    state = experiment.server.states["codec"]
    assert isinstance(state, Subspace)
    return state


def columns_of(experiment: Experiment) -> Tensor:
    basis = state_of(experiment).basis
    assert basis is not None
    return basis.columns.clone()


class Updates(Listener):
    """How the models of clients have changed in training [clients, size], from now on."""

    def __init__(self, experiment: Experiment):
        self.seen: list[Tensor] = []
        experiment.events.add(self)

    def trained(self, event: Trained) -> None:
        start = event.work.start
        self.seen.append(flat({name: event.end[name] - start[name] for name in start}))


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten(1) for value in values.values()], 1)


def test_with_the_identity_for_a_basis_it_is_sgd() -> None:
    task = mlp()
    size = sum(shape.numel() for shape in task.shapes.values())
    plain = run(task, get("fedavg", weights="uniform", **COMMON), rounds=5)
    experiment = Experiment(task, projected(rank=size, warmup=1, every=0), rounds=5, eval_every=1)
    for row in experiment.stream():
        if row["round"] == 1:
            state_of(experiment).basis = Basis(torch.eye(size), torch.ones(size))
    assert_close(experiment.model, plain.model, rtol=1e-10, atol=1e-12)


def test_updates_lie_in_the_subspace_but_on_full_rounds() -> None:
    """And there they do not, or the basis could never turn."""
    experiment = Experiment(mlp(), projected(), rounds=9, eval_every=1)
    updates, outside, before = Updates(experiment), [], None
    for _ in experiment.stream():
        if updates.seen and before is not None:
            sent = torch.cat(updates.seen)
            lost = sent - sent @ before @ before.T
            outside.append(float(lost.norm() / sent.norm()))
        updates.seen.clear()
        before = None if state_of(experiment).basis is None else columns_of(experiment)
    full = [t >= 2 and (t - 2) % 4 == 0 for t in range(2, 9)]
    assert [share > 1e-3 for share in outside] == full
    assert all(share < 1e-12 for share, whole in zip(outside, full, strict=True) if not whole)


def test_it_turns_no_direction_if_every_round_after_the_warm_up_is_projected() -> None:
    experiment = Experiment(mlp(), projected(every=0), rounds=6, eval_every=1)
    first: Tensor | None = None
    start: dict[str, Tensor] = {}
    for row in experiment.stream():
        if row["round"] == 2:
            first, start = columns_of(experiment), {n: v.clone()[None] for n, v in experiment.model.items()}
    assert first is not None
    assert torch.equal(columns_of(experiment), first)
    moved = flat({n: v[None] for n, v in experiment.model.items()}) - flat(start)
    assert float(moved.norm()) > 0
    torch.testing.assert_close(moved @ first @ first.T, moved)


def test_a_round_is_that_of_a_plain_loop() -> None:
    """One client, exact gradients, by hand: x ← x − γ·P·Pᵀ·g(x)."""
    task = mlp((5,))
    options = {"select": "everyone", "batch_size": None, "iterations": 2, "warmup": 2, "every": 0}
    experiment = Experiment(task, projected(**options), rounds=3, eval_every=1)
    for row in experiment.stream():
        if row["round"] == 2:
            p, x = columns_of(experiment), {n: v.clone() for n, v in experiment.model.items()}
            one = get("fedavg", select="everyone", batch_size=None, iterations=1, lr=1.0)
            for _ in range(2):
                after = plain_training(task, one, x, 2, 0)  # at a rate of one the step is the gradient
                step = torch.cat([(x[n] - after[n]).flatten() for n in x])
                parts = (p @ (p.T @ step)).split([v.numel() for v in x.values()])
                x = {n: v - 0.1 * part.view_as(v) for (n, v), part in zip(x.items(), parts, strict=True)}
    assert_close(experiment.model, x, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(0, 99))
def test_projection_is_idempotent_linear_and_shortens(rank: int, seed: int) -> None:
    task, chance = mlp(), torch.Generator().manual_seed(seed)
    size = sum(shape.numel() for shape in task.shapes.values())
    one, other = ({n: torch.randn(2, *s, generator=chance) for n, s in task.shapes.items()} for _ in range(2))
    assert within(one) is one, "there is no basis yet"
    basis = Basis.of(torch.randn(size, rank, generator=chance), rank)
    assert basis is not None
    part = with_directions(Slice.whole(2, task.shapes), rank)
    read = View(basis.rows(task.shapes), part)
    came = OnSlice(part, read.at(part))
    once = within(one, read)
    assert_close(within(one, came), once, rtol=1e-12, atol=1e-14)
    assert_close(within(once, read), once, rtol=1e-9, atol=1e-12)
    both = within({n: one[n] - 3 * other[n] for n in one}, read)
    apart = within(other, read)
    assert_close(both, {n: once[n] - 3 * apart[n] for n in once}, rtol=1e-9, atol=1e-12)
    assert bool((flat(once).norm(dim=1) <= flat(one).norm(dim=1)).all())
    torch.testing.assert_close(flat(once), flat(one) @ basis.columns @ basis.columns.T)


def within(gradient: Values, basis: View | OnSlice | None = None) -> Values:
    """The direction of a step, with the basis that came down."""
    work = SimpleNamespace(came={} if basis is None else {"basis": basis})
    return Projected().correct(gradient, {}, cast(Work, work))


@pytest.mark.parametrize("wire", [False, True])
def test_clipping_comes_before_projection(wire: bool) -> None:
    """A clipped gradient is at most so long, and its projection no longer."""
    options = {"clip": 1e-3, "iterations": 1, "every": 0}
    experiment = Experiment(mlp(), projected(**options), rounds=4, eval_every=1, wire=wire)
    updates, columns = Updates(experiment), None
    for row in experiment.stream():
        if row["round"] > 2:
            steps = torch.cat(updates.seen) / 0.1
            assert columns is not None
            torch.testing.assert_close(steps @ columns @ columns.T, steps)
            assert float(steps.norm(dim=1).max()) < 1e-3 * (1 - 1e-6)
            assert float(steps.norm(dim=1).min()) > 0
        updates.seen.clear()
        columns = None if state_of(experiment).basis is None else columns_of(experiment)


@pytest.mark.parametrize("stop", [3, 5])
def test_a_resumed_run_knows_which_round_is_full(stop: int) -> None:
    whole = run(mlp(), projected(), rounds=8)
    first = Experiment(mlp(), projected(), rounds=8, eval_every=1)
    for row in first.stream():
        if row["round"] == stop:
            break
    second = Experiment(mlp(), projected(), rounds=8, eval_every=1)
    second.load_state_dict(*first.state_dict())
    second.run()
    assert_same(second.model, whole.model)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recipe": "fedavg"}, "codec=dense has none; use codec=subspace, or local=plain"),
        ({"recipe": "flss", "slices": "feature-rows"}, "slices=feature-rows gives a client only some of them"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        get(options.pop("recipe"), local="projected", **options)
