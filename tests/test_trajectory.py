"""The trajectory's directions: against singular value decompositions, in runs of any recipe, and over restarts."""

import json
from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from command import SMALL, execute, fedslice, without_seconds
from fedslice.codecs.basis import Basis
from fedslice.config import request, resolve
from fedslice.core import vectors
from fedslice.core.errors import UserError
from fedslice.core.part import Round
from fedslice.core.update import RowDelta
from fedslice.core.vectors import Vectors
from fedslice.measure.base import Moment
from fedslice.measure.trajectory import COUNTS, RANK, Trajectory, residual
from fedslice.panel import Panel
from fedslice.recipes import RECIPES, get
from fedslice.runs import checkpoint
from fedslice.runs.reading import read
from fedslice.schema import find
from fedslice.training.experiment import Experiment
from toys import begun, double, fitting, mlp

SHARES = [f"trajectory_share_{k}" for k in COUNTS]


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def followed(updates: Tensor, scratch: Path | None = None) -> Trajectory:
    """An instrument that has seen the columns as rounds of a model that is one vector."""
    found = Trajectory()
    found._shapes = {"x": torch.Size([len(updates)])}
    found._updates = Vectors("measure=trajectory", len(updates), updates.shape[1], torch.float32, scratch, "")
    nobody = torch.zeros(0, dtype=torch.int64)
    for t, update in enumerate(updates.T):
        found.observe(Round(t, nobody, nobody, {}, {}, {"x": RowDelta(None, update)}, {}))
    return found


@cache
def moment() -> Moment:
    """Any: what is measured has been observed before."""
    experiment = Experiment(mlp(), get("fedavg", cohort=2), rounds=1)
    return Moment(experiment._scene, 0, experiment.model, experiment.engine)


def measured(found: Trajectory) -> dict[str, float]:
    return found.measure(moment())


def shares_of(updates: Tensor) -> list[float]:
    """By torch's own decomposition."""
    energy = torch.linalg.svdvals(updates.double()).square()
    return [float(energy[:k].sum() / energy.sum()) for k in COUNTS]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_shares_are_those_of_the_singular_values_and_ascend_to_one(size: int, rounds: int, seed: int) -> None:
    updates = matrix(size, rounds, seed)
    found = measured(followed(updates))
    shares = [found[name] for name in SHARES]
    assert shares == pytest.approx(shares_of(updates), abs=1e-12)
    assert all(a <= b for a, b in pairwise(shares))
    assert [share for k, share in zip(COUNTS, shares, strict=True) if k >= rounds] == [1.0] * sum(
        k >= rounds for k in COUNTS
    )


@pytest.mark.parametrize("rank", [1, 2, 5, 10])
def test_a_planted_rank_is_found(rank: int) -> None:
    found = measured(followed(matrix(300, rank) @ matrix(rank, 30, 1)))
    place = COUNTS.index(rank)
    assert found[SHARES[place]] == pytest.approx(1, abs=1e-12)
    assert all(found[name] < 0.999 for name in SHARES[:place])
    assert found["trajectory_residual"] == pytest.approx(0, abs=1e-12), "the others hold all of its directions"


@pytest.mark.parametrize("rounds", [2, 30, RANK + 9])
def test_the_residual_is_what_a_projection_on_the_earlier_directions_misses(rounds: int) -> None:
    updates = matrix(90, rounds)
    found = followed(updates)
    assert isnan(found._residuals[0]), "there is nothing before the first"
    for t in range(1, rounds):
        before = Basis.of(updates[:, :t].double(), RANK)
        assert before is not None
        assert found._residuals[t] == pytest.approx(before.residual(updates[:, t].double()), abs=1e-9)
    assert measured(found)["trajectory_residual"] == found._residuals[-1] > 0


@settings(deadline=None, max_examples=50)
@given(st.integers(5, 40), st.integers(3, 12), st.sampled_from([1, 2, 5, 10]), st.integers(0, 99))
def test_the_mean_projection_error_is_the_energy_left_out(size: int, rounds: int, rank: int, seed: int) -> None:
    """T44, FLSS's proposition 3.4.1: of the energy of all updates P·Pᵀ misses ρ_R, and that is one minus the share."""
    updates = matrix(size, rounds, seed)
    basis = Basis.of(updates.double(), rank)
    assert basis is not None
    energies = updates.double().square().sum(0).tolist()
    lost = sum(basis.residual(u.double()) * e for u, e in zip(updates.T, energies, strict=True))
    share = measured(followed(updates))[f"trajectory_share_{rank}"]
    assert lost / sum(energies) == pytest.approx(1 - share, abs=1e-9)


def test_an_update_along_the_earlier_ones_leaves_nothing_outside_and_one_across_them_all() -> None:
    plane = torch.tensor([[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    gram = (plane @ plane.T).double()
    for update, outside in (([1.0, 1.0, 0.0], 0.0), ([0.0, 0.0, 2.0], 1.0), ([3.0, 0.0, 4.0], 16 / 25)):
        along = (plane @ torch.tensor(update)).double()
        assert residual(gram, along, sum(x * x for x in update)) == pytest.approx(outside, abs=1e-12)


def models(experiment: Experiment) -> tuple[list[dict[str, Any]], Tensor]:
    """The rows of a run that is evaluated every round, and its global updates by subtraction."""
    rows, places = [], []
    for row in experiment.stream():
        rows.append(row)
        places.append(torch.cat([value.flatten().clone() for value in experiment.model.values()]))
    return rows, torch.stack([after - before for before, after in pairwise(places)], 1)


@pytest.mark.parametrize("name", RECIPES)
def test_with_any_recipe_it_is_the_decomposition_of_what_the_model_did(name: str) -> None:
    with double():
        task, recipe = fitting(name)
        rows, updates = models(begun(task, recipe, rounds=4, eval_every=1, measure=["trajectory"]))
    assert all(isnan(rows[0][column]) for column in (*SHARES, "trajectory_residual"))
    for t in range(1, 5):
        expected = shares_of(updates[:, :t])  # NaN if nothing of the model is shared
        assert [rows[t][column] for column in SHARES] == pytest.approx(expected, abs=1e-5, nan_ok=True)
    before = Basis.of(updates[:, :3], RANK)
    left = nan if before is None else before.residual(updates[:, 3])
    assert rows[4]["trajectory_residual"] == pytest.approx(left, abs=1e-5, nan_ok=True)


def test_to_look_at_a_run_does_not_change_it() -> None:
    task, recipe = fitting("fedsubavg")
    rows, plain = (begun(task, recipe, rounds=4, measure=names).run() for names in (["trajectory"], []))
    added = {*SHARES, "trajectory_residual"}
    assert {column for column in rows[0] if column not in plain[0]} == added
    assert all(find(name).measured for name in added)
    kept = [{column: row[column] for column in row if column not in added} for row in rows]
    assert without_seconds({"metrics": kept}) == without_seconds({"metrics": plain})


def test_a_saved_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    def new() -> Experiment:
        return Experiment(mlp(), get("fedavg", cohort=3, lr=0.1), rounds=9, eval_every=3, measure=["trajectory"])

    first, second = new(), new()
    stream = first.stream()
    rows = [next(stream) for _ in range(3)]
    checkpoint.save(tmp_path / "saved", *first.state_dict())
    second.load_state_dict(*checkpoint.load(tmp_path / "saved"))
    assert second.panels() == first.panels()
    (last,), (again,) = list(stream), second.run()
    assert without_seconds({"metrics": [last]}) == without_seconds({"metrics": [again]})
    assert second.panels() == first.panels()
    assert [row["round"] for row in rows] == [0, 3, 6]
    theirs, ours = first.state_dict()[0], second.state_dict()[0]
    assert theirs.keys() == ours.keys()
    assert sum(name.startswith("measure.trajectory.update.") for name in ours) == 9
    assert all(torch.equal(theirs[name].nan_to_num(), ours[name].nan_to_num()) for name in ours)


def test_a_run_that_is_stopped_leaves_the_files_of_one_that_is_not(tmp_path: Path) -> None:
    said = {"task": "hotcold", "recipe": "fedsubavg", "rounds": 12, "eval_every": 3, "cohort": 4}
    sizes = {"clients": 12, "items": 30, "samples": 8, "factors": 2, "iterations": 1, "batch_size": 2}
    plan = resolve(request(said | {"set": sizes, "measure": ["trajectory", "gradient-norms"]}))
    expected = execute(plan, tmp_path / "whole", resume=False)
    for last in (1, 3, 4, 11):
        with pytest.raises(KeyboardInterrupt):
            execute(plan, tmp_path / "stopped", resume=True, checkpoint_seconds=0, on_round=partial(stop, last))
    assert (tmp_path / "stopped" / "scratch" / "trajectory").exists()
    again = execute(plan, tmp_path / "stopped", resume=True)
    assert without_seconds(again) == without_seconds(expected)
    whole, stopped = ((tmp_path / run / "panels.json").read_text() for run in ("whole", "stopped"))
    assert whole == stopped
    assert not (tmp_path / "stopped" / "scratch").exists(), "a finished run needs no updates"
    assert "Spectrum of the trajectory" in whole


def stop(last: int, done: int) -> None:
    if done == last:
        raise KeyboardInterrupt


def cells(panel: Panel) -> tuple[Sequence[Any], Sequence[Any]]:
    return [row[panel.x] for row in panel.rows], [row[panel.y] for row in panel.rows]


def test_its_panels_are_the_spectrum_the_shares_and_the_residuals() -> None:
    updates = matrix(20, 3) @ matrix(3, 8, 1)
    found = followed(updates)
    spectrum, shares, left = found.panels()
    sigma = torch.linalg.svdvals(updates.double())
    assert cells(spectrum) == ([1, 2, 3], pytest.approx(sigma[:3].tolist())), "five more are rounding"
    assert spectrum.log == ["y"]
    assert cells(shares)[0] == list(range(1, 9))
    assert cells(shares)[1] == pytest.approx((sigma.square().cumsum(0) / sigma.square().sum()).tolist())
    assert "of 8 updates" in shares.note
    assert "100.0% in 8" in shares.note
    assert cells(left) == (list(range(2, 9)), pytest.approx(found._residuals[1:]))
    assert Trajectory().panels() == []


def test_a_model_that_stands_still_or_leaves_the_numbers_has_no_directions() -> None:
    still, gone = torch.zeros(4, 3), torch.tensor([[1.0, torch.inf, 2.0]])
    for updates in (still, gone):
        found = followed(updates)
        assert all(map(isnan, measured(found).values()))
        assert found.panels() == []
    late = followed(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
    assert measured(late) == dict.fromkeys(SHARES, 1.0) | {"trajectory_residual": 1.0}


def test_a_run_whose_updates_do_not_fit_is_refused_with_the_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "free_disk", lambda _: 2**33)
    task = mlp()
    size = sum(shape.numel() for shape in task.shapes.values())
    limit = 2**33 // (4 * size)
    with pytest.raises(UserError) as caught:
        Experiment(task, get("fedavg", cohort=2), rounds=limit + 1, measure=["trajectory"], scratch=tmp_path)
    assert str(caught.value) == (
        f"measure=trajectory: {limit + 1:,} updates of {size} parameters take 8.0 GiB, where the disk of {tmp_path} "
        "has 8.0 GiB; give fewer rounds, or leave it out."
    )
    Experiment(task, get("fedavg", cohort=2), rounds=limit, measure=["trajectory"], scratch=tmp_path)


def test_it_is_the_same_to_the_bit_in_memory_and_in_a_file(tmp_path: Path) -> None:
    updates = matrix(300, 12)
    kept, written = followed(updates), followed(updates, tmp_path)
    assert torch.equal(kept._gram, written._gram)
    assert kept.panels() == written.panels()
    torch.testing.assert_close(written._gram, updates.double().T @ updates.double())


def test_a_checkpoint_of_a_run_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """Of 12 rounds it holds 12 checksums, 12 residuals and 12·12 products; the updates are in a file beside it."""
    sizes = []
    for size in (50, 5000):
        state = followed(matrix(size, 12), tmp_path / str(size)).state_dict()
        sizes.append(sum(value.numel() for value in state.values()))
    assert sizes == [12 + 12 + 144] * 2


def test_the_command_line_logs_it_and_keeps_its_panels(tmp_path: Path) -> None:
    words = ("--recipe", "fedsubavg", "--measure", "trajectory", "--out", tmp_path / "run")
    last = fedslice("run", *SMALL, *words, "--json").metrics[-1]
    assert last["trajectory_share_1"] < last["trajectory_share_2"] < last["trajectory_share_5"] < 1
    assert last["trajectory_share_10"] == 1
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert logged[0]["trajectory_residual"] is None
    assert [len(panel.rows) for panel in read(tmp_path / "run").panels if "trajectory" in panel.title] == [6, 6, 5]
    wrong = fedslice("run", *SMALL, "--measure", "trajectories", "--out", tmp_path / "no")
    assert (wrong.code, wrong.err) == (2, "fedslice: unknown instrument 'trajectories'; did you mean 'trajectory'?\n")
