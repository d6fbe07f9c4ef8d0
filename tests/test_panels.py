"""What task and recipe bring to a report, the command that makes a run, and runs as a reader finds them."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from fedslice.config import assignments, request, resolve
from fedslice.errors import UserError
from fedslice.panel import Panel, histogram
from fedslice.runs.execute import execute
from fedslice.runs.reading import find, read
from layouts import one_sentence

SMALL = {"task": "hotcold", "rounds": 2, "eval_every": 1, "set": {"clients": 20, "items": 30, "cohort": 5}}


def panel(**more: Any) -> Panel:
    return Panel(**({"title": "a", "mark": "bar", "x": "k", "y": "v", "rows": [{"k": 1, "v": 2}]} | more))


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=50))
def test_a_histogram_counts_every_value_once_between_the_extremes(values: list[float]) -> None:
    found = histogram("sizes", torch.tensor(values, dtype=torch.float64), "kB")
    assert sum(row["clients"] for row in found.rows) == len(values)
    places = [row["kB"] for row in found.rows]
    assert min(values) <= min(places) <= max(places) <= max(values)


def test_steps_of_one_size_make_no_teeth() -> None:
    values = torch.arange(97) * 0.36 + 5
    counts = [row["clients"] for row in histogram("sizes", values, "kB").rows]
    assert counts == [4] * 24 + [1]


def test_a_panel_whose_rows_lack_a_column_is_refused() -> None:
    for more in ({"rows": [{"k": 1}]}, {"color": "c"}, {"mark": "pie"}, {"surprise": 1}):
        with pytest.raises(ValidationError):
            panel(**more)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "one"
    execute(resolve(request(SMALL | {"recipe": "fedsubavg", "seed": 3})), place, resume=False)
    return place


def test_a_run_shows_heat_and_slice_sizes(done: Path) -> None:
    plan = resolve(request(SMALL | {"recipe": "fedsubavg", "seed": 3}))
    run = read(done)
    assert (run.task, run.recipe, run.seed, run.rounds, run.finished) == ("hotcold", "fedsubavg", 3, 2, True)
    heat, sizes = run.panels
    held = plan.task.index_sets[0].heat
    assert heat.title == "Heat of item"
    assert sum(row["rows"] for row in heat.rows) == int((held > 0).sum())
    assert f"Dispersion {int(held.max() / held[held > 0].min()):,}" in heat.note
    assert sizes.title == "Slice sizes"
    assert sum(row["clients"] for row in sizes.rows) == 20
    assert [row["round"] for row in run.rows] == [0, 1, 2]


def test_whole_models_have_no_sizes_to_show() -> None:
    experiment = resolve(request(SMALL)).experiment()
    assert [one.title for one in experiment.panels()] == ["Heat of item"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"recipe": "fedprox", "seed": 4, "chunk": 3, "engine": "sequential", "measure": ["gradient-norms"]},
        {"set": {"lr": 0.25, "clip": None, "slices": "feature-rows", "combine": "heat", "clients": 20, "items": 30}},
        {"set": {"clients": 20, "items": 30, "order": "file", "replacement": True, "cohort": 3}},
    ],
)
def test_the_command_makes_the_same_run(more: dict[str, Any]) -> None:
    asked = request(SMALL | more)
    first, verb, task, *words = shlex.split(asked.command())
    assert (first, verb, task) == ("fedslice", "run", "hotcold")
    settings = words[words.index("--set") + 1 :] if "--set" in words else []
    options: dict[str, Any] = {}
    for name, text in zip(words[: len(words) - len(settings)][0::2], words[1::2], strict=False):
        if name != "--set":
            key = name.removeprefix("--").replace("-", "_")
            options[key] = [text] if key == "measure" else int(text) if text.isdigit() else text
    again = request({"task": task, "set": assignments(settings), **options})
    assert resolve(again).config == resolve(asked).config


@pytest.mark.parametrize("value", [None, True, False, 3, 0.1, 1e-9, "word", "1.5", "true", "none"])
def test_a_setting_is_written_as_it_is_read(value: object) -> None:
    asked = request({"task": "hotcold", "set": {"key": value}})
    words = shlex.split(asked.command())
    assert assignments(words[words.index("--set") + 1 :]) == {"key": value}


def test_runs_are_found_once_and_below_a_directory(done: Path) -> None:
    assert find([done.parent, done]) == [done]


def spoil(done: Path, place: Path, name: str, text: str) -> Path:
    copy = place / "run"
    copy.mkdir()
    for entry in done.iterdir():
        (copy / entry.name).write_bytes(entry.read_bytes())
    (copy / name).write_text(text)
    return copy


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("config.json", "{", "config.json cannot be read"),
        ("config.json", "[1]", "holds no JSON object"),
        ("config.json", '{"task": {"name": 3}}', "'task'"),
        ("metrics.jsonl", '{"loss": 1}\n', "line 1"),
        ("metrics.jsonl", '{"round": 1, "loss": "x"}\n', "loss is 'x'"),
        ("panels.json", '[{"title": 1}]', "panels.json"),
        ("panels.json", '{"a": 1}', "panels.json"),
    ],
)
def test_a_spoiled_run_is_named(done: Path, tmp_path: Path, name: str, text: str, says: str) -> None:
    assert says in one_sentence(read, spoil(done, tmp_path, name, text))


def test_no_run_there(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="give run directories"):
            find([place])


def test_an_old_run_has_nothing_beside_its_metrics(done: Path, tmp_path: Path) -> None:
    copy = spoil(done, tmp_path, "panels.json", "[]")
    for name in ("panels.json", "origin.json", "environment.json"):
        (copy / name).unlink()
    run = read(copy)
    assert (run.panels, run.command, run.environment) == ([], None, {})


def test_a_part_can_bring_a_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = resolve(request(SMALL))
    seen: list[Tensor] = []
    monkeypatch.setattr(type(plan.recipe.codec), "panels", lambda self: [panel(title="a spectrum")])
    monkeypatch.setattr(type(plan.recipe.codec), "observe", lambda self, end: seen.append(end.clients))
    execute(plan, tmp_path / "run", resume=False)
    assert read(tmp_path / "run").panels[-1].title == "a spectrum"
    assert len(seen) == 2
