"""The command line's eyes: `report`, `watch`, and the options of training commands that lead to them."""

from pathlib import Path

import pytest

from command import SMALL, TINY, fedslice

pytestmark = pytest.mark.usefixtures("elsewhere")
COMPARISON = ("compare", *SMALL, "--recipes", "fedavg,fedsubavg", "--seeds", "2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "here"
    assert fedslice(*COMPARISON, "--out", place).code == 0
    return place


def test_a_report_is_one_file(runs: Path, tmp_path: Path) -> None:
    done = fedslice("report", runs, "-o", "page.html", "--target", "test_auc=0.5")
    assert (done.code, done.err) == (0, "report: page.html\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    page = (tmp_path / "page.html").read_text()
    for word in ("hotcold", "fedavg", "fedsubavg", "Heat of item", "Slice sizes", "fedslice run hotcold --recipe"):
        assert word in page


def test_training_commands_end_with_a_report_if_asked(tmp_path: Path) -> None:
    done = fedslice(*COMPARISON, "--target", "test_auc=0.5", "--report", "page.html")
    assert done.code == 0
    assert done.err.endswith("report: page.html\n")
    again = fedslice("run", *SMALL, "--recipe", "fedprox", "--report", "one.html", "--json")
    assert again.document["recipe"] == "fedprox"
    assert "fedprox" in (tmp_path / "one.html").read_text()
    assert "fedsubavg" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("kind", "magic"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures_come_in_three_formats(runs: Path, tmp_path: Path, kind: str, magic: bytes) -> None:
    done = fedslice("report", runs, "--figures", "charts", "--format", kind)
    assert done.code == 0
    made = list((tmp_path / "charts").iterdir())
    assert made
    assert all(path.suffix == f".{kind}" and path.read_bytes().startswith(magic) for path in made)
    assert f"figures: {len(made)} in charts" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), "nowhere is not a directory; give run directories"),
        ((".",), "holds no run"),
        (("RUNS", "--target", "test_acu=0.5"), "did you mean 'test_auc'?"),
        (("RUNS", "--target", "test_auc=high"), "'high' is not a number"),
        (("RUNS", "-o", "."), "is a directory"),
        (("RUNS", "--figures", "charts", "--format", "gif"), "gif"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(runs: Path, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = fedslice("report", *(runs if word == "RUNS" else word for word in words))
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_watch_shows_a_pipe_what_there_is(runs: Path) -> None:
    done = fedslice("watch", runs, "--metric", "test_auc")
    assert done.code == 0
    assert "fedsubavg" in done.out
    assert "finished" in done.out
    wrong = fedslice("watch", runs, "--metric", "test_acu")
    assert wrong.code == 2
    assert "test_auc" in wrong.err


def test_events_are_written_while_training_and_afterwards(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    assert fedslice("run", *SMALL, "--tensorboard", "live", "--out", "one").code == 0
    assert fedslice("watch", runs, "--tensorboard", "later").code == 0
    for folder, count in (("live", 1), ("later", 4)):
        assert len(list((tmp_path / folder).rglob("events.out.tfevents.*"))) == count


def test_an_exhibit_without_runs_has_no_report(tmp_path: Path) -> None:
    done = fedslice("reproduce", "fedsubavg/fig2", "--report", "page.html")
    assert done.code == 0
    assert "no report: fedsubavg/fig2 has no runs to show." in done.err
    assert not (tmp_path / "page.html").exists()


def test_the_settings_of_a_comparison_are_not_lost(runs: Path) -> None:
    commands = [(entry / "origin.json").read_text() for entry in runs.iterdir()]
    assert all(TINY[0] in text and "--cohort 6" in text for text in commands)
