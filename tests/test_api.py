"""One interface for Python and the command line, and for built-in tasks and a user's own."""

import gc
import inspect
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import fedslice as fs
from command import TINY, fedslice, without_seconds
from fedslice import schema
from fedslice.config import assignments
from fedslice.core.errors import UserError
from fedslice.data import vocabulary
from fedslice.metrics import auc
from fedslice.runs import export
from fedslice.runs.callbacks import Callback, RunState
from fedslice.runs.settings import RunSettings
from fedslice.runs.sight import Watcher
from fedslice.runs.stopping import EarlyStopping, Target
from fedslice.tasks import get
from layouts import one_sentence

pytestmark = pytest.mark.usefixtures("elsewhere")

SETTINGS = {"rounds": 6, "cohort": 6, "eval_every": 2, "set": assignments(TINY)}
WORDS = ("--rounds", 6, "--cohort", 6, "--eval-every", 2)

OWN = """
import numpy as np
import torch
from torch import nn
import fedslice as fs
from beside import SCALE

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(20, 2)
        self.out = nn.Linear(2, 1)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("offset", torch.tensor(0.5))
    def forward(self, item):
        return self.out(self.item(item) * self.frozen).squeeze(-1) + self.offset

def shop(seed=0):
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 20, 240)
    data = fs.Federation.from_arrays(client=np.arange(240) % 12, features={"item": item}, label=SCALE * item, test=0.25)
    far = fs.Metric(lambda o, y: (o - y).abs().max(), lower_is_better=True, heading="largest error")
    return fs.Task(data, Pair, nn.MSELoss(reduction="none"), {"item.weight": "item"}, {"far": far}, name="shop")

def other():
    return shop(1)

def small():
    import dataclasses
    return dataclasses.replace(shop(), model=nn.Module)

def broken():
    return 1 / 0

def nothing():
    return None

def skill(outputs, labels):
    return (outputs.flatten() > 0).double().mean()

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(40, 1)
    def forward(self, user=None, item=None, **rest):
        return self.item(item).squeeze(-1)

mine = fs.Recipe().with_options({"local": "prox", "mu": 0.1, "lr": 0.02})
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's file, with another one beside it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "beside.py").write_text("SCALE = 0.05\n")
    path = tmp_path / "mine" / "shop.py"
    path.write_text(OWN)
    return path


class Kill(Callback):
    """Ends the run as a kill does, after a round."""

    def __init__(self, at: int):
        self._at = at

    def on_round(self, run: RunState) -> None:
        if run.round == self._at:
            raise KeyboardInterrupt


class Note(Callback):
    """Writes down what it is told, into a list that others write to as well."""

    def __init__(self, name: str, notes: list[tuple[Any, ...]]):
        self._name = name
        self._notes = notes

    def on_start(self, run: RunState) -> None:
        self._notes.append((self._name, "start", run.round))

    def on_round(self, run: RunState) -> None:
        self._notes.append((self._name, "round", run.round))

    def on_evaluation(self, run: RunState, row: Mapping[str, Any]) -> None:
        on_disk = (run.directory / "metrics.jsonl").read_text().splitlines()
        assert len(on_disk) == len(run.rows)
        assert run.rows[-1] == row
        self._notes.append((self._name, "evaluation", row["round"]))

    def on_end(self, run: RunState, error: BaseException | None) -> None:
        self._notes.append((self._name, "end", type(error).__name__))


def rows(run: fs.Run) -> list[dict[str, Any]]:
    return without_seconds(run.document())


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_in_python_is_the_run_of_the_command_line() -> None:
    found = fs.run("hotcold", "fedsubavg", **SETTINGS)
    done = fedslice("run", "hotcold", "--recipe", "fedsubavg", *WORDS, "--out", "r", "--set", *TINY, "--json")
    assert rows(found) == done.metrics
    frame = found.frame.drop("seconds")
    assert frame.to_dicts() == done.metrics
    assert frame.columns == list(done.metrics[0])
    assert found.scores == {
        name: found.rows[-1][name] for name in ("train_loss", "test_loss", "test_auc", "test_accuracy")
    }
    again = fs.load("r")
    assert again.frame.drop("seconds").equals(frame)
    assert again.config == found.config
    assert fs.run("hotcold", "fedsubavg", out="r", **SETTINGS).rows == again.rows, "a finished run is read"
    for name, value in again.model.items():
        assert torch.equal(value, found.model[name])


def test_the_model_loads_into_the_module_and_has_the_score_of_the_run() -> None:
    found = fs.run("hotcold", **SETTINGS)
    task = get("hotcold").build(assignments(TINY), None)
    module = task.build(5)
    module.load_state_dict(found.model)
    test = task.federation.test
    features, labels = test.batch(torch.arange(len(test)))
    with torch.no_grad():
        assert auc(module(**features), labels) == pytest.approx(found.scores["test_auc"])


def test_a_run_without_a_directory_goes_with_its_object() -> None:
    found = fs.run("hotcold", **SETTINGS)
    directory = found.directory
    assert found.report("page.html") == Path("page.html")
    assert "fedavg" in Path("page.html").read_text()
    assert directory.exists()
    assert not Path("runs").exists()
    del found
    gc.collect()
    assert not directory.exists()


def test_a_killed_run_resumes_to_the_same_metrics() -> None:
    whole = fs.run("hotcold", "scaffold", **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        fs.run("hotcold", "scaffold", out="r", checkpoint_seconds=0, callbacks=[Kill(5)], **SETTINGS)
    assert not fs.load("r").finished
    assert "unfinished at round 4 of 6" in repr(fs.load("r"))
    with pytest.raises(UserError, match="add --resume"):
        fs.run("hotcold", "scaffold", out="r", **SETTINGS)
    assert rows(fs.run("hotcold", "scaffold", out="r", resume=True, **SETTINGS)) == rows(whole)


def test_a_run_shows_itself() -> None:
    found = fs.run("hotcold", **SETTINGS)
    assert repr(found).startswith("Run(fedavg on hotcold, seed 0, 6 rounds, train_loss 0.6")
    page = found._repr_html_()
    assert page.count("<tr>") == 1 + 4
    assert '<th scope="col">test auc</th>' in page
    assert schema.find("test_auc").text(found.scores["test_auc"]) in page


def test_the_settings_of_a_run_are_listed_once_and_shown_everywhere() -> None:
    names = set(RunSettings.model_fields)
    assert names <= set(inspect.signature(fs.run).parameters)
    assert names - {"recipe"} <= set(inspect.signature(fs.compare).parameters)
    helped = fedslice("run", "--help").out
    for name in names - {"task", "metrics"}:
        assert f"--{name.replace('_', '-')}" in helped
    assert "``eval_every``" in str(fs.run.__doc__)


@pytest.mark.parametrize(
    ("given", "saying"),
    [
        ({"rounds": 0}, "rounds=0: input should be greater than or equal to 1."),
        ({"round": 5}, "unknown key 'round'; did you mean 'rounds'?"),
        ({"callbacks": [print]}, "is no fedslice.Callback; derive its class from that."),
        ({"recipe": 3}, "recipe=3: expected a name."),
        ({"recipe": nn.Linear(1, 1)}, "expected a recipe's name or a fedslice.Recipe."),
        ({"devices": {}}, "devices={}: expected a name, a CSV file or fedslice Devices."),
        ({"stop": object()}, "expected a text such as 'test_auc >= 0.7' or an EarlyStopping."),
        ({"stop": "test_acu >= 0.7"}, "unknown metric 'test_acu'; did you mean 'test_auc'?"),
        ({"stop": "test_auc >= much"}, "'much' is not a number; write for example test_auc=0.6."),
        ({"stop": "test_auc patience=x"}, "patience is 'x'; write for example test_auc patience=5."),
        ({"stop": "test_auc waiting=3"}, "unknown setting of stop="),
        ({"metrics": "auc"}, "'auc' is no address; write MODULE:NAME"),
        ({"model": "nowhere.py:Net"}, "there is no file nowhere.py"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(given: dict[str, Any], saying: str) -> None:
    assert saying in one_sentence(lambda: fs.run("hotcold", **(SETTINGS | given)), ends=(".", "?"))


# --- comparisons ----------------------------------------------------------------------------------------------------


def test_a_comparison_is_that_of_the_command_line() -> None:
    found = fs.compare("hotcold", ["fedavg", "fedsubavg"], seeds=2, target="test_auc >= 0.7", **SETTINGS)
    words = ("--recipes", "fedavg,fedsubavg", "--seeds", 2, "--target", "test_auc >= 0.7", "--out", "c")
    done = fedslice("compare", "hotcold", *WORDS, *words, "--set", *TINY, "--json")
    assert [rows(run) for run in found.runs] == list(map(without_seconds, done.document["runs"]))
    assert found.frame.drop("seconds")["recipe"].to_list() == ["fedavg", "fedsubavg"]
    assert found.frame["test_auc"].to_list() == [row["test_auc"] for row in done.document["table"]]
    assert found.frame["target"].to_list() == ["test_auc >= 0.7"] * 2
    found.report("page.html")
    assert "Until test auc ≥ 0.7" in Path("page.html").read_text()
    assert found._repr_html_().count("<table") == 2


def test_recipes_of_ones_own_are_compared_by_name() -> None:
    recipes = {"slow": fs.Recipe().with_options({"lr": 0.01}), "usual": "fedavg"}
    found = fs.compare("hotcold", recipes, **SETTINGS)
    assert found.frame["recipe"].to_list() == ["slow", "usual"]
    assert found.runs[0].config["recipe"]["local"]["optimizer"]["lr"] == 0.01
    assert "named 2 times" in one_sentence(lambda: fs.compare("hotcold", ["fedavg", fs.Recipe()], **SETTINGS))


# --- a user's own ---------------------------------------------------------------------------------------------------


def test_an_own_task_goes_through_every_command(own: Path) -> None:
    task, recipe = f"{own}:shop", f"{own}:mine"
    common = ("run", task, "--recipe", recipe, *WORDS)
    whole = fedslice(*common, "--out", "whole", "--json")
    assert whole.document["task"] == "shop"
    assert whole.document["recipe"] == "mine"
    assert whole.metrics[-1]["train_loss"] < whole.metrics[0]["train_loss"]
    settings = {"rounds": 6, "cohort": 6, "eval_every": 2}
    with pytest.raises(KeyboardInterrupt):
        fs.run(task, recipe, out="killed", checkpoint_seconds=0, callbacks=[Kill(3)], **settings)
    assert fedslice(*common, "--out", "killed", "--resume", "--json").metrics == whole.metrics
    words = ("--recipes", f"fedavg,{recipe}", "--target", "test_far=0.9", "--out", "both", "--report", "page.html")
    compared = fedslice("compare", task, *WORDS, *words)
    assert compared.code == 0, compared.err
    assert "largest error" in Path("page.html").read_text()
    assert "Until test largest error ≤ 0.9" in compared.out
    own.unlink()
    assert fedslice("report", "both", "whole", "-o", "other.html", "--target", "test_far=0.9").code == 0
    assert [sight.name for sight in Watcher([Path("both")]).look()] == ["fedavg seed 0", "mine seed 0"]
    assert fedslice("watch", "both", "--metric", "test_far").code == 0


def test_an_own_task_is_importable_from_the_working_directory(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = fedslice("run", "shop:shop", "--rounds", 1, "--cohort", 3, "--out", "r", "--json")
    assert done.document["task"] == "shop"
    assert fedslice("inspect", "shop:shop", "--json").document["clients"] == 12
    asked = fedslice("inspect", "shop:shop", "--recipe", "shop:mine", "--json").document
    assert asked["recipe"] == "mine"


def test_an_own_task_that_is_another_one_is_refused(own: Path) -> None:
    for made, name in ((f"{own}:shop", "r"), (f"{own}:other", "s")):
        assert fedslice("run", made, "--rounds", 2, "--cohort", 3, "--out", name).code == 0
    done = fedslice("run", f"{own}:other", "--rounds", 2, "--cohort", 3, "--out", "r", "--resume")
    assert done.code == 2
    assert "r holds a run with other settings: task.data is " in done.err
    wide = own.with_name("wide.py")
    wide.write_text(OWN.replace("nn.Embedding(20, 2)", "nn.Embedding(21, 2)"))
    done = fedslice("run", f"{wide}:shop", "--rounds", 2, "--cohort", 3, "--out", "r", "--resume")
    assert "r holds a run with other settings: task.parameters is " in done.err


def test_an_own_model_and_metric_stand_in_a_built_in_task(own: Path) -> None:
    words = ("hotcold", *WORDS, "--model", f"{own}:Plain", "--metric", f"{own}:skill", "--out", "r", "--set", *TINY)
    done = fedslice("run", *words, "--json")
    assert done.code == 2
    assert "unknown table (parameter) 'bias.weight'" in done.err
    done = fedslice("run", "hotcold", *WORDS, "--metric", f"{own}:skill", "--out", "r", "--set", *TINY, "--json")
    assert all(0 <= row["test_skill"] <= 1 for row in done.metrics)
    assert fs.load("r").config["task"]["metrics"] == "auc, accuracy, skill"


@pytest.mark.parametrize(
    ("name", "saying"),
    [
        ("shop.py:shoop", "shop.py has no 'shoop'; did you mean shop.py:shop?"),
        ("shop.py:broken", "shop.py:broken() raised ZeroDivisionError ('division by zero') at "),
        ("shop.py:nothing", "shop.py:nothing() returned none, expected a Task."),
        ("shop.py:mine", "expected a Task or a function that returns one."),
        ("elsewhere.py:shop", "there is no file elsewhere.py; write path/to/file.py:NAME."),
        ("no_such_module:shop", "there is no module 'no_such_module' in the working directory"),
        ("syntax.py:shop", "syntax.py raised SyntaxError ("),
        ("lost.py:shop", "lost.py raised ModuleNotFoundError (\"No module named 'nowhere'\") at "),
    ],
)
def test_own_code_that_cannot_be_used_is_told_in_a_sentence(
    own: Path, name: str, saying: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own.parent)
    Path("syntax.py").write_text("def shop(:\n")
    Path("lost.py").write_text("import nowhere\n")
    done = fedslice("run", name, "--rounds", 1)
    assert (done.code, done.out) == (2, "")
    assert saying in done.err
    assert len(done.err.splitlines()) == 1


# --- warm starts ----------------------------------------------------------------------------------------------------


def test_a_warm_start_begins_where_another_run_ended(own: Path) -> None:
    task = f"{own}:shop"
    first = fs.run(task, rounds=4, cohort=6, set={"lr": 0.02})
    assert fedslice("export", first.directory, "model.safetensors").code == 0
    for given in (first.model, "model.safetensors", Path("model.safetensors")):
        second = fs.run(task, rounds=2, cohort=6, seed=3, warm_start=given, set={"lr": 0.02})
        assert second.rows[0]["test_far"] == first.rows[-1]["test_far"]
    cold = fs.run(task, rounds=2, cohort=6, seed=3, set={"lr": 0.02})
    assert cold.rows[0]["test_far"] != first.rows[-1]["test_far"]
    assert cold.config != second.config
    done = fedslice(
        "run", task, "--rounds", 2, "--cohort", 6, "--seed", 3, "--warm-start", "model.safetensors", "--json"
    )
    assert done.metrics[0]["test_far"] == first.rows[-1]["test_far"]


@pytest.mark.parametrize(
    ("change", "saying"),
    [
        ({"out.bias": None}, "warm_start has no 'out.bias', which Pair trains; give all of it."),
        ({"more": torch.zeros(2)}, "warm_start has 'more', which Pair does not; leave it out."),
        ({"out.bias": torch.zeros(2)}, "warm_start: 'out.bias' has shape (2,), expected (1,)."),
        ({"out.bias": torch.tensor([torch.nan])}, "warm_start: 'out.bias' contains NaN or infinity"),
        ({"frozen": torch.zeros(2)}, "warm_start has other values for 'frozen', which is not trained, than the model"),
        ({"out.bias": 3}, "warm_start: 'out.bias' is 3, expected a tensor by the name of a parameter."),
    ],
)
def test_a_warm_start_that_does_not_fit_is_refused(own: Path, change: dict[str, Tensor | None], saying: str) -> None:
    task = fs.address.make(f"{own}:shop", fs.Task)
    state = {**task.build(0).state_dict(), **change}
    state = {name: value for name, value in state.items() if value is not None}
    assert saying in one_sentence(lambda: fs.run(task, rounds=1, cohort=3, warm_start=state))


def test_a_warm_start_that_is_no_file_of_weights_is_refused() -> None:
    Path("bad.safetensors").write_bytes(b"\xff" * 100)
    for name in ("bad.safetensors", "absent.safetensors"):
        told = one_sentence(lambda name=name: fs.run("hotcold", warm_start=name, **SETTINGS))
        assert f"warm_start {name} cannot be read" in told


# --- stopping -------------------------------------------------------------------------------------------------------


def test_a_target_ends_a_run_at_the_evaluation_that_reaches_it() -> None:
    whole = fs.run("hotcold", **SETTINGS)
    scores = [row["test_auc"] for row in whole.rows]
    value = (scores[1] + scores[2]) / 2
    found = fs.run("hotcold", stop=f"test_auc >= {value}", out="r", **SETTINGS)
    assert rows(found) == rows(whole)[:3]
    assert found.stopped is not None
    assert found.stopped["round"] == 4
    assert f"test_auc >= {value} is reached: test_auc is" in found.stopped["reason"]
    assert "stopped at round 4 of 6" in repr(found)
    assert rows(fs.run("hotcold", stop=Target("test_auc", value), out="r", **SETTINGS)) == rows(found), "it is finished"
    assert fedslice("report", "r", "-o", "page.html").code == 0
    done = fedslice("run", "hotcold", *WORDS, "--stop", f"test_auc >= {value}", "--out", "r", "--set", *TINY)
    assert "stopped after round 4 of 6: test_auc >= " in done.out
    never = fs.run("hotcold", stop=["test_auc > 1", "test_loss patience=50"], **SETTINGS)
    assert rows(never) == rows(whole)
    assert never.stopped is None


def test_early_stopping_counts_evaluations_without_a_gain() -> None:
    def ends(values: list[float | None], **settings: Any) -> int | None:
        stop = EarlyStopping("test_auc", **settings)
        log = [{"test_auc": value} for value in values]
        return next((place for place in range(len(log)) if stop.reason(log[: place + 1])), None)

    assert ends([0.5, 0.6, 0.7], patience=1) is None
    assert ends([0.5, 0.6, 0.6, 0.7], patience=1) == 2
    assert ends([0.5, 0.6, 0.55, 0.58, 0.7], patience=2) == 3
    assert ends([0.5, 0.51, 0.52], patience=2, min_delta=0.05) == 2
    assert ends([0.5, None, None, 0.9], patience=2) == 2
    assert ends([0.5, 0.4, 0.3], patience=1, lower=True) is None
    assert ends([0.3, 0.4], patience=1, lower=True) == 1
    for wrong in ({"patience": 0}, {"patience": True}, {"min_delta": -1.0}):
        assert "EarlyStopping: " in one_sentence(lambda wrong=wrong: EarlyStopping("test_auc", **wrong))


def test_a_run_without_a_gain_ends_and_one_that_was_killed_ends_there_too() -> None:
    settings = SETTINGS | {"rounds": 20, "set": SETTINGS["set"] | {"lr": 1e-9}}  # nothing gets better
    stop = EarlyStopping("test_auc", patience=3, min_delta=0.01)
    found = fs.run("hotcold", stop=stop, **settings)
    assert [row["round"] for row in found.rows] == [0, 2, 4, 6]
    assert found.stopped == {"round": 6, "reason": "test_auc has not improved for 3 evaluations"}
    text = fs.run("hotcold", stop="test_auc patience=3 min_delta=0.01", **settings)
    assert (text.config, rows(text)) == (found.config, rows(found))
    for at in range(1, 7):
        with pytest.raises(KeyboardInterrupt):
            fs.run("hotcold", stop=stop, out=f"r{at}", checkpoint_seconds=0, callbacks=[Kill(at)], **settings)
        again = fs.run("hotcold", stop=stop, out=f"r{at}", resume=True, **settings)
        assert (rows(again), again.stopped) == (rows(found), found.stopped)


def test_a_run_that_dies_between_its_last_checkpoint_and_its_end_is_not_trained_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fedslice.runs.directory import RunDirectory

    class Enough(Callback):
        def on_round(self, run: RunState) -> None:
            if run.round == 3:
                run.stop("it is enough")

    whole = fs.run("hotcold", callbacks=[Enough()], **SETTINGS)
    assert [row["round"] for row in whole.rows] == [0, 2, 3], "the last round is evaluated"
    assert whole.stopped == {"round": 3, "reason": "it is enough"}
    with monkeypatch.context() as there:
        there.setattr(RunDirectory, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fs.run("hotcold", out="r", callbacks=[Enough()], **SETTINGS)
    again = fs.run("hotcold", out="r", resume=True, **SETTINGS)
    assert (rows(again), again.stopped) == (rows(whole), whole.stopped)


# --- callbacks ------------------------------------------------------------------------------------------------------


def test_callbacks_are_told_in_their_order_of_rounds_before_evaluations() -> None:
    notes: list[tuple[Any, ...]] = []
    settings = SETTINGS | {"rounds": 3}
    fs.run("hotcold", out="r", callbacks=[Note("a", notes), Note("b", notes)], **settings)
    events = [
        ("start", 0),
        ("evaluation", 0),
        ("round", 1),
        ("round", 2),
        ("evaluation", 2),
        ("round", 3),
        ("evaluation", 3),
    ]
    assert notes == [(name, *event) for event in [*events, ("end", "NoneType")] for name in "ab"]
    notes.clear()
    fs.run("hotcold", out="r", callbacks=[Note("a", notes)], **settings)
    assert notes == [("a", "start", 3), ("a", "end", "NoneType")], "of a run that is complete"


@pytest.mark.parametrize(("hook", "at"), [("on_round", 3), ("on_round", 4), ("on_evaluation", 4), ("on_evaluation", 0)])
def test_an_exception_of_a_callback_ends_the_run_with_the_round_saved(hook: str, at: int) -> None:
    class Fails(Callback):
        pass

    def fail(self: Callback, run: RunState, *more: Any) -> None:
        if run.round == at:
            raise OSError("the tracker is away")

    setattr(Fails, hook, fail)
    notes: list[tuple[Any, ...]] = []
    whole = fs.run("hotcold", **SETTINGS)
    with pytest.raises(OSError, match="the tracker is away") as caught:
        fs.run("hotcold", out="r", callbacks=[Fails(), Note("b", notes)], **SETTINGS)
    (words,) = caught.value.__notes__
    assert f"Fails.{hook} raised this after round {at}; " in words
    assert (f"round {at} of 6 is saved in r" if at else "r has no checkpoint") in words
    assert notes[-1] == ("b", "end", "OSError")
    assert ("b", hook.removeprefix("on_"), at) not in notes
    assert rows(fs.run("hotcold", out="r", resume=True, **SETTINGS)) == rows(whole)


def test_a_callback_reads_the_model_and_cannot_change_it() -> None:
    seen: list[Tensor] = []

    class Look(Callback):
        def on_round(self, run: RunState) -> None:
            for value in run.model().values():
                seen.append(value.clone())
                value.zero_()

    assert rows(fs.run("hotcold", callbacks=[Look()], **SETTINGS)) == rows(fs.run("hotcold", **SETTINGS))
    assert any(bool(value.any()) for value in seen)


# --- trackers -------------------------------------------------------------------------------------------------------


def test_mlflow_is_told_settings_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[Any, ...]] = []
    fake = types.SimpleNamespace(
        set_tracking_uri=lambda uri: said.append(("uri", uri)),
        set_experiment=lambda name: said.append(("experiment", name)),
        start_run=lambda run_name: said.append(("start", run_name)),
        log_params=lambda params: said.append(("params", params)),
        log_metrics=lambda metrics, step: said.append(("metrics", step, metrics)),
        end_run=lambda status: said.append(("end", status)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    found = fs.run("hotcold", callbacks=[fs.MLflow("mine", uri="file:here")], out="r", **SETTINGS)
    names = [one[0] for one in said]
    assert names == ["uri", "experiment", "start", "params", *["metrics"] * 4, "end"]
    assert said[2] == ("start", "hotcold fedavg seed 0")
    assert said[3][1]["recipe.select.cohort"] == 6
    assert [one[1] for one in said if one[0] == "metrics"] == [0, 2, 4, 6]
    assert said[-2][2]["test_auc"] == found.scores["test_auc"]
    assert said[-1] == ("end", "FINISHED")
    said.clear()
    assert fedslice("run", "hotcold", *WORDS, "--mlflow", "mine", "--out", "r", "--set", *TINY).code == 0
    assert [one[0] for one in said].count("metrics") == 4, "of a complete run all rows are written"
    said.clear()
    with pytest.raises(KeyboardInterrupt):
        fs.run("hotcold", callbacks=[fs.MLflow(), Kill(1)], **SETTINGS)
    assert said[-1] == ("end", "FAILED")


def test_wandb_is_told_settings_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[Any, ...]] = []
    run = types.SimpleNamespace(
        log=lambda row, step: said.append(("log", step, row)), finish=lambda exit_code: said.append(("end", exit_code))
    )

    def init(**options: Any) -> Any:
        said.append(("init", options))
        return run

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    fs.run("hotcold", callbacks=[fs.WandB("mine", mode="offline")], **SETTINGS)
    assert said[0][1]["project"] == "mine"
    assert said[0][1]["mode"] == "offline"
    assert said[0][1]["config"]["seed"] == 0
    assert [one[1] for one in said if one[0] == "log"] == [0, 2, 4, 6]
    assert said[-1] == ("end", 0)


@pytest.mark.parametrize(("option", "package"), [("--mlflow", "mlflow"), ("--wandb", "wandb")])
def test_a_tracker_whose_package_is_missing_says_how_to_install_it(
    option: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = fedslice("run", "hotcold", *WORDS, option, "x", "--set", *TINY)
    assert (done.code, done.out) == (2, "")
    assert f"install it with: pip install fedslice[{package}]" in done.err
    assert not Path("runs").exists()


# --- exports --------------------------------------------------------------------------------------------------------


def test_both_exports_give_the_outputs_of_the_network(own: Path) -> None:
    task = fs.address.make(f"{own}:shop", fs.Task)
    found = fs.run(f"{own}:shop", rounds=4, cohort=6, out="r", set={"lr": 0.02})
    assert fedslice("export", "r", "model.safetensors").err == "model: model.safetensors\n"
    state = load_file("model.safetensors")
    assert {"frozen", "offset", "item.weight"} < set(state)
    module = task.build(9)
    module.load_state_dict(state)
    items = torch.arange(20)
    with torch.no_grad():
        expected = module(items)
    done = fedslice("export", "r", "model.pt2")
    assert done.code == 2
    assert "made with a task of your own" in done.err
    assert f"{own}:shop" in done.err.replace("'", "")
    assert fedslice("export", "r", "model.pt2", "--task", f"{own}:shop").err == "model: model.pt2\n"
    program = torch.export.load("model.pt2").module()
    assert torch.allclose(program(item=items), expected)
    assert torch.allclose(program(item=items[:1]), expected[:1])
    assert fedslice("export", "r", "model.pt2", "--task", f"{own}:other").code == 2
    assert found.model.keys() == state.keys()


def test_a_model_of_sequences_is_exported_for_any_length() -> None:
    done = fedslice("run", "agnews", "--rounds", 1, "--cohort", 2, "--out", "r", "--set", "clients=4", "train=60")
    if done.code:
        pytest.skip(done.err)
    assert fedslice("export", "r", "model.pt2").code == 0
    from fedslice.runs.rebuild import rebuilt_task

    run = fs.load("r")
    task = rebuilt_task(run)
    module = task.build(1)
    module.load_state_dict(run.model)
    module.eval()
    program = torch.export.load("model.pt2").module()
    for index in (torch.arange(7), torch.arange(20, 22)):
        features, _ = task.federation.test.batch(index)
        with torch.no_grad():
            assert torch.allclose(program(**features), module(**features), atol=1e-6)


def test_clients_own_models_are_exported_by_client() -> None:
    words = ("--rounds", 4, "--cohort", 6, "--eval-every", 4, "--measure", "personal", "--out", "r", "--set", *TINY)
    assert fedslice("run", "hotcold", "--recipe", "fedper", *words).code == 0
    assert fedslice("export", "r", "--personal", "own").code == 0
    run = fs.load("r")
    scores = {str(row["client"]): row["personal_auc"] for row in run.clients().to_dicts()}
    assert {path.stem for path in Path("own").iterdir()} == set(scores)
    task = get("hotcold").build(assignments(TINY), None)
    test, module, compared = task.federation.test, task.build(0), 0
    private = [name for name in run.model if not name.startswith("item")]
    for place, client in enumerate(task.federation.ids.tolist()):
        state = load_file(f"own/{client}.safetensors")
        module.load_state_dict(state)
        index = torch.arange(int(test.offsets[place]), int(test.offsets[place + 1]))
        features, labels = test.batch(index)
        with torch.no_grad():
            found = auc(module(**features), labels)
        expected = scores[str(client)]
        if expected is not None:
            assert found == pytest.approx(expected)
            compared += 1
        for name, value in run.personal(client).items():
            assert torch.equal(value, state[name])
    assert compared > 5
    assert private
    assert fedslice("export", "r", "one.safetensors", "--client", "3").code == 0
    for name, value in load_file("one.safetensors").items():
        assert torch.equal(value, load_file("own/3.safetensors")[name])
    done = fedslice("export", "r", "one.safetensors", "--client", "nobody")
    assert "unknown client 'nobody'" in done.err


def test_what_ids_stand_for_stays_with_the_run_and_with_exported_models() -> None:
    table = {"user": ["ann", "bob"] * 9, "item": ["tea", "oil", "rum"] * 6, "stars": [4.5, 2.0, 1.0] * 6}
    shop = fs.Federation.from_frame(pl.DataFrame(table), client="user", label="stars")

    class Stars(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item = nn.Embedding(shop.vocabularies["item"].size, 1)

        def forward(self, item: Tensor) -> Any:
            return self.item(item).squeeze(-1)

    task = fs.Task(shop, Stars, nn.MSELoss(reduction="none"), tables={"item.weight": "item"})
    run = fs.run(task, rounds=1, cohort=2, out="r")
    assert run.vocabularies == dict(shop.vocabularies)
    assert fs.load("r").vocabularies["item"].encode(["rum"]).tolist() == [2]
    assert fedslice("export", "r", "model.safetensors").code == 0
    with safe_open("model.safetensors", framework="pt") as file:
        assert vocabulary.loads(file.metadata()["vocabularies"]) == dict(shop.vocabularies)
    export.program(Path("model.pt2"), run.model, task)
    extra = {"vocabularies.json": ""}
    torch.export.load("model.pt2", extra_files=extra)
    assert vocabulary.loads(extra["vocabularies.json"]) == dict(shop.vocabularies)


@pytest.mark.parametrize("field", ["task", "recipe", "model", "metrics"])
def test_a_run_directory_from_elsewhere_runs_no_code(field: str) -> None:
    """Whatever it names: code runs only if the user names it."""
    fs.run("hotcold", "fedper", out="r", **SETTINGS)
    Path("evil.py").write_text("from pathlib import Path\nPath('harm').touch()\nthing = None\n")
    origin = json.loads(Path("r/origin.json").read_text())
    origin["settings"][field] = ["evil.py:thing"] if field == "metrics" else "evil.py:thing"
    Path("r/origin.json").write_text(json.dumps(origin))
    for words in (("r", "x.safetensors"), ("r", "x.pt2"), ("r", "--personal", "own")):
        assert fedslice("export", *words).code in (0, 2)
    config = json.loads(Path("r/config.json").read_text())
    config[field if field in config else "task"] |= {"name": "evil.py:thing"}
    Path("r/config.json").write_text(json.dumps(config))
    for words in (("r", "x.safetensors"), ("r", "x.pt2"), ("r", "--personal", "own")):
        assert fedslice("export", *words).code in (0, 2)
    assert fedslice("report", "r", "-o", "page.html").code == 0
    assert not Path("harm").exists()


def test_files_of_a_model_that_do_not_belong_together_are_refused() -> None:
    from fedslice.runs import checkpoint

    run = fs.run("hotcold", out="r", **SETTINGS)
    for content, saying in (
        ({"names": 3, "tied": {}}, "names=3: input should be a valid list; restore it from a copy."),
        ({"names": ["more"], "tied": {}}, "the model has no values for 'more'; its files belong to different runs."),
    ):
        checkpoint.save(Path("r/module.safetensors"), {}, content)
        assert saying in one_sentence(lambda: run.model)


@pytest.mark.parametrize(
    ("words", "saying"),
    [
        (("r",), "give a FILE for one model, or --personal DIR"),
        (("r", "x.bin"), "x.bin ends in '.bin', expected .safetensors (weights) or .pt2 (a program)."),
        (("r", "x.pt2", "--personal", "own"), "give a FILE for one model, or --personal DIR"),
        (("--personal", "own", "--client", "3", "r"), "give one of them."),
        (("nowhere", "x.pt2"), "nowhere holds no run"),
        (("r", "far/x.pt2"), "the folder far does not exist"),
    ],
)
def test_an_export_that_cannot_be_is_told_in_a_sentence(words: tuple[str, ...], saying: str) -> None:
    done = fedslice("export", *words)
    assert (done.code, done.out) == (2, "")
    assert saying in done.err


def test_a_network_that_looks_at_its_data_is_not_exported_as_a_program(own: Path) -> None:
    own.write_text(OWN.replace("return self.out(", "item = item if item.sum() > 5 else item\n        return self.out("))
    assert fedslice("run", f"{own}:shop", "--rounds", 1, "--cohort", 3, "--out", "r").code == 0
    done = fedslice("export", "r", "model.pt2", "--task", f"{own}:shop")
    assert done.code == 2
    assert "Pair of task 'shop' cannot be exported as a program (" in done.err
    assert "export its weights to a .safetensors file." in done.err
    assert not Path("model.pt2").exists()
