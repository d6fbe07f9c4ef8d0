"""Real and published data through the command line."""

from pathlib import Path

import numpy as np
import pytest
import torch

from command import SMALL, fedslice
from fedslice.combine import HeatCorrected
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.datasets import amazon as amazon_files
from fedslice.models import DIN
from fedslice.recipe import Recipe
from fedslice.task import Task
from fedslice.tasks import amazon
from fedslice.training.experiment import Experiment
from layouts import REAL_DATA, write_amazon, write_movielens

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_central_sgd_sends_nothing() -> None:
    done = fedslice("run", *SMALL, "--recipe", "centralsgd", "--json")
    assert [row["up_bytes"] + row["down_bytes"] for row in done.metrics] == [0] * 4
    assert done.metrics[-1]["train_loss"] < done.metrics[0]["train_loss"]


@pytest.mark.parametrize(("variant", "zipped"), [("1m", True), ("1m", False), ("100k", False)])
def test_movielens(tmp_path: Path, variant: str, zipped: bool) -> None:
    data = write_movielens(tmp_path / "data", zipped=zipped, variant=variant)
    words = ("--data", data, "--set", f"variant={variant}")
    found = fedslice("inspect", "movielens", *words, "--json").document
    assert (found["clients"], found["train_samples"], found["test_samples"]) == (20, 320, 80)
    assert found["parameters"] == found["tables"][0]["rows"] == 9 + 30 * (1 + 2 + 7)
    done = fedslice("run", "movielens", *words, "--recipe", "fedsubavg", "--rounds", 5, "--cohort", 5, "--json")
    assert done.document["source"] == f"MovieLens-{variant.upper()}, 400 ratings"
    assert [row["round"] for row in done.metrics] == [0, 5]
    assert done.metrics[0]["train_loss"] == pytest.approx(np.log(2))
    assert done.metrics[1]["train_loss"] < done.metrics[0]["train_loss"]


def test_amazon_without_a_test_file_holds_out_tails(tmp_path: Path) -> None:
    data = write_amazon(tmp_path / "data")
    done = fedslice("run", "amazon", "--data", data, "--rounds", 2, "--cohort", 4, "--recipe", "fedsubavg", "--json")
    source = "Amazon Electronics, 360 ratings, last 20% of each user held out, histories real"
    assert done.document["source"] == source
    assert [row["round"] for row in done.metrics] == [0, 2]
    found = fedslice("inspect", "amazon", "--data", data, "--set", "holdout=0.33", "--json").document
    assert (found["train_samples"], found["test_samples"]) == (12 * 21, 12 * 9)


def test_amazon_with_a_test_file_uses_the_published_split(tmp_path: Path) -> None:
    data = write_amazon(tmp_path / "data", test_rows=5)
    done = fedslice("run", "amazon", "--data", data, "--rounds", 1, "--cohort", 4, "--set", "history=zeroed", "--json")
    source = "Amazon Electronics, 420 ratings, the published split by date, histories zeroed"
    assert done.document["source"] == source
    found = fedslice("inspect", "amazon", "--data", data, "--json").document
    assert (found["train_samples"], found["test_samples"]) == (360, 60)


def test_zeroed_histories_keep_their_lengths(tmp_path: Path) -> None:
    data = write_amazon(tmp_path / "data")
    real, zeroed = (amazon.ENTRY.build({"history": kind}, data).federation.train for kind in ("real", "zeroed"))
    one, other = real.features["history"], zeroed.features["history"]
    assert isinstance(one, Ragged)
    assert isinstance(other, Ragged)
    assert torch.equal(one.offsets, other.offsets)
    assert one.values.any()
    assert not other.values.any()
    assert torch.equal(real.label, zeroed.label)


def test_a_tail_is_the_last_rows_in_file_order_rounded_down() -> None:
    user = np.array([3, 1, 3, 3, 1, 3, 3, 2, 3, 3, 3, 3, 3], dtype=np.int32)
    assert np.flatnonzero(amazon.tail(user, 0.2)).tolist() == [11, 12]  # of ten; none of two, none of one
    assert np.flatnonzero(amazon.tail(user, 0.5)).tolist() == [4, 8, 9, 10, 11, 12]
    sizes = np.array([0, 1, 4, 5, 9, 10, 30])
    users = np.repeat(np.arange(7, dtype=np.int32), sizes)
    assert np.bincount(users[amazon.tail(users, 0.2)], minlength=7).tolist() == [0, 0, 0, 1, 1, 2, 6]


ELECTRONICS = REAL_DATA / "amazon_electronics_fedsubavg"
real_amazon = pytest.mark.skipif(not ELECTRONICS.is_dir(), reason=f"the real Amazon files are not in {REAL_DATA}")


@real_amazon
def test_the_real_amazon_split() -> None:
    federation = amazon.ENTRY.build({}, ELECTRONICS).federation
    assert (len(federation), len(federation.train), len(federation.test)) == (1859, 80_505, 19_205)


@real_amazon
def test_coefficients_are_those_the_authors_published() -> None:
    """T12: W/W_m over all training rows, a client's rows being its target items and the padding row."""
    rows = amazon_files.read(ELECTRONICS).train
    padding = Ragged(torch.zeros(len(rows), dtype=torch.int64), torch.arange(len(rows) + 1))
    federation = Federation.from_arrays(
        client=rows.user,
        features={"user": rows.user, "item": rows.item, "history": padding},
        label=rows.label.astype(np.int64),
        test=0.0,
    )
    tables = {"item.weight": ("item", "history")}
    task = Task(federation, lambda: DIN(amazon_files.USERS, amazon_files.ITEMS), amazon.cross_entropy, tables=tables)
    heat = HeatCorrected()
    run = Experiment(task, Recipe(combine=heat), rounds=1)
    found = heat.coefficients(run.server.states["combine"], "item.weight")
    published = torch.tensor([float(line) for line in (ELECTRONICS / "item_coef.txt").read_text().split()])
    assert len(found) == len(published) == 33_136
    torch.testing.assert_close(found.double(), published.double(), rtol=1e-3, atol=0)
    assert found[23768].item() == pytest.approx(6.002287503, rel=1e-6)
    assert found[0].item() == 1
    assert found.max().item() == 99_710
    assert int((found == 1).sum()) == 3_988
