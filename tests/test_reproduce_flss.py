"""FLSS's exhibits as data: the paper's numbers and settings, and which runs they share."""

from pathlib import Path

import pytest

from fedslice.papers.exhibits import Cell, Line
from fedslice.papers.files import load, names
from fedslice.papers.jobs import job
from test_reproduce import order

EXHIBITS = [name for name in names() if name.startswith("flss/")]
SMALL = ("small", "part")  # in the names of setups that are not the paper's

# The paper's own, by table: methods in lines, columns as printed.
TABLE_1 = """
fedavg 0.17 57.45 65.29 67.24 0.18 28.33 29.71 30.07
fedprox 0.17 57.08 65.38 67.34 0.18 28.42 29.91 29.94
scaffold 0.17 56.30 67.87 68.01 0.18 29.07 29.10 30.12
moon 0.17 57.65 65.33 67.41 0.18 28.47 29.83 30.03
feddyn 0.17 55.03 67.58 67.81 0.18 29.02 29.02 30.22
feddc 0.17 55.63 67.20 68.21 0.18 29.14 29.31 29.98
fedgen - 58.06 65.61 67.43 - 28.35 29.89 29.80
fedntd 0.17 58.07 65.52 67.53 0.18 28.41 29.51 30.07
flss 35.14 59.44 67.19 69.82 37.00 28.41 31.47 31.61
fetchsgd 43.92 52.57 59.83 62.29 46.23 22.66 23.98 25.38
sign 5.49 51.92 64.27 66.78 5.78 22.40 28.30 29.62
stc 5.49 48.62 59.02 57.29 5.78 21.32 25.30 24.09
sign+flss 1.11 52.43 64.69 63.43 1.16 24.11 29.85 30.61
"""
TABLE_2 = """
fedavg 79.02 55.27 22.98 23.31 85.06 28.33 14.26 14.97 75.13
fedprox 78.81 55.38 23.06 23.93 84.06 28.42 14.12 15.10 75.33
moon 78.21 55.41 22.91 23.65 85.03 28.47 15.21 14.71 75.54
feddc 79.00 56.76 23.29 24.24 83.89 29.14 15.98 17.75 79.53
fedgen 78.61 56.34 23.51 27.52 84.27 28.35 15.44 14.85 75.98
fedntd 78.36 56.62 23.60 27.30 84.96 28.41 15.43 15.20 75.11
flss 81.09 58.89 25.12 31.46 86.25 28.41 17.01 18.56 81.35
"""
TABLE_3 = """
fedavg 57.45 56.46 57.10 56.31 50.25 49.70
fedntd 58.06 57.10 57.36 57.25 50.93 50.10
flss 59.44 59.40 58.27 56.67 50.60 50.01
"""
TABLE_4 = (
    (30.52, 31.13, 30.83, 31.57, 31.47, 30.98, 31.25, 29.71),
    (27.98, 28.81, 28.91, 29.40, 29.32, 28.03, 29.10, 26.42),
    (21.37, 22.51, 22.35, 23.09, 23.08, 22.82, 22.86, 21.61),
)
TABLE_6 = """
fedavg 85.06 91.02 91.18 23.04 26.42 27.43 14.26 15.61 18.47
fedprox 84.06 91.03 91.14 23.00 26.25 27.02 14.12 15.63 18.35
moon 85.03 91.18 91.29 23.08 26.54 27.10 15.21 15.72 18.51
feddyn 83.11 90.68 90.92 24.41 28.65 29.09 15.63 - 19.07
fedgen 84.27 91.17 91.25 23.42 26.24 27.85 15.44 15.80 18.72
fedntd 84.96 91.15 91.36 22.84 26.51 27.15 15.43 15.77 18.39
flss 86.25 91.64 91.29 24.31 29.32 30.68 17.01 17.84 19.00
fetchsgd 79.79 90.67 90.56 21.99 24.43 25.35 14.12 14.46 16.16
sign 80.79 90.76 90.37 22.57 25.99 26.01 14.02 14.20 16.86
stc 80.40 85.33 85.78 22.38 25.92 26.42 13.86 14.59 15.93
sign+flss 81.32 91.05 91.02 23.01 27.59 26.17 13.20 15.04 17.32
"""
TABLE_7 = """
fedavg 59.88 65.29 65.31 48.51 56.17 58.88
fedprox 59.77 65.38 65.11 48.44 56.03 58.27
moon 59.93 65.33 65.26 48.74 56.28 59.24
fedgen 60.03 65.61 65.12 49.23 56.24 59.04
fedntd 60.42 65.52 65.15 49.64 56.42 59.06
flss 62.31 67.19 65.53 51.92 57.34 58.93
fetchsgd 52.20 59.83 58.57 - 54.18 56.04
sign 59.21 64.27 63.95 47.22 54.23 55.68
stc 59.55 59.02 62.38 47.91 55.03 55.35
sign+flss 59.01 64.69 64.06 49.02 54.77 56.81
"""


def columns(table: str) -> list[dict[str, float | None]]:
    """By column: methods and numbers."""
    lines = [line.split() for line in table.strip().splitlines()]
    numbers = [[None if word == "-" else float(word) for word in line[1:]] for line in lines]
    return [dict(zip((line[0] for line in lines), column, strict=True)) for column in zip(*numbers, strict=True)]


def written(line: Line) -> dict[str, float | None]:
    """The same of a row, in percent."""
    return {cell.recipe: None if cell.best is None else round(100 * cell.best, 2) for cell in line.cells}


def test_the_exhibits() -> None:
    tables = [f"flss/table{number}" for number in range(1, 9)]
    assert ["flss/fig2", "flss/fig4", "flss/fig5", *tables, "flss/words"] == EXHIBITS
    kinds = ["spectrum", "compression", "spectrum", *["compression"] * 8, "words"]
    assert [load(name)[0].kind for name in EXHIBITS] == kinds


def test_the_tables_have_the_papers_accuracies() -> None:
    found = columns(TABLE_1)
    rows = load("flss/table1")[0].row
    assert [written(line) for line in rows[:6]] == [*found[1:4], *found[5:8]]
    for line, column in zip(rows[6:9], columns(TABLE_6)[:3], strict=True):  # FMNIST, for small machines
        assert {name: number for name, number in written(line).items() if name in column} == column
    for name, text in (("table2", TABLE_2), ("table3", TABLE_3), ("table6", TABLE_6), ("table7", TABLE_7)):
        assert [written(line) for line in load(f"flss/{name}")[0].row] == columns(text)
    for line, numbers in zip(load("flss/table4")[0].row, TABLE_4, strict=False):
        assert tuple(round(100 * (cell.best or 0), 2) for cell in line.cells) == numbers
    gradients = [round(100 * (cell.best or 0), 2) for cell in load("flss/table5")[0].row[0].cells]
    assert gradients == [57.34, 60.02, 55.98, 57.58, 56.58]
    last = [list(written(line).values()) for line in load("flss/table8")[0].row[:6]]
    assert last == [[56.37, 59.44], [64.42, 67.19], [65.15, 69.82], [27.70, 28.41], [28.81, 31.47], [30.01, 31.61]]
    assert load("flss/fig2")[0].row[0].cells[0].shares == {"50": 0.8204}
    seconds = [cell.seconds for cell in load("flss/table3")[0].row[0].cells]
    assert seconds == [32.26, 80.83, 39.02]


def test_the_tables_have_the_papers_words() -> None:
    found = columns(TABLE_1)
    for place, line in enumerate(load("flss/table1")[0].row[:6]):
        for cell in line.cells:
            expected = found[0 if place < 3 else 4][cell.recipe]
            unit = "G" if expected is not None and expected < 1 else "M"
            assert cell.words == (None if expected is None else f"{expected:.2f} {unit}")
    said = {(line.paper, cell.name): cell.words for line in load("flss/words")[0].row for cell in line.cells}
    assert said["Cifar100 (tables 1, 4)", "flss every=0"] == "1e-2 M"
    assert said["Cifar100 (tables 1, 4)", "flss every=10"] == "18.50 M"
    assert said["Cifar10 (table 7)", "sign"] == "69.88 M"
    assert (said["Cifar10 (table 8)", "flss"], said["Cifar100 (table 8)", "flss"]) == ("0.21 G", "0.22 G")
    assert all(line.whole for line in load("flss/table8")[0].row)
    assert not any(line.whole for line in load("flss/table1")[0].row)


@pytest.mark.parametrize("name", EXHIBITS)
def test_what_the_paper_says_is_in_its_numbers(name: str) -> None:
    for line in load(name)[0].row:
        best = {cell.name: cell.best for cell in line.cells}
        for claim in line.claims:
            first, second = best[claim.first], best[claim.second]
            assert claim.says != "above" or first is None or second is None or first > second


@pytest.mark.parametrize("name", [name for name in EXHIBITS if name != "flss/words"])
def test_the_settings_are_the_papers(name: str, tmp_path: Path) -> None:
    """Section 4.1 and appendix D, for what is not a stand-in."""
    exhibit, setups = load(name)
    for line in exhibit.row:
        for one in line.setups:
            setup, training = setups[one], setups[one].trained
            small = any(word in one for word in SMALL)
            assert small == (setup.standin is not None and setup.unless == "")
            assert training.sampling is not None
            assert training.sampling % training.eval_every == 0, "evaluated when the sampling ends"
            assert training.rounds == 2 * training.sampling or "trajectory" in one
            for cell in line.cells:
                asked = job(setup, cell, 0, order(tmp_path)).request
                own = asked.set
                rate, epochs = (0.5 if setup.task == "agnews" else 0.05, 1) if small else (0.01, 5)
                assert (own["split"], own["lr"], "decay" in own) == ("pfllib", cell.set.get("lr", rate), False)
                assert own["partition"] == ("pfl-pathological" if "pathological" in one else "pfl-dirichlet")
                assert own["weights"] == "uniform", "algorithm 1, line 11, and for all methods equation 1"
                clipped = cell.recipe in ("feddyn", "feddc") or (small and cell.recipe == "scaffold")
                assert own.get("clip") == (10.0 if clipped else None)
                assert setup.task == "agnews" or own["normalise"] == "half"
                assert own["epochs"] == (int(one.rpartition("epochs")[2]) if "epochs" in one else epochs)
                if "flss" in cell.recipe:
                    assert own["rank"] == cell.set.get("rank", 10 if small else 50)
                    assert own["codec.decay"] == cell.set.get("codec.decay", 1.0)
                    assert (own["every"], own["warmup"]) == (
                        cell.set.get("every", 5),
                        cell.set.get("warmup", training.sampling),
                    )
                    assert asked.rounds == (training.rounds if "warmup" not in cell.set else cell.length)
                if not small:
                    assert (own["batch_size"], training.sampling) == (128, 200)
                    assert own["clients"] == (int(one.rpartition("-")[2]) if "-of-" in one else 20)
                given = {key: own[key] for key in ("mu", "alpha", "local.beta", "delta", "generator_lr") if key in own}
                assert given == APPENDIX_D.get(cell.recipe, {})


APPENDIX_D = {
    "fedprox": {"mu": 0.01},
    "moon": {"mu": 0.01},
    "feddc": {"alpha": 0.5},
    "feddyn": {"alpha": 0.5},
    "fedntd": {"local.beta": 0.001},
    "fedgen": {"generator_lr": 0.005},
    "lbgm": {"delta": 0.05},
}


def test_tables_of_the_same_runs_share_them(tmp_path: Path) -> None:
    def keys(name: str) -> set[str]:
        exhibit, setups = load(name)
        return {
            job(setups[one], cell, 0, order(tmp_path)).key
            for line in exhibit.row
            for one in line.setups
            for cell in line.cells
        }

    first = keys("flss/table1")
    assert len(keys("flss/table8") - first) == len(keys("flss/table8")) / 2, "all but LBGM"
    assert len(keys("flss/table3") & first) == 6
    assert len(keys("flss/table7") & first) == 20


def test_a_scaled_run_samples_a_shorter_subspace(tmp_path: Path) -> None:
    setup = load("flss/table1")[1]["flss-cifar10-beta01"]
    scales = {1.0: (400, 200, 10), 0.05: (20, 10, 10), 0.075: (30, 15, 5), 0.001: (10, 5, 5)}
    for scale, (rounds, warmup, every) in scales.items():
        asked = job(setup, Cell(recipe="flss"), 0, order(tmp_path, scale=scale)).request
        assert (asked.rounds, asked.set["warmup"], asked.eval_every) == (rounds, warmup, every)
    assert asked.set["train"] == 2000
    asked = job(setup, Cell(recipe="flss", set={"warmup": 50}, length=150), 0, order(tmp_path, scale=0.1)).request
    assert (asked.rounds, asked.set["warmup"]) == (15, 5)
    assert "warmup" not in job(setup, Cell(recipe="fedavg"), 0, order(tmp_path, scale=0.1)).request.set
