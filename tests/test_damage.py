"""Run directories that were edited, exchanged or damaged: refused in a sentence, before anything is trained."""

import os
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from command import TINY, execute, fedslice
from fedslice.config import Plan, assignments, request, resolve
from fedslice.core.errors import UserError
from fedslice.runs import checkpoint
from fedslice.runs.reading import read

SAID = {"task": "hotcold", "rounds": 8, "eval_every": 2, "set": assignments(TINY)}
SAFE = "checkpoint.safetensors"
ITEMS = "server.model.item.weight"
State = tuple[dict[str, Tensor], dict[str, Any]]


def plan(recipe: str) -> Plan:
    return resolve(request(SAID | {"recipe": recipe} | ({} if recipe == "feddd" else {"cohort": 6})))


class Ended(BaseException):
    """The test ends a run."""


def end_at(last: int) -> Callable[[int], None]:
    def look(done: int) -> None:
        if done > last:
            raise Ended

    return look


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run with a checkpoint of round 5, and rows of rounds 0, 2 and 4."""
    made: dict[str, Path] = {}

    def make(recipe: str) -> Path:
        if recipe not in made:
            made[recipe] = tmp_path_factory.mktemp("unfinished") / recipe
            with pytest.raises(Ended):
                execute(plan(recipe), made[recipe], resume=False, checkpoint_seconds=0, on_round=end_at(5))
        return made[recipe]

    return make


@pytest.fixture
def run(unfinished: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(unfinished("fedsubavg"), tmp_path / "run"))


def resume(path: Path, recipe: str = "fedsubavg") -> str:
    """Why the run is not resumed; that would be before its next round."""
    log = (path / "metrics.jsonl").read_bytes()

    def trained(_: int) -> None:
        raise AssertionError("it trains")

    with pytest.raises(UserError) as refused:
        execute(plan(recipe), path, resume=True, on_round=trained)
    assert (path / "metrics.jsonl").read_bytes() == log
    return str(refused.value)


def change(path: Path, edit: Callable[[dict[str, Tensor], dict[str, Any]], object]) -> None:
    """Edit a checkpoint; its checksum is that of the new content."""
    tensors, meta = checkpoint.load(path / SAFE)
    edit(tensors, meta)
    checkpoint.save(path / SAFE, tensors, meta)


EDITS: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, Any]], object], str]] = {
    "negative round": (lambda t, m: m.update(round=-5), "round is -5"),
    "round beyond the end": (lambda t, m: m.update(round=100_000), "round is 100000"),
    "another round": (
        lambda t, m: (m.update(round=7), t["server.round"].fill_(7)),
        "line 4 is absent, expected round 6",
    ),
    "another round of the experiment alone": (
        lambda t, m: m.update(round=7),
        "the server is at round 5, the experiment at 7",
    ),
    "round as text": (lambda t, m: m.update(round="5"), "round is '5'"),
    "round as a fraction": (lambda t, m: m.update(round=5.0), "round is 5.0"),
    "round as a flag": (lambda t, m: m.update(round=True), "round is True"),
    "no round": (lambda t, m: m.pop("round"), "round is None"),
    "no rows": (lambda t, m: m.pop("metric_rows"), "metric_rows is None"),
    "negative rows": (lambda t, m: m.update(metric_rows=-1), "metric_rows is -1"),
    "fewer rows": (
        lambda t, m: m.update(metric_rows=1),
        "line 2 is absent, expected round 2 before the checkpoint of round 5",
    ),
    "more rows": (lambda t, m: m.update(metric_rows=9), "has 3 rows, but its checkpoint was taken after 9"),
    "no ledger": (lambda t, m: m.pop("ledger"), "ledger is missing"),
    "a ledger of one side": (lambda t, m: m["ledger"].pop("down"), "expected up, down, enrol"),
    "bytes as text": (lambda t, m: m["ledger"].update(down="many"), "ledger has down='many'"),
    "negative bytes": (lambda t, m: m["ledger"]["up"].update(values=-1), "expected bytes by field"),
    "seconds that are NaN": (lambda t, m: m.update(seconds=float("nan")), "seconds is nan"),
    "an endless clock": (lambda t, m: m["ledger"].update(clock=float("inf")), "ledger has clock=inf"),
    "more rejected than sent": (lambda t, m: m.update(rejected=10**6), "rejected is 1000000"),
    "a ledger of other updates": (lambda t, m: m["ledger"].update(updates=10**6), "the ledger has 1000000"),
    "a ledger of other rejections": (lambda t, m: m["ledger"].update(rejected=10**6), "the ledger has 1000000"),
    "a list": (lambda t, m: m.update(rejected=[1]), r"rejected is [1]"),
    "a later divergence": (lambda t, m: m.update(diverged_round=6), "diverged_round is 6"),
    "no inventory": (lambda t, m: m.pop("tensors"), "tensors is missing"),
    "a wrong inventory": (lambda t, m: m.update(tensors=[]), "tensors is []"),
    "a model that is NaN": (lambda t, m: t[ITEMS].fill_(float("nan")), "saved with finite values alone"),
    "a model that is infinite": (lambda t, m: t[ITEMS][0].fill_(float("inf")), "finite values alone"),
    "no parameter": (lambda t, m: t.pop(ITEMS), f"tensor {ITEMS!r} is absent"),
    "another parameter": (
        lambda t, m: t.update({"server.model.new": torch.ones(2)}),
        "tensor 'server.model.new' is torch.float32 [2]",
    ),
    "another shape": (lambda t, m: t.update({ITEMS: torch.ones(2)}), "is torch.float32 [2], expected"),
    "another type": (
        lambda t, m: t.update({ITEMS: t[ITEMS].double()}),
        "is torch.float64 [40, 3], expected torch.float32 [40, 3]",
    ),
    "another group": (lambda t, m: t.update({"other.x": torch.ones(1)}), "tensor 'other.x' is torch.float32 [1]"),
    "a part's state": (lambda t, m: t.update({"server.parts.local.x": torch.ones(1)}), "tensor 'server.parts.local.x'"),
    "a memory": (lambda t, m: t.update({"clients.store.x/slot": torch.ones(1)}), "tensor 'clients.store.x/slot'"),
    "everything": (lambda t, m: (t.clear(), m.clear()), "round is None"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_checkpoint_with_a_good_checksum_and_other_content_is_refused(run: Path, name: str) -> None:
    edit, expected = EDITS[name]
    change(run, edit)
    said = resume(run)
    assert expected in said
    assert str(run) in said
    assert "restore" in said


@pytest.mark.parametrize("recipe", ["fedsubavg", "feddd", "fedadam", "scaffold", "stc", "ditto"])
def test_no_mutation_of_a_checkpoint_raises_anything_but_a_sentence(
    unfinished: Callable[[str], Path], recipe: str
) -> None:
    """Also where the inventory is changed with the tensors: only then are memories looked at one by one."""
    tensors, meta = checkpoint.load(unfinished(recipe) / SAFE)
    plans = plan(recipe)
    odd = st.sampled_from([None, True, -1, 2**70, 0.5, float("nan"), "x", [], {}])
    mutate: dict[str, Callable[[Tensor], Tensor | None]] = {
        "gone": lambda _: None,
        "shorter": lambda t: t[:-1] if t.dim() else t[None],
        "flat": lambda t: t.reshape(-1)[:1],
        "deeper": lambda t: t[None],
        "other type": lambda t: t.to(torch.int32 if t.dtype != torch.int32 else torch.float32),
        "beyond": lambda t: torch.full_like(t, 100) if t.dtype == torch.int64 else t[:0] if t.dim() else t[None],
        "below": lambda t: torch.full_like(t, -7) if t.dtype == torch.int64 else t[..., :0] if t.dim() else t[None],
    }

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        changed, numbers = dict(tensors), dict(meta)
        if data.draw(st.booleans()):
            numbers[data.draw(st.sampled_from(sorted(meta)))] = data.draw(odd)
        else:
            name = data.draw(st.sampled_from(sorted(tensors)))
            found = mutate[data.draw(st.sampled_from(sorted(mutate)))](tensors[name])
            changed.pop(name)
            changed |= {} if found is None else {name: found}
            if data.draw(st.booleans()):
                numbers["tensors"] = {n: f"{t.dtype} {list(t.shape)}" for n, t in changed.items()}
        with suppress(UserError):
            plans.experiment().load_state_dict(changed, numbers)

    check()


def test_a_checkpoint_without_names_and_numbers_in_its_header_is_refused(run: Path, monkeypatch: Any) -> None:
    for body in ('{"meta": 1, "order": []}', "[]", '{"order": [1], "meta": {}}', '{"meta": {}, "order": ["x"]}', "{"):
        monkeypatch.setattr(checkpoint.json, "dumps", lambda *_, body=body, **__: body)
        checkpoint.save(run / SAFE, {}, {})
        monkeypatch.undo()
        assert "checkpoint" in resume(run)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("garbage", "line 2 is not JSON"),
        ("[1, 2]", "line 2 is not JSON of a row (expected an object)"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("", "line 2 is not JSON"),
        ("{}", "line 2 is no row with a round"),
        ('{"round": 3}', "line 2 is round 3, expected round 2"),
        ('{"round": 2, "train_loss": "low"}', "line 2: train_loss is 'low', expected a number"),
    ],
)
def test_damage_in_the_checkpointed_part_of_the_log_is_found_before_training(run: Path, line: str, said: str) -> None:
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines()
    lines[1] = line
    log.write_text("\n".join(lines) + "\n")
    found = resume(run)
    assert f"{log}, {said}" in found
    assert not (run / "finished.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be read"),
        ("{}", "does not say how many rows the run has"),
        ("[3]", "does not say how many rows the run has"),
        ('{"metric_rows": 5}', "counts 5 rows, but metrics.jsonl has 3"),
        ('{"metric_rows": "3"}', "counts '3' rows"),
        ('{"metric_rows": 3}', "calls a run of 8 rounds complete, but metrics.jsonl ends at round 4"),
    ],
)
def test_an_unfinished_run_is_not_believed_to_be_finished(run: Path, content: str, said: str) -> None:
    (run / "finished.json").write_text(content)
    for found in (resume(run), _refused(read, run)):
        assert f"{run / 'finished.json'} {said}" in found
        assert "delete finished.json and continue the run with --resume" in found
    (run / "finished.json").unlink()
    assert [row["round"] for row in execute(plan("fedsubavg"), run, resume=True)["metrics"]] == [0, 2, 4, 6, 8]


def test_a_finished_run_whose_log_was_changed_is_refused(run: Path) -> None:
    execute(plan("fedsubavg"), run, resume=True)
    log = run / "metrics.jsonl"
    log.write_text(log.read_text().replace('"rejected": 0', '"rejected": 1', 1))
    assert "was written for another content of metrics.jsonl" in _refused(read, run)


def _refused(call: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(UserError) as refused:
        call(path)
    return str(refused.value)


def test_what_stands_where_a_file_is_to_be_written_is_named_and_left_alone(run: Path) -> None:
    partial = run / checkpoint.partial_name(SAFE)
    partial.write_text("mine")
    assert f"{partial} is a file, where a folder is made to write {SAFE}; move it elsewhere" in resume(run)
    partial.unlink()
    partial.mkdir()
    (partial / "thesis.tex").write_text("mine")
    assert f"{partial}, in which {SAFE} is to be written, holds 'thesis.tex'; move it elsewhere" in resume(run)
    assert (partial / "thesis.tex").read_text() == "mine"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        before = os.getcwd()
        os.chdir(path.parent)  # a socket's path may not be long
        one.bind(path.name)
        os.chdir(before)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [fifo, listener, device, Path.mkdir])
def test_nothing_but_a_regular_file_is_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "metrics.jsonl", "finished.json", SAFE):
        keep = run.with_name("kept")
        shutil.copytree(run, keep)
        (run / name).unlink(missing_ok=True)
        make(run / name)
        with pytest.raises(UserError, match="cannot be read"):
            execute(plan("fedsubavg"), run, resume=True)
        if name != SAFE:
            assert fedslice("report", run).code == 2
        shutil.rmtree(run)
        keep.rename(run)
    make(tmp_path / "task.toml")
    make(tmp_path / "devices.csv")
    for words in (["task.toml"], ["hotcold", "--set", *TINY, "--devices", "devices.csv"]):
        done = fedslice("run", *words)
        assert (done.code, done.err.count("\n")) == (2, 1)
