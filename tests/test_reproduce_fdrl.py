"""FDRL's exhibits: the settings and the numbers of its published code."""

from pathlib import Path

from fedslice.papers.files import load
from fedslice.papers.jobs import job
from test_reproduce import order

PUBLISHED = {"fedavg": 0.9634, "fedprox": 0.972, "fedrep": 0.9772, "fdrl": 0.9841}
NETWORKS = {
    "fdrl-mnist": "mlp-softmax",
    "fdrl-mnist-logits": "mlp",
    "fdrl-fmnist": "mlp-softmax",
    "fdrl-fmnist-logits": "mlp",
    "fdrl-cifar10": "cnn",
    "fdrl-cifar10-small": "cnn",
}


def test_the_numbers_are_those_of_the_published_code() -> None:
    mnist, *others = load("fdrl/accuracy")[0].row
    assert {cell.recipe: cell.final for cell in mnist.cells if cell.final is not None} == PUBLISHED
    assert not any(cell.final for line in others for cell in line.cells)
    for claim in mnist.claims:
        assert claim.by == round(PUBLISHED[claim.first] - PUBLISHED[claim.second], 4)


def test_the_settings_are_those_of_the_published_code(tmp_path: Path) -> None:
    for name in ("fdrl/accuracy", "fdrl/distances"):
        exhibit, setups = load(name)
        for line in exhibit.row:
            for setup in line.setups:
                for cell in line.cells:
                    asked = job(setups[setup], cell, 0, order(tmp_path)).request
                    own = asked.set
                    assert (asked.rounds, own["clients"], own["cohort"]) == (200, 50, 5)
                    assert (own["partition"], own["classes"]) == ("shards", 2)
                    assert own["limit"] == (250 if "small" in setup else 500)
                    assert (own["epochs"], own["batch_size"], own["lr"]) == (5, 10, 0.01)
                    assert (own["momentum"], own["weight_decay"], own["weights"]) == (0.5, 1e-4, "uniform")
                    pair = "fdrl" if cell.recipe == "fdrl" else "fdrl-baseline"
                    assert own["model"] == f"{pair}-{NETWORKS[setup]}"
                    assert "stale" in asked.measure


def test_both_exhibits_share_the_runs_of_the_method(tmp_path: Path) -> None:
    (one, setups), (other, _) = load("fdrl/accuracy"), load("fdrl/distances")
    for line in other.row:
        (same,) = [
            cell for known in one.row if known.paper == line.paper for cell in known.cells if cell.recipe == "fdrl"
        ]
        keys = [job(setups[line.setups[0]], cell, 0, order(tmp_path)).key for cell in (same, *line.cells)]
        assert keys[0] in keys[1:]
        assert len(set(keys)) == len(line.cells)
