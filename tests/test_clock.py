"""Simulated time: the slowest selected client of each round (FedDD, equation 12), from the bytes that are sent."""

from pathlib import Path

import numpy as np
import pytest

from command import SMALL, fedslice
from fedslice.core.errors import UserError
from fedslice.recipe import Recipe
from fedslice.select import Everyone, Pooled, Uniform
from fedslice.training.devices import Devices
from fedslice.training.experiment import Experiment
from toys import SIZES, chosen, fitting, training


def some(clients: int) -> Devices:
    return Devices.drawn(clients, 3)


def test_the_clock_is_the_sum_of_the_slowest_clients() -> None:
    """Whole models, everyone, two passes: everything is known beforehand."""
    task, _ = fitting("fedavg")
    hardware = some(len(SIZES))
    recipe = Recipe(select=Everyone(), local=training(epochs=2, batch_size=3))
    rows = Experiment(task, recipe, rounds=4, eval_every=1, devices=hardware).run()
    size = sum(shape.numel() for shape in task.shapes.values()) * task.itemsize
    samples = task.federation.train.sizes.numpy() * 2
    expected = hardware.seconds(np.arange(len(SIZES)), samples, size, size).max()
    assert [row["clock"] for row in rows] == pytest.approx([k * expected for k in range(5)])


@pytest.mark.parametrize("chunk", [1, 2, 6])
def test_the_clock_does_not_depend_on_chunks(chunk: int) -> None:
    task, recipe = fitting("fedsubavg")
    clocks = [
        Experiment(task, recipe, rounds=3, devices=some(len(SIZES)), **options).run()[-1]["clock"]
        for options in ({"chunk": chunk}, {}, {"chunk": chunk, "wire": True})
    ]
    assert clocks[1:] == pytest.approx([clocks[0]] * 2, rel=1e-12)


def test_only_selected_clients_are_waited_for() -> None:
    task, _ = fitting("fedavg")
    recipe = Recipe(select=Uniform(cohort=2))
    selected = chosen(recipe, 0).clients.tolist()
    usual = some(len(SIZES))
    clocks = []
    for slow in range(len(SIZES)):
        uplink = usual.uplink.copy()
        uplink[slow] /= 1000
        hardware = Devices(usual.speed, usual.cycles, uplink, usual.downlink)
        clocks.append(Experiment(task, recipe, rounds=1, devices=hardware).run()[-1]["clock"])
    expected = Experiment(task, recipe, rounds=1, devices=usual).run()[-1]["clock"]
    assert [clock > 100 * expected for clock in clocks] == [client in selected for client in range(len(SIZES))]


def test_without_devices_there_is_no_clock_and_nothing_else_changes() -> None:
    task, recipe = fitting("fedsubavg")
    plain = Experiment(task, recipe, rounds=2).run()[-1]
    timed = Experiment(task, recipe, rounds=2, devices=some(len(SIZES))).run()[-1]
    assert "clock" not in plain
    for row in (plain, timed):
        row.pop("seconds")
    assert timed | {"clock": 0.0} == plain | {"clock": 0.0}
    pooled = Experiment(task, Recipe(select=Pooled(cohort=2)), rounds=1, devices=some(len(SIZES))).run()[-1]
    assert "clock" not in pooled, "nothing travels"


def test_the_clock_is_resumed() -> None:
    task, recipe = fitting("fedsubavg")
    whole = Experiment(task, recipe, rounds=4, eval_every=1, devices=some(len(SIZES)))
    rows = whole.run()
    half = Experiment(task, recipe, rounds=2, devices=some(len(SIZES)))
    half.run()
    rest = Experiment(task, recipe, rounds=4, eval_every=1, devices=some(len(SIZES)))
    rest.load_state_dict(*half.state_dict())
    assert rest.run()[-1]["clock"] == rows[-1]["clock"]


def test_a_device_too_few_is_refused() -> None:
    task, recipe = fitting("fedavg")
    with pytest.raises(UserError, match="devices are 5, clients 6"):
        Experiment(task, recipe, rounds=1, devices=some(5))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def test_compare_tells_the_time_relative_to_a_baseline() -> None:
    words = ("--recipes", "fedavg,fedsubavg", "--target", "test_auc=0.1", "--devices", "feddd", "--baseline", "fedavg")
    done = fedslice("compare", *SMALL, *words, "--json").document
    fedavg, fedsubavg = done["table"]
    assert fedavg["t2a"] is None, "the target is reached before the first round, in no time"
    done = fedslice("compare", *SMALL, *words[:2], "--devices", "feddd", "--json").document
    clocks = [row["clock"] for row in done["table"]]
    assert clocks[0] > clocks[1] > 0, "a slice takes less time than the whole"
    assert fedsubavg["recipe"] == "fedsubavg"
    shown = fedslice("compare", *SMALL, *words)
    assert "relative" in shown.out
    assert "simulated" in shown.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--devices", "fedd"), "did you mean 'feddd'?"),
        (("--devices", "nowhere.csv"), "nowhere.csv"),
        (("--devices", "feddd", "--baseline", "fedavg"), "--baseline fedavg needs"),
        (("--devices", "feddd", "--target", "test_auc=0.5", "--baseline", "fedprox"), "--baseline fedprox needs"),
        (("--target", "test_auc=0.5", "--baseline", "fedavg"), "--baseline fedavg needs"),
    ],
)
def test_wrong_devices_are_one_sentence(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = fedslice("compare", *SMALL, *words)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_list_of_devices_is_read(tmp_path: Path) -> None:
    lines = ["client,speed,cycles,uplink,downlink", *(f"{c},1e9,1e6,1e{3 + c % 2},1e5" for c in range(30))]
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    rows = fedslice("run", *SMALL, "--devices", "list.csv", "--json").document["metrics"]
    assert rows[-1]["clock"] > rows[1]["clock"] > rows[0]["clock"] == 0
    (tmp_path / "list.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert "client 29" in fedslice("run", *SMALL, "--devices", "list.csv").err
