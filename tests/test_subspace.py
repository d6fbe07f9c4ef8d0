"""FLSS: the basis against singular value decompositions, coefficients on slices, what absent clients cost, refusals."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedslice.codecs import StreamingSubspace
from fedslice.codecs.basis import Basis
from fedslice.codecs.catchup import CatchUp
from fedslice.codecs.subspace import flatten
from fedslice.core.message import Body
from fedslice.errors import UserError
from fedslice.experiment import Experiment
from fedslice.messages import Upload
from fedslice.parts import RoundEnd
from fedslice.recipes import get
from fedslice.slice import Slice, Values
from toys import SIZES, assert_close, double, mlp, pair, recommender, run

CLIENTS = len(SIZES)


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def projector(columns: Tensor) -> Tensor:
    return columns @ columns.T


def basis(updates: Tensor, rank: int) -> Basis:
    found = Basis.of(updates, rank)
    assert found is not None
    return found


@settings(deadline=None)
@given(st.integers(5, 40), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_it_is_the_leading_subspace(size: int, count: int, rank: int, seed: int) -> None:
    """T41, T43: as torch's own decomposition, with the largest entry of each column positive."""
    updates = matrix(size, count, seed)
    found = basis(updates, rank)
    left, sigma, _ = torch.linalg.svd(updates, full_matrices=False)
    kept = min(rank, count)
    torch.testing.assert_close(found.sigma, sigma[:kept])
    torch.testing.assert_close(projector(found.columns), projector(left[:, :kept]), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.columns.T @ found.columns, torch.eye(kept, dtype=torch.float64))
    assert bool((found.columns.gather(0, found.columns.abs().argmax(0, keepdim=True)) > 0).all())


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_following_without_truncation_is_one_decomposition(decay: float) -> None:
    """T41, T42: the old directions weigh λ for every step since."""
    updates = matrix(30, 6)
    found = basis(updates[:, :3], 6)
    for column in (3, 4, 5):
        found = found.follow(updates[:, column], decay, 6)
    weights = torch.tensor([decay**3] * 3 + [decay**2, decay, 1.0], dtype=torch.float64)
    expected = basis(updates * weights, 6)
    torch.testing.assert_close(found.sigma, expected.sigma)
    torch.testing.assert_close(projector(found.columns), projector(expected.columns), rtol=0, atol=1e-9)


def test_without_a_past_the_basis_is_the_update() -> None:
    """T48: λ = 0."""
    update = matrix(9, 1, 5)[:, 0]
    found = basis(matrix(9, 4), 3).follow(update, 0.0, 3)
    assert found.rank == 1
    torch.testing.assert_close(projector(found.columns), torch.outer(update, update) / update.square().sum())
    assert float(found.sigma) == pytest.approx(float(update.norm()))


def test_no_update_changes_nothing_and_a_known_one_adds_no_direction() -> None:
    first = basis(matrix(9, 2), 5)
    assert first.follow(torch.zeros(9, dtype=torch.float64), 0.9, 5) is first
    again = first.follow(first.columns @ torch.tensor([1.0, -2.0], dtype=torch.float64), 1.0, 5)
    assert again.rank == 2, "its energy lies in the two directions there are"
    assert Basis.of(torch.zeros(9, 3), 2) is None


def test_a_long_trajectory_keeps_the_basis_orthonormal_in_single_precision() -> None:
    """T43, over many truncated steps of very different size."""
    updates = matrix(200, 80).float() * torch.logspace(0, -4, 80)
    found = basis(updates[:, :10], 8)
    for column in range(10, 80):
        found = found.follow(updates[:, column], 0.95, 8)
        torch.testing.assert_close(found.columns.T @ found.columns, torch.eye(found.rank), rtol=0, atol=1e-5)


def test_what_projection_loses_is_the_energy_of_the_directions_left_out() -> None:
    """T44: Σ_{r>R} σ_r² over all updates; T45: a projection is shorter, and repeating it does nothing."""
    updates = matrix(40, 12)
    found = basis(updates, 5)
    lost = sum(found.residual(update) * float(update.square().sum()) for update in updates.T)
    assert lost == pytest.approx(float(torch.linalg.svdvals(updates)[5:].square().sum()))
    once = projector(found.columns) @ updates[:, 0]
    assert float(once.norm()) <= float(updates[:, 0].norm())
    torch.testing.assert_close(projector(found.columns) @ once, once)
    assert found.residual(once) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("rank", [1, 40])
def test_coefficients_of_a_slice_are_those_of_the_whole_update(rank: int) -> None:
    """Rows of a table and whole layers, on either side of the choice between gathering and spreading."""
    with double():
        task = recommender()
        sizes = {name: shape.numel() for name, shape in task.shapes.items()}
        clients = torch.arange(4)
        rows = {table: sets.axis(clients) for sets in task.index_sets for table in sets.tables}
        part = Slice.whole(4, task.shapes).replace(rows)
        values: Values = {n: part.clear(n, torch.randn_like(v)) for n, v in part.gather(task.initial(0)).items()}
        upload = Upload(clients, torch.ones(4).double(), part, part, values)
        found = basis(matrix(sum(sizes.values()), rank), rank)
        for client in range(4):
            whole = {name: (None, part.spread(name, values[name])[client]) for name in task.shapes}
            expected = found.columns.T @ flatten(whole, task.shapes)
            torch.testing.assert_close(found.project(upload, task.shapes)[client], expected)


def ended(t: int, clients: list[int]) -> RoundEnd:
    return RoundEnd(t, torch.tensor(clients), torch.zeros(len(clients)), {}, {})


def test_an_absent_client_is_sent_what_it_has_missed_or_all_of_it() -> None:
    """By hand: a model of 10 values, two rounds of warm-up, then a basis of rank 3 and a full round every third."""
    held = torch.tensor([10])
    absent = CatchUp(4, warmup=2)

    def words(t: int, client: int, rank: int = 3) -> int:
        return int(absent.words(t, torch.tensor([client]), held, rank))

    assert words(0, 0, 0) == 10, "the model, at first"
    absent.add(ended(0, [0, 1]), None)
    assert words(1, 0, 0) == 10, "the first step"
    assert words(1, 2, 0) == 10, "the model"
    absent.add(ended(1, [0, 2]), None)
    assert words(2, 0) == 10, "the second step; the basis comes from both"
    assert words(2, 1) == 20, "both steps"
    assert words(2, 2) == 10 + 33, "the second step, and the basis, as it never saw the first"
    assert words(2, 3) == 10 + 33, "the model and the basis"
    absent.add(ended(2, [0, 2]), None)
    absent.add(ended(3, [0]), 3)
    assert words(4, 0) == 3
    assert words(4, 2) == 10 + 3, "a full step and coefficients"
    for t in range(4, 12):
        absent.add(ended(t, [0]), None)
    assert words(12, 2) == 43, "the model and the basis are smaller than nine steps"


def test_the_words_of_a_run_are_those_that_the_paper_counts() -> None:
    """T47: D on full rounds and R on the others, or D/32 with signs; here 2 + 2 full rounds of 12, as 7 = 2 + 5."""
    task = mlp()
    size = sum(shape.numel() for shape in task.shapes.values())
    common: dict[str, Any] = {"select": "everyone", "rank": 2, "warmup": 2, "every": 5, "iterations": 2, "lr": 0.1}
    for recipe, full in (("flss", size), ("sign+flss", size / 32)):
        done = run(task, get(recipe, **common), rounds=12)
        assert done.ledger.words == pytest.approx(CLIENTS * (4 * full + 8 * 2))
    assert run(task, get("flss", **common), rounds=12).ledger.up_bytes == 4 * CLIENTS * (4 * size + 8 * 2)


@pytest.mark.parametrize("weights", [None, "samples"])
@pytest.mark.parametrize("recipe", ["flss", "fedprox+flss", "sign+flss"])
def test_the_server_takes_the_plain_mean_of_coefficients(
    recipe: str, weights: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Algorithm 1, line 11: g̃ = 1/|M|·Σ g̃_k, however many samples a client has; weights=samples weighs by them."""
    with double():
        options: dict[str, Any] = {"cohort": 4, "rank": 2, "warmup": 2, "every": 0, "iterations": 2, "lr": 0.1}
        asked = get(recipe, **options | ({} if weights is None else {"weights": weights}))
        experiment = Experiment(mlp(), asked, rounds=6, eval_every=1, chunk=2)
        codec, sent = experiment.recipe.codec, list[Upload]()
        assert isinstance(codec, StreamingSubspace)
        decode = codec.decode

        def noted(t: int, frame: Upload, body: Body) -> Upload:
            sent.append(decode(t, frame, body))
            return sent[-1]

        monkeypatch.setattr(codec, "decode", noted)
        before = None
        for row in experiment.stream():
            after = torch.cat([value.flatten() for value in experiment.model.values()])
            if row["round"] > 2:
                codes = torch.cat([next(iter(one.values.values())) for one in sent])
                sizes = torch.tensor(SIZES)[torch.cat([one.clients for one in sent])].double()
                shares = sizes / sizes.sum() if weights == "samples" else torch.full((4,), 0.25)
                assert before is not None
                assert codec._basis is not None
                torch.testing.assert_close(after - before, codec._basis.columns @ (shares @ codes))
                assert len(set(sizes.tolist())) > 1
            before = after
            sent.clear()


def test_a_fixed_subspace_is_never_left() -> None:
    """F-Sub of table 4: without full rounds the basis of the warm-up stays, and 2 + 10 rounds of 12 send D and R."""
    task = mlp()
    size = sum(shape.numel() for shape in task.shapes.values())
    recipe = get("flss", select="everyone", rank=2, warmup=2, every=0, iterations=2, lr=0.1)
    experiment = Experiment(task, recipe, rounds=12, eval_every=1)
    places, codec = [], experiment.recipe.codec
    assert isinstance(codec, StreamingSubspace)
    for row in experiment.stream():
        places.append(torch.cat([value.flatten() for value in experiment.model.values()]))
        if row["round"] == 2:
            first = codec._basis
    assert first is not None
    assert codec._basis is first
    assert experiment.ledger.words == CLIENTS * (2 * size + 10 * 2)
    for before, after in pairwise(places[2:]):
        step = after - before
        assert float(step.norm()) > 0
        torch.testing.assert_close(projector(first.columns) @ step, step, rtol=1e-4, atol=1e-6)
    assert not any(codec.full(t) for t in range(2, 12))


def test_full_rounds_alone_with_signs_are_signs() -> None:
    options: dict[str, Any] = {"select": "everyone", "iterations": 2, "lr": 0.1, "weights": "uniform"}
    plain = run(mlp(), get("sign", **options), rounds=5)
    wrapped = run(mlp(), get("sign+flss", **options, rank=2, warmup=1, every=1), rounds=5)
    assert_close(wrapped.model, plain.model, rtol=1e-6, atol=1e-7)


def test_it_wraps_feature_rows_with_heat() -> None:
    task = recommender()
    recipe = get("fedsubavg", codec="subspace", rank=3, warmup=2, every=3, cohort=4, iterations=3, lr=0.05)
    done = run(task, recipe, rounds=8)
    assert done.rejected == 0
    assert {panel.title for panel in done.recipe.codec.panels()} == {
        "Spectrum of the subspace",
        "What projection misses",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 10**6}, "rank=1000000 but the model has"),
        ({"warmup": 4}, "warmup=4 is longer than the run of 3 rounds"),
        ({"warmup": 10**9, "rounds": 10**9 + 1}, "1,000,000,000 updates of 51 .* GiB, where there are .* GiB"),
    ],
)
def test_what_can_never_become_a_subspace_is_refused(options: dict[str, Any], words: str) -> None:
    rounds = options.pop("rounds", 3)
    with pytest.raises(UserError, match=words):
        Experiment(pair(), get("flss", cohort=2, **{"warmup": 1, "rank": 2} | options), rounds=rounds)


def test_the_inner_codec_is_checked_too() -> None:
    with pytest.raises(UserError, match="codec=sign keeps a memory per client"):
        get("sign+flss", replacement=True)
    assert StreamingSubspace(inner="topk").settings()["inner"] == "topk"
