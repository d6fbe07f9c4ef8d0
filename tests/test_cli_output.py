"""Where output goes: narrow terminals, plain encodings, pipes that close, and folders that are not there."""

import os
import subprocess
from pathlib import Path

import pytest

from command import ENVIRONMENT, SCRIPT, SMALL, TINY, fedslice

pytestmark = pytest.mark.usefixtures("elsewhere")


# --- words that have no place ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*SMALL, "lr"), "unexpected extra argument 'lr'; if it is a setting, write it as --set lr=VALUE."),
        (("hotcold", "lr=0.1"), "unexpected extra argument 'lr=0.1'; if it is a setting, write it as --set lr=0.1."),
    ],
)
def test_a_setting_that_is_none_is_told_how_to_write_it(words: tuple[str, ...], says: str) -> None:
    for command in ("run", "compare"):
        done = fedslice(command, *words)
        assert (done.code, done.out, done.err) == (2, "", f"fedslice: {says}\n")


def test_a_word_too_many_elsewhere_is_told_where_to_look() -> None:
    done = fedslice("clients", "one", "two")
    assert (done.code, done.out) == (2, "")
    assert done.err == "fedslice: unexpected extra argument 'two'; see fedslice clients --help.\n"


# --- comparisons ----------------------------------------------------------------------------------------------------


def test_a_comparison_counts_its_runs_and_explains_its_spread() -> None:
    done = fedslice("compare", *SMALL, "--seeds", 2)
    said = [line.partition("  round")[0] for line in done.err.splitlines() if "round 6/6" in line]
    assert said == [
        "run 1 of 4: fedavg seed 0",
        "run 2 of 4: fedavg seed 1",
        "run 3 of 4: fedsubavg seed 0",
        "run 4 of 4: fedsubavg seed 1",
    ]
    assert done.out.endswith("\n± is the standard deviation over seeds: how far single runs lie from their mean.\n")
    assert "±" not in fedslice("compare", *SMALL).out
    assert "run 1 of" not in fedslice("run", *SMALL, "--out", "one").err


# --- readers that leave ---------------------------------------------------------------------------------------------


def test_a_run_goes_on_to_its_end_without_a_reader(tmp_path: Path) -> None:
    """As in ``fedslice run … 2>&1 | head -1``: the training is what counts, and its exit code is that of the work."""
    reading, writing = os.pipe()
    words = [SCRIPT, "run", *SMALL, "--out", "run", "--report", "page.html"]
    child = subprocess.Popen(words, stdout=writing, stderr=subprocess.STDOUT, env=ENVIRONMENT, cwd=tmp_path)
    os.close(writing)
    assert os.read(reading, 6) == b"fedavg"
    os.close(reading)
    assert child.wait(timeout=60) == 0
    assert (tmp_path / "run" / "finished.json").exists()
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize("words", [("list",), ("list", "--json")])
def test_an_answer_that_nobody_reads_is_no_failure(tmp_path: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([SCRIPT, *words], stdout=writing, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


# --- encodings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_no_encoding_is_too_poor(tmp_path: Path, encoding: str) -> None:
    assert fedslice("run", *SMALL, "--out", "a-run-whose-name-is-longer-than-the-table-has-room").code == 0
    for words in (
        ("watch", "a-run-whose-name-is-longer-than-the-table-has-room"),
        ("inspect", "hotcold", "--set", *TINY),
        ("list",),
        ("compare", *SMALL, "--seeds", "2"),
        ("inspect", "--help"),
        ("run", "nöwhere…"),
    ):
        done = subprocess.run(
            [SCRIPT, *words],
            capture_output=True,
            env=ENVIRONMENT | {"PYTHONIOENCODING": encoding},
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == (2 if "nöwhere…" in words else 0), done.stderr
        assert b"Traceback" not in done.stderr
        if "--help" not in words:  # which chooses its encoding itself
            text = done.stdout.decode(encoding)
            assert "?" not in text, "signs have plain ones that stand for them"


# --- folders that are not there -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN", "-o", "none/page.html"),
        ("report", "RUN", "--figures", "none/charts"),
        ("features", "RUN", "--out", "none/features.csv"),
        ("features", "RUN", "--tsne", "--chart", "none/map.svg"),
        ("run", *SMALL, "lr=0.2", "--report", "none/page.html"),
        ("compare", *SMALL, "lr=0.2", "--report", "none/page.html"),
        ("reproduce", "fedsubavg/fig2", "--report", "none/page.html"),
    ],
)
def test_an_answer_into_a_folder_that_is_not_there_is_refused_before_the_work(words: tuple[str, ...]) -> None:
    assert fedslice("run", *SMALL, "--out", "RUN").code == 0
    done = fedslice(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(": the folder none does not exist; make it first, or name another.\n")
    assert [path.name for path in Path().iterdir()] == ["RUN"]


def test_a_folder_of_charts_is_made_but_is_no_file() -> None:
    assert fedslice("run", *SMALL, "--out", "RUN").code == 0
    Path("file").touch()
    done = fedslice("report", "RUN", "--figures", "file")
    assert (done.code, done.err) == (2, "fedslice: --figures file is a file, expected a folder; name another.\n")


def test_a_report_may_stand_beside_the_runs_that_it_is_of() -> None:
    assert fedslice("compare", *SMALL, "--out", "both", "--report", "both/page.html").code == 0
    assert fedslice("run", *SMALL, "--report", "runs/page.html").code == 0
    assert Path("both/page.html").exists()
    assert Path("runs/page.html").exists()
