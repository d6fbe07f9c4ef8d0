"""Metrics: one number each, and a direction that everything which compares follows."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedslice as package
from command import fedslice
from fedslice import Metric, UserError, measure, schema, tasks
from fedslice.data.federation import Federation
from fedslice.measure.clients import columns
from fedslice.measure.instruments import run_columns
from fedslice.metrics import Score, accuracy, auc, directions, mae, measured, rmse
from fedslice.report.gather import gather
from fedslice.report.tables import end_table, summary
from fedslice.runs.comparison import table
from fedslice.runs.reading import find, read
from fedslice.runs.stopping import Target
from fedslice.task import Task
from fedslice.tasks.entry import Entry, Options
from fedslice.training.evaluate import evaluate
from layouts import one_sentence
from reports import declared, log, run
from toys import squared


class Line(nn.Module):
    """A regression on two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x).squeeze(-1)
        return out


def worst(outputs: Tensor, labels: Tensor) -> Tensor:
    """The largest error, as a tensor of one element."""
    return (outputs - labels).abs().max()


def regression(metrics: dict[str, Score], **options: Any) -> Task:
    """Clients whose label is a real number; a tenth of their samples is held out."""
    x = np.random.default_rng(0).normal(size=(120, 2))
    federation = Federation.from_arrays(
        client=np.arange(120) // 12, features={"x": x}, label=x @ np.array([3.0, -2.0]) + 5, test=0.25
    )
    return Task(federation, Line, squared, metrics=metrics, **options)


def test_metrics_are_found_where_users_look() -> None:
    assert measure.Metric is package.Metric is Metric
    assert (measure.rmse, measure.mae) == (rmse, mae)
    assert repr(Metric(worst, lower_is_better=True)) == "Metric(worst, lower_is_better=True)"


def test_errors_by_hand() -> None:
    outputs, labels = torch.tensor([1.0, 5.0, 2.0]), torch.tensor([1, 2, 6])
    assert rmse(outputs, labels) == pytest.approx(5 / math.sqrt(3))
    assert mae(outputs[:, None], labels) == pytest.approx(7 / 3)
    assert "rmse compares one output with one label, found 6 outputs for 3 labels" in one_sentence(
        lambda: rmse(outputs[:, None].repeat(1, 2), labels)
    )


class TestDirection:
    def test_a_target_of_an_error_is_reached_from_above(self) -> None:
        target = Target("test_rmse", 0.9)
        assert not target.reached({"test_rmse": 5.0})
        assert target.reached({"test_rmse": 0.8})

    def test_what_is_declared_is_stronger_than_a_name(self) -> None:
        told = directions({"gain_loss": Metric(worst), "error": Metric(worst, lower_is_better=True), "f1": worst})
        assert told == {"gain_loss": False, "error": True, "f1": False}
        assert Target("test_error", 1.0, told["error"]).reached({"test_error": 0.5})
        assert not Target("test_error", 1.0, told["error"]).reached({"test_error": 1.5})

    def test_of_a_run_that_declares_nothing_losses_and_errors_go_down_and_all_else_up(self) -> None:
        down = ["train_loss", "test_rmse", "personal_mae_worst", "test_auc", "test_glossy"]
        assert [schema.find(name).lower_is_better for name in down] == [True, True, True, False, False]

    def test_a_metric_that_is_undefined_reaches_nothing(self) -> None:
        for value in (None, math.nan, math.inf, -math.inf):
            assert not Target("test_auc", 0.5).reached({"test_auc": value})
            assert not Target("test_rmse", 0.5).reached({"test_rmse": value})

    def test_the_worst_clients_of_an_error_are_those_with_most_of_it(self) -> None:
        errors = {"error": torch.arange(20.0)}
        found = columns("personal", errors, torch.ones(20), {"error": True})
        assert found["personal_error_worst"] == 18.5
        assert columns("personal", errors, torch.ones(20), {"error": False})["personal_error_worst"] == 0.5

    def test_every_score_of_a_run_has_one(self) -> None:
        task = regression({"error": Metric(worst, lower_is_better=True), "fit": worst})
        every = run_columns(task, ["personal", "trajectory"])
        found = {name: column.lower_is_better for name, column in every.items() if column.kind == "score"}
        clients = {f"personal_{name}{kind}" for name in ("error", "fit") for kind in ("", "_weighted", "_worst")}
        assert found.keys() == {"train_loss", "test_loss", "test_error", "test_fit", *clients}
        assert {name for name, lower in found.items() if not lower} == {name for name in found if "fit" in name}

    def test_the_best_method_is_marked_by_it(self) -> None:
        runs = [run(name, rows=log(0.5, test_error=[error])) for name, error in (("fedavg", 0.2), ("fedprox", 0.9))]
        for lower, expected in ((True, [True, False]), (False, [False, True])):
            (group,) = gather([declared(one, test_error=lower) for one in runs])
            sheet = end_table(group, summary(group, None))
            assert [row[sheet.columns.index("test error")].best for row in sheet.rows] == expected

    def test_it_stays_with_the_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def make(options: Options, data: Path | None) -> Task:
            metrics = {"rmse": rmse, "error": Metric(worst, lower_is_better=True), "fit": lambda o, y: -worst(o, y)}
            return regression(metrics, name="line")

        monkeypatch.chdir(tmp_path)
        words = ("line", "--rounds", 10, "--eval-every", 5, "--cohort", 5, "--measure", "personal", "--set", "lr=0.1")
        with monkeypatch.context() as there:
            there.setitem(tasks.TASKS, "line", Entry("line", "for this test", "nothing", Options, make))
            done = fedslice(
                "compare", *words, "--recipes", "fedavg,fedprox", "--out", "runs", "--target", "test_error=4", "--json"
            )
        rows = done.document["runs"][0]["metrics"]
        assert rows[0]["test_error"] > 4 > rows[-1]["test_error"]
        assert done.document["table"][0]["rounds_to_target_by_seed"] == [
            next(row["round"] for row in rows if row["test_error"] <= 4)
        ]
        assert rows[-1]["personal_error_worst"] >= rows[-1]["personal_error"]
        noted = {one["name"]: one for one in json.loads(Path("runs/fedavg-seed0/columns.json").read_text())}
        for name in ("test_rmse", "test_error", "personal_error_worst", "train_loss"):
            assert noted[name]["lower_is_better"] is True
        assert noted["test_fit"]["lower_is_better"] is noted["personal_fit"]["lower_is_better"] is False
        assert set(rows[-1]) <= set(noted), "every column that is logged is declared"
        assert fedslice("report", "runs", "-o", "page.html", "--target", "test_error=4").code == 0
        assert "Until test error ≤ 4" in Path("page.html").read_text()
        clients = fedslice("clients", "runs/fedavg-seed0", "--json").document["clients"]
        assert clients[0]["personal_rmse"] == max(one["personal_rmse"] for one in clients), "the worst first"
        Path("runs/fedavg-seed0/columns.json").write_text('[{"name": 3}]')
        assert "delete the file" in one_sentence(read, Path("runs/fedavg-seed0"))
        for place in find([Path("runs")]):
            (place / "columns.json").unlink()
            assert read(place).columns == {}, "as older runs have it"


OUTPUTS, LABELS = torch.linspace(-1, 1, 4), torch.tensor([0.0, 0.0, 1.0, 1.0])


class TestValues:
    @pytest.mark.parametrize(
        "value", [0.25, np.float32(0.25), np.array([0.25]), torch.tensor(0.25), torch.tensor([[0.25]])]
    )
    def test_one_number_in_any_wrapping_is_taken(self, value: Any) -> None:
        found = measured("m", lambda *_: value, OUTPUTS, LABELS)
        assert (type(found), found) == (float, 0.25)

    @pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, torch.tensor(math.nan), 10**400])
    def test_what_is_no_finite_number_is_undefined(self, value: Any) -> None:
        assert math.isnan(measured("m", lambda *_: value, OUTPUTS, LABELS))

    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            (torch.zeros(4), "a tensor of shape (4,)"),
            (np.zeros((2, 2)), "an array of shape (2, 2)"),
            ({"auc": 0.5}, "a dict"),
            ("0.5", "a str"),
            (1j, "a complex"),
            (torch.tensor(1j), "a tensor of shape ()"),
            (True, "a bool"),
            ([0.5], "a list"),
        ],
    )
    def test_what_is_no_number_is_told_when_the_task_is_made(self, value: Any, kind: str) -> None:
        expected = f"metric 'm' gave {kind} for 30 samples; it must give one number, or None where it is undefined."
        assert one_sentence(lambda: regression({"m": lambda *_: value})) == expected

    def test_a_metric_that_fails_on_a_few_samples_may_need_more_of_them(self) -> None:
        def picky(outputs: Tensor, labels: Tensor) -> float:
            raise ZeroDivisionError("no positives\nat all")

        task = regression({"picky": picky})
        with pytest.raises(UserError) as refusal:
            evaluate(task, task.initial(0), 0)
        assert str(refusal.value) == (
            "metric 'picky' raised ZeroDivisionError ('no positives') on outputs of shape (30,) and labels of shape "
            "(30,); return None where it is undefined."
        )
        assert isinstance(refusal.value.__cause__, ZeroDivisionError)

    def test_an_undefined_metric_is_null_in_the_log_and_in_no_comparison(self) -> None:
        task = regression({"never": lambda *_: None})
        row = evaluate(task, task.initial(0), 0)
        assert math.isnan(row["test_never"])
        logged = {
            "recipe": "a",
            "seed": 0,
            "metrics": [{"round": 0, "up_bytes": 0, "down_bytes": 0, "test_never": None}],
        }
        (found,) = table([logged], Target("test_never", 0.0))
        assert (found["test_never"], found["reached"]) == (None, 0)

    def test_a_client_with_a_broken_model_counts_as_infinitely_bad(self) -> None:
        values = torch.tensor([1.0, math.inf, math.nan], dtype=torch.float64)
        found = columns("personal", {"rmse": values}, torch.tensor([1, 1, 1]), {"rmse": True})
        assert found["personal_rmse"] == math.inf, "null in the log, and not the mean of those who still work"

    @pytest.mark.parametrize("metric", [accuracy, auc])
    def test_metrics_of_classes_are_refused_for_a_regression(self, metric: Any) -> None:
        told = one_sentence(lambda: regression({"m": metric}))
        assert told.startswith(
            f"metric 'm': {metric.__name__} of one output per sample needs labels 0 and 1, found 30 "
        )
        assert told.endswith("use rmse or mae for a regression, or one output per class.")

    def test_metrics_of_classes_take_classes(self) -> None:
        for labels in (LABELS, LABELS.long(), 2 * LABELS - 1, LABELS * 0.8 + 0.1, torch.zeros(4)):
            assert 0 <= accuracy(OUTPUTS, labels) <= 1
        assert accuracy(torch.eye(3), torch.tensor([0.0, 1.0, 1.0])) == pytest.approx(2 / 3)
        for labels in (torch.tensor([0.5, 1.0, 2.0]), torch.zeros(3, 1)):
            assert "one whole class number per sample" in one_sentence(accuracy, torch.eye(3), labels)

    @pytest.mark.parametrize(
        ("metrics", "says"),
        [
            ({"loss": rmse}, "metrics has the name 'loss', expected a word other than loss"),
            ({3: rmse}, "metrics has the name 3"),
            ({"m": "rmse"}, "metric 'm' is 'rmse', expected a function of outputs and labels."),
        ],
    )
    def test_names_and_functions_are_checked(self, metrics: Any, says: str) -> None:
        assert says in one_sentence(lambda: regression(metrics))

    def test_a_metric_is_made_of_a_function(self) -> None:
        assert one_sentence(lambda: Metric("rmse")) == "Metric takes a function of outputs and labels, found 'rmse'."  # type: ignore[arg-type]
