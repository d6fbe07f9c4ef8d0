import json
import multiprocessing
import os
import platform
import random
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from fedslice.core.errors import UserError
from fedslice.runs import checkpoint, directory, environment
from fedslice.runs.directory import RunDirectory

CONFIG = {"seed": 1, "recipe": {"local": {"lr": 0.1}}, "sizes": [3, 4]}
# One server imports torch once, and every process of these tests is a cheap fork of it.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "fedslice.runs"])


def opened(path: Path, resume: bool = False, **changes: Any) -> RunDirectory:
    return RunDirectory.open(path, CONFIG | changes, resume=resume)


def refusal(path: Path, config: dict[str, Any] | None = None, resume: bool = True) -> str:
    with pytest.raises(UserError) as caught:
        RunDirectory.open(path, CONFIG if config is None else config, resume=resume)
    message = str(caught.value)
    assert str(path) in message
    assert "--out" in message
    return message


def row(t: int, half: int) -> dict[str, Any]:
    return {"round": t, "half": half, "loss": 1 / (t + 3)}


def train(path: Path, connection: Connection) -> None:
    """Round after round without end; each is reported once its checkpoint is there."""
    torch.set_num_threads(1)
    with opened(path, resume=True) as run:
        state = run.resume()
        t = state[0] + 1 if state else 0
        while True:
            run.log(row(t, 0))
            run.log(row(t, 1))
            run.checkpoint(t, {"w": torch.full((50_000,), t)}, {"name": f"round {t}"})
            connection.send(t)
            t += 1


def start(path: Path) -> tuple[BaseProcess, Connection]:
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=train, args=(path, sender), daemon=True)
    process.start()
    sender.close()
    return process, receiver


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()
    assert process.exitcode == -9


def test_a_run_killed_at_any_moment_goes_on_from_a_log_and_checkpoint_that_agree(tmp_path: Path) -> None:
    path = tmp_path / "run"
    moments = random.Random(0)
    reached = -1
    for _ in range(8):
        process, reports = start(path)
        reached = max(reached, reports.recv())
        time.sleep(moments.uniform(0, 0.03))
        kill(process)
        while reports.poll():
            try:
                reached = max(reached, reports.recv())
            except EOFError:
                break
        with opened(path, resume=True) as run:
            assert not list(path.glob("*.partial"))
            state = run.resume()
            assert state is not None
            t, tensors, meta = state
            assert t >= reached
            assert meta == {"name": f"round {t}", "round": t, "metric_rows": 2 * (t + 1)}
            assert torch.equal(tensors["w"], torch.full((50_000,), t))
            assert run.metrics() == [row(s, half) for s in range(t + 1) for half in (0, 1)]


def test_a_run_killed_while_it_begins_can_be_begun_again(tmp_path: Path) -> None:
    moments = random.Random(1)
    for attempt in range(6):
        path = tmp_path / str(attempt)
        process, _ = start(path)
        while process.is_alive() and not path.exists():
            time.sleep(0.0002)
        time.sleep(moments.uniform(0, 0.01))
        kill(process)
        with opened(path, resume=True) as run:
            state = run.resume()
            assert len(run.metrics()) == (2 * (state[0] + 1) if state else 0)
            assert json.loads((path / "config.json").read_text()) == CONFIG
            assert json.loads((path / "environment.json").read_text())["python"] == platform.python_version()


def test_no_process_is_started_while_the_lock_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A started process inherits the lock, and holds it after the run was killed until it has loaded its program."""
    held: list[str] = []

    def start_nothing(*_: Any, **__: Any) -> None:
        held.extend(path.name for path in tmp_path.rglob(directory.LOCK))
        raise OSError("no process here")  # the answer of a system without the program: it is then done without

    monkeypatch.setattr("subprocess.Popen.__init__", start_nothing)
    monkeypatch.setattr(platform, "_uname_cache", None)  # the answer may be remembered from another test
    with opened(tmp_path / "run") as run:
        run.resume()
        run.log({"round": 0})
        run.finish()
    assert not held


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    process, reports = start(tmp_path / "run")
    reports.recv()
    assert "another process" in refusal(tmp_path / "run", resume=True)
    assert "another process" in refusal(tmp_path / "run", resume=False)
    kill(process)
    opened(tmp_path / "run", resume=True).close()


def test_a_second_opening_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "run"):
        assert "another process" in refusal(tmp_path / "run")
    opened(tmp_path / "run", resume=True).close()


def test_the_life_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "some" / "run"
    with opened(path) as run:
        assert run.resume() is None
        assert not run.finished
        assert run.metrics() == []
        run.log({"round": 0, "loss": 0.1 + 0.2})
        run.checkpoint(0, {"w": torch.ones(2)}, {"clock": 2.5})
        run.log({"round": 1, "loss": 1e-300})
        run.finish()
        assert run.finished
    for resume in (False, True):
        with opened(path, resume=resume) as run:
            assert run.finished
            assert run.metrics() == [{"round": 0, "loss": 0.1 + 0.2}, {"round": 1, "loss": 1e-300}]
            state = run.resume()
            assert state is not None
            assert state[0] == 0
            assert state[2] == {"clock": 2.5, "round": 0, "metric_rows": 1}
            assert len(run.metrics()) == 2


def test_a_finished_run_is_read_by_many_and_written_by_nobody(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.finish()
        with pytest.raises(RuntimeError, match="finished"):
            run.log({})
    with opened(tmp_path / "run") as one, opened(tmp_path / "run") as two:
        assert one.finished
        assert two.finished
        with pytest.raises(RuntimeError, match="finished"):
            one.checkpoint(0, {}, {})
        with pytest.raises(RuntimeError, match="finished"):
            two.finish()


def test_a_run_that_finishes_while_it_is_being_opened_is_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(tmp_path / "run")
    take = directory._lock

    def finish_first(path: Path) -> int:
        first.finish()
        return take(path)

    monkeypatch.setattr(directory, "_lock", finish_first)
    with opened(tmp_path / "run") as run, pytest.raises(RuntimeError, match="finished"):
        run.log({})


def test_a_continued_run_must_be_resumed_before_it_is_written(tmp_path: Path) -> None:
    opened(tmp_path / "run").close()
    with opened(tmp_path / "run", resume=True) as run:
        with pytest.raises(RuntimeError, match="resume"):
            run.log({})
        run.resume()
        run.log({"round": 0})
    with pytest.raises(RuntimeError, match="closed"):
        run.resume()


def test_rows_round_trip_and_stay_valid_json(tmp_path: Path) -> None:
    values = [0.1, 1e22, 5e-324, -0.0, 1.7976931348623157e308, 2**70, "ü\n\r\u2028", None, True]
    with opened(tmp_path / "run") as run:
        run.log({"values": values, "bad": float("nan"), "deep": {"worse": [float("inf"), (-float("inf"), 1)]}})
        run.log({})

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        lines = (tmp_path / "run" / "metrics.jsonl").read_text().split("\n")
        first = json.loads(lines[0], parse_constant=refuse)
        assert first == {"values": values, "bad": None, "deep": {"worse": [None, [None, 1]]}}
        assert str(first["values"][3]) == "-0.0"
        assert run.metrics() == [first, {}]


@pytest.mark.parametrize("tail", [b"", b'{"round": 2, "lo', b'{"round": 2}\n', b'{"round": 2}\n{"rou', b"\0\0\0"])
def test_resume_cuts_the_log_back_to_the_checkpoint(tmp_path: Path, tail: bytes) -> None:
    with opened(tmp_path / "run") as run:
        for t in (0, 1):
            run.log({"round": t})
            run.checkpoint(t, {}, {})
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    with opened(tmp_path / "run", resume=True) as run:
        assert run.metrics()[:2] == [{"round": 0}, {"round": 1}]
        assert run.resume() == (1, {}, {"round": 1, "metric_rows": 2})
        assert run.metrics() == [{"round": 0}, {"round": 1}]
        run.log({"round": "next"})
        assert run.metrics()[2:] == [{"round": "next"}]


def test_resume_without_a_checkpoint_empties_the_log(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.log({"round": 0})
    with opened(tmp_path / "run", resume=True) as run:
        assert run.metrics() == [{"round": 0}]
        assert run.resume() is None
        assert run.metrics() == []


def test_a_log_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.log({"round": 0})
        run.checkpoint(0, {}, {})
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with (
        opened(tmp_path / "run", resume=True) as run,
        pytest.raises(UserError, match=r"metrics\.jsonl has 0 rows, but its checkpoint was taken after 1"),
    ):
        run.resume()


def test_a_damaged_row_is_refused_with_its_line(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.log({"round": 0})
        (tmp_path / "run" / "metrics.jsonl").write_text('{"round": 0}\n{"rou\n')
        with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is not JSON"):
            run.metrics()


def test_an_unfinished_run_asks_for_resume(tmp_path: Path) -> None:
    opened(tmp_path / "run").close()
    assert "--resume" in refusal(tmp_path / "run", resume=False)
    opened(tmp_path / "run", resume=True).close()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG | {"seed": 2}, "seed is 1 there and 2 here"),
        (CONFIG | {"seed": True}, "seed is 1 there and true here"),
        (CONFIG | {"recipe": {"local": {"lr": 0.2}}}, "recipe.local.lr is 0.1 there and 0.2 here"),
        (CONFIG | {"recipe": {"local": {}}}, "recipe.local.lr is 0.1 there and absent here"),
        (CONFIG | {"rounds": None}, "rounds is absent there and null here"),
        (CONFIG | {"sizes": [3, 5, 6]}, "sizes.1 is 4 there and 5 here"),
        (CONFIG | {"sizes": "all"}, 'sizes is [3, 4] there and "all" here'),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_by_their_first_difference(
    tmp_path: Path, config: dict[str, Any], expected: str, finished: bool
) -> None:
    with opened(tmp_path / "run") as run:
        if finished:
            run.finish()
    assert expected in refusal(tmp_path / "run", config)


def test_a_config_is_compared_as_the_json_it_becomes(tmp_path: Path) -> None:
    opened(tmp_path / "run", sizes=(3, 4)).close()
    opened(tmp_path / "run", resume=True, sizes=[3, 4]).close()


def test_a_file_or_a_strange_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert "is a file" in refusal(file)
    refusal(file / "below")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").touch()
    assert "thesis.tex" in refusal(strange)
    assert os.listdir(strange) == ["thesis.tex"]
    assert file.read_text() == "mine"


@pytest.mark.parametrize("content", ["", "[1]", '{"seed": '])
def test_a_damaged_config_is_refused(tmp_path: Path, content: str) -> None:
    opened(tmp_path / "run").close()
    (tmp_path / "run" / "config.json").write_text(content)
    assert "config.json cannot be read" in refusal(tmp_path / "run")


def test_an_empty_or_half_created_directory_counts_as_new(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    partial = tmp_path / checkpoint.partial_name("config.json")
    partial.mkdir()
    (partial / "config.json").write_text('{"se')
    with opened(tmp_path) as run:
        run.log({"round": 0})
    assert sorted(os.listdir(tmp_path)) == ["config.json", "environment.json", "lock", "metrics.jsonl"]


def test_a_refused_opening_does_not_keep_the_lock(tmp_path: Path) -> None:
    opened(tmp_path / "run").close()
    refusal(tmp_path / "run", resume=False)
    opened(tmp_path / "run", resume=True).close()


def test_the_environment_names_no_person_and_no_place() -> None:
    described = environment.describe()
    assert described["packages"]["torch"] == torch.__version__
    assert described["cpu_count"] == os.cpu_count()
    text = json.dumps(described)
    assert platform.node() not in text
    assert str(Path.home()) not in text
    assert os.getcwd() not in text
