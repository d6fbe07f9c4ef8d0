"""The command line's instruments: gradient norms in a run, conditioning and heat in `inspect`, `reproduce`."""

import json
from pathlib import Path

import pytest

from command import SMALL, TINY, fedslice
from fedslice import tasks
from fedslice.measure import gradient_norms, histogram

pytestmark = pytest.mark.usefixtures("elsewhere")
NORMS = {"gradient_norm2", "elementwise_gradient_norm2"}
OPTIONS = {"clients": 30, "items": 40, "samples": 12, "factors": 3}


def test_a_run_logs_gradient_norms_on_demand() -> None:
    plain = fedslice("run", *SMALL, "--recipe", "fedsubavg", "--json").document
    assert not NORMS & plain["metrics"][0].keys()
    rows = fedslice("run", *SMALL, "--recipe", "fedsubavg", "--measure", "gradient-norms", "--json").metrics
    task = tasks.get("hotcold").build(OPTIONS, None)
    expected = gradient_norms(task, task.initial(0))
    assert {name: rows[0][name] for name in NORMS} == pytest.approx(expected, rel=1e-6)
    assert rows[0]["elementwise_gradient_norm2"] > rows[0]["gradient_norm2"]
    assert len({row["gradient_norm2"] for row in rows}) == len(rows), "it follows the model"
    assert [{k: v for k, v in row.items() if k not in NORMS} for row in rows] == [
        {k: v for k, v in row.items() if k != "seconds"} for row in plain["metrics"]
    ], "to look at a model does not change it"


def test_pooled_data_are_measured_as_the_federation_they_came_from() -> None:
    """Else D would be one for every row, and the two norms the same."""
    words = ("--recipes", "centralsgd,fedavg", "--measure", "gradient-norms", "--json")
    pooled, fedavg = fedslice("compare", *SMALL, *words).document["runs"]
    for name in NORMS:
        assert pooled["metrics"][0][name] == fedavg["metrics"][0][name]


def test_norms_are_printed_with_their_size() -> None:
    done = fedslice("run", *SMALL, "--measure", "gradient-norms")
    assert "elementwise" in done.out
    assert "e-0" in done.out
    assert "elementwise gradient norm2 " in done.err


def test_inspect_shows_the_heat_histogram() -> None:
    words = ("inspect", "hotcold", "--set", *TINY)
    found = fedslice(*words, "--json").document
    task = tasks.get("hotcold").build(OPTIONS, None)
    assert found["tables"][0]["histogram"] == histogram(task)[0]["bins"]
    assert sum(one["rows"] for one in found["tables"][0]["histogram"]) == found["tables"][0]["rows_held"]
    shown = fedslice(*words)
    assert shown.code == 0
    assert "█" in shown.out
    assert "conditioning" not in shown.out


def test_inspect_shows_the_conditioning() -> None:
    words = ("inspect", "example1", "--conditioning")
    found = fedslice(*words, "--json").document["conditioning"]
    assert (found["hessian"]["kappa"], found["preconditioned"]["kappa"]) == pytest.approx((100, 1))
    shown = fedslice(*words)
    assert [line.split()[0] for line in shown.out.splitlines() if "exact" in line] == ["H", "D^½"]
    assert "clients" in shown.out
    ridged = fedslice(*words, "--ridge", "2", "--json").document["conditioning"]
    assert ridged["preconditioned"]["sigma_max"] == pytest.approx(2 + 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", *SMALL, "--measure", "gradient"), "unknown instrument 'gradient'; did you mean 'gradient-norms'?"),
        (("inspect", "hotcold", "--ridge", "0.1"), "--ridge 0.1 belongs to --conditioning"),
        (("inspect", "example1", "--conditioning", "--ridge", "-1"), "ridge=-1.0; give zero or a positive number."),
        (("reproduce", "fedsubavg/table9"), "unknown exhibit 'fedsubavg/table9'"),
        (("reproduce", "fedsubavg/fig2", "--scale", "0"), "scale=0; give a number above 0"),
    ],
)
def test_misuse_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    done = fedslice(*words)
    assert done.code == 2
    assert done.out == ""
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not list(Path().iterdir()), "nothing is written"


def test_reproduce_prints_papers_figure_2() -> None:
    """T01 from the command line: to the last digits of float64."""
    done = fedslice("reproduce", "fedsubavg/fig2", "--json")
    cells = json.loads(done.out)["rows"][0]["cells"]
    assert [cell["verdict"] for cell in cells] == ["holds"] * 4
    assert max(cell["max_error"] for cell in cells) <= 1e-12
    assert json.loads(fedslice("reproduce", "S0/fig2", "--json").out)["exhibit"] == "fedsubavg/fig2", "by a former name"
    assert "| fedsubavg lr=0.5 |" in fedslice("reproduce", "fedsubavg/fig2", "--markdown").out
    assert "largest distance to the closed form" in fedslice("reproduce", "fedsubavg/fig2").out
