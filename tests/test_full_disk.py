"""A disk that fills up: one sentence that names the file, exit code 2, and what was there before stays whole."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from command import SMALL, Done, fedslice
from fedslice.runs import checkpoint

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
pytestmark = pytest.mark.usefixtures("elsewhere")


def fills_up(monkeypatch: pytest.MonkeyPatch, name: str, after: int) -> None:
    """Let the disk be full when a file of this name is put on it, but for the first times."""
    plain, seen = os.fsync, []

    def fsync(descriptor: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):
            seen.append(descriptor)
            if len(seen) > after:
                raise FULL
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def refused(done: Done, path: str) -> None:
    assert done.code == 2
    last = done.err.splitlines()[-1]
    assert last.startswith(f"fedslice: {path} cannot be written (")
    assert "No space left on device" in last
    assert "make room" in last
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", ["config.json", "panels.json", "metrics.jsonl", "checkpoint.safetensors"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_full_disk_ends_a_run_in_one_sentence_and_the_run_goes_on_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    words = ("run", "--checkpoint-seconds", 0, "--out", "r", *SMALL)
    whole = fedslice(*("w" if word == "r" else word for word in words), "--json").metrics
    with monkeypatch.context() as full:
        fills_up(full, name, after)
        done = fedslice(*words)
    if name == "config.json" and after:  # it is written once
        assert done.code == 0
        return
    refused(done, f"r/{name}")
    assert not list(Path("r").glob("*.partial"))
    if Path("r/module.safetensors").exists():
        checkpoint.load(Path("r/module.safetensors"))
    resumed = fedslice("run", "--checkpoint-seconds", 0, "--out", "r", "--resume", "--json", *SMALL)
    assert resumed.metrics == whole


def test_safetensors_own_error_is_told_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def save_file(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    refused(fedslice("run", "--out", "r", *SMALL), "r/module.safetensors")


def test_a_full_disk_under_the_events_is_told_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    plain = Path.open

    def full(path: Path, *words: Any, **more: Any) -> Any:
        return plain(Path("/dev/full") if "tfevents" in path.name else path, *words, **more)

    monkeypatch.setattr(Path, "open", full)
    done = fedslice("run", "--out", "r", "--tensorboard", "board", *SMALL)
    refused(done, done.err.splitlines()[-1].split()[1])
    assert "board/r/events.out.tfevents" in done.err


def test_a_full_disk_under_the_report_asks_for_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    fills_up(monkeypatch, "x.html", 0)
    done = fedslice("run", "--out", "r", "--report", "x.html", *SMALL)
    assert done.code == 2
    said = "the report cannot be written to x.html (No space left on device); give another file."
    assert done.err.splitlines()[-1] == f"fedslice: {said}"
    assert Path("r/finished.json").exists()
