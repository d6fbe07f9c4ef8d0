"""What task and recipe bring to a report, the command that makes a run, and runs as a reader finds them."""

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from command import execute
from fedslice.config import assignments, request, resolve
from fedslice.core.errors import UserError
from fedslice.panel import Panel, histogram
from fedslice.report.curves import curves
from fedslice.report.gather import gather
from fedslice.report.panels import columns, panels
from fedslice.report.tables import end_table, runs_sheet, settings_sheets, summary
from fedslice.runs.reading import find, read
from layouts import one_sentence

SMALL = {"task": "hotcold", "rounds": 2, "eval_every": 1, "set": {"clients": 20, "items": 30, "cohort": 5}}


CONFIG = json.dumps({"task": {"name": "a"}, "recipe": {"name": "b"}, "seed": 3, "rounds": 2})


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
    """A copy of a run with other content of a file; a finished run would be refused for another log alone."""
    copy = place / "run"
    copy.mkdir()
    for entry in done.iterdir():
        if entry.name != "finished.json" or name != "metrics.jsonl":
            (copy / entry.name).write_bytes(entry.read_bytes())
    (copy / name).write_text(text)
    return copy


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("config.json", "{", "config.json cannot be read"),
        ("config.json", "[1]", "holds no JSON object"),
        ("config.json", '{"task": {"name": 3}}', "'task'"),
        ("config.json", "[" * 100_000, "config.json cannot be read"),
        ("config.json", '{"a":' * 60 + "1" + "}" * 60, "nested more than 50 deep"),
        ("config.json", '{"task": "\\ud800"}', "config.json cannot be read"),
        ("config.json", CONFIG.replace('"rounds": 2', '"rounds": true'), "'rounds' is True"),
        ("config.json", CONFIG.replace('"rounds": 2', f'"rounds": {"9" * 400}'), "'rounds' is 999"),
        ("config.json", CONFIG.replace('"seed": 3', '"seed": -1'), "'seed' is -1"),
        ("columns.json", "{}", "columns.json holds no list of columns (input should be a valid"),
        ("metrics.jsonl", f'{{"round": {"9" * 400}}}\n', "round is a number of 400 digits, expected 0 to 1000000000"),
        ("metrics.jsonl", '{"round": -5}\n', "round is -5, expected 0 to"),
        ("metrics.jsonl", '{"round": 1, "\\ud800": 1}\n', "that is no text"),
        ("metrics.jsonl", '{"loss": 1}\n', "line 1"),
        ("metrics.jsonl", '{"round": 1, "loss": "x"}\n', "loss is 'x'"),
        ("panels.json", '[{"title": 1}]', "panels.json"),
        ("panels.json", '{"a": 1}', "panels.json"),
    ],
)
def test_a_spoiled_run_is_named(done: Path, tmp_path: Path, name: str, text: str, says: str) -> None:
    assert says in one_sentence(read, spoil(done, tmp_path, name, text))


def test_a_line_nested_without_end_is_told(done: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1 is not JSON"):
        read(spoil(done, tmp_path, "metrics.jsonl", "[" * 100_000 + "\n"))


def test_a_number_that_no_measurement_gives_is_as_good_as_none(done: Path, tmp_path: Path) -> None:
    values = ("NaN", "-Infinity", "1e308", "9" * 400, "null")
    text = "".join(f'{{"round": {t}, "test_auc": {value}}}\n' for t, value in enumerate(values))
    assert [row["test_auc"] for row in read(spoil(done, tmp_path, "metrics.jsonl", text)).rows] == [None] * 5


ODD = (
    "NaN",
    "-1e999",
    "1e308",
    "1e-320",
    "9" * 400,
    "null",
    "true",
    "[]",
    "{}",
    '""',
    '"\\ud800"',
    '"</script>"',
    "-5",
)
ODD += ("[" * 2000, '{"name": [{}]}', '"a\\nb"', "0.5", ",", "}")


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "panels.json", "columns.json", "environment.json"])
def test_a_spoiled_run_is_shown_or_told(done: Path, tmp_path: Path, name: str) -> None:
    """Values replaced, pieces cut out or doubled: a report has a sentence or a page, and never an accident."""
    good, draw = (done / name).read_text(), random.Random(name)
    place = spoil(done, tmp_path, name, good)
    values = [found.span() for found in re.finditer(r'"[^"]*"|-?\d[\d.e-]*|null|true|false', good)]
    told = 0
    for _ in range(60):
        low, high = draw.choice(values)
        if draw.random() < 0.3:
            low, high = sorted(draw.choices(range(len(good)), k=2))
        piece = draw.choice(ODD) if draw.random() < 0.8 else good[low:high] * 2
        (place / name).write_text(good[:low] + piece + good[high:])
        try:
            (group,) = gather([read(place)])
            rows = summary(group, None)
            sheets = [*([end_table(group, rows)] if rows else []), *settings_sheets(group), runs_sheet(group)]
            shown = [columns(one.panel) for side in panels(group) for one in side]
            json.dumps([curves(group).columns, shown], allow_nan=False)
            "".join(cell.text for sheet in sheets for row in sheet.rows for cell in row).encode()
        except UserError:
            told += 1
    assert 0 < told < 60


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
    monkeypatch.setattr(type(plan.recipe.codec), "panels", lambda self, state: [panel(title="a spectrum")])
    monkeypatch.setattr(type(plan.recipe.codec), "observe", lambda self, state, end: seen.append(end.invited))
    execute(plan, tmp_path / "run", resume=False)
    assert read(tmp_path / "run").panels[-1].title == "a spectrum"
    assert len(seen) == 2
