"""The page as a file: everything is in it, nothing leaves it, and no text of a run becomes markup or code."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedslice.core.errors import UserError
from fedslice.panel import Panel
from fedslice.report import write
from fedslice.report.page import picture
from fedslice.runs.run import Run
from fedslice.runs.stopping import Target
from reports import log, run

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'\\ \u2028\u2029 {{ 7 * 7 }}"


class Page(HTMLParser):
    """Elements, text, and the contents of scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.words: list[str] = []
        self._inside: tuple[str, dict[str, str | None]] | None = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = (tag, dict(attrs)) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw.append((*self._inside, data))
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def scripts(self) -> list[str]:
        return [content for tag, attrs, content in self.raw if tag == "script" and "type" not in attrs]

    @property
    def contents(self) -> list[Any]:
        return [json.loads(content) for _, attrs, content in self.raw if attrs.get("data-role") == "content"]


def page(tmp_path: Path, *runs: Run, **more: Any) -> Page:
    out = tmp_path / "report.html"
    write(runs, out, **more)
    return Page(out)


def panel(text: str) -> Panel:
    return Panel(title=text, note=text, mark="point", x=text, y="y", color="c", rows=[{text: 1, "y": 2, "c": text}])


def test_a_task_has_curves_tables_panels_settings_and_commands(tmp_path: Path) -> None:
    runs = [run(seed=0, command="fedslice run toy", panels=[panel("sizes")]), run("fedprox", rows=log(0.5, 0.9))]
    found = page(tmp_path, *runs, target=Target("test_auc", 0.65), title="Two methods")
    words = (
        "Two methods; toy; a few numbers; Until test auc ≥ 0.65; At the end; sizes; Different; 3.11.7; "
        "The same for all methods; fedslice run toy; toy-fedprox-0: its command was not recorded"
    )
    for said in words.split("; "):
        assert said in found.text
    (content,) = found.contents
    charts = [attrs["data-chart"] for _, attrs in found.elements if "data-chart" in attrs]
    assert charts == ["curves-1-0", "panel-1"]
    assert set(charts) <= set(content["specs"])
    assert set(content["specs"]) == {f"curves-{m}-{a}" for m in range(2) for a in range(2)} | {"panel-1"}
    assert set(content["data"]) == {"curves", "panel-1"}
    assert len({len(column) for column in content["data"]["curves"].values()}) == 1


def test_data_stand_in_the_page_once(tmp_path: Path) -> None:
    (content,) = page(tmp_path, run(rows=log(0.123456, 0.654321))).contents
    assert json.dumps(content).count("0.654321") == 1


def test_tasks_have_sections_of_their_own(tmp_path: Path) -> None:
    found = page(tmp_path, run(), run(task={"name": "other"}))
    assert [attrs["href"] for tag, attrs in found.elements if tag == "a"] == ["#task-0", "#task-1"]
    assert [attrs["id"] for tag, attrs in found.elements if tag == "section"] == ["task-0", "task-1"]


def test_the_page_is_readable_by_machines_that_read_aloud(tmp_path: Path) -> None:
    found = page(tmp_path, run(panels=[panel("sizes")]))
    tags = [tag for tag, _ in found.elements]
    assert tags.count("caption") == tags.count("table") > 0
    assert tags.count("h1") == 1
    assert all(attrs.get("aria-label") for _, attrs in found.elements if "data-chart" in attrs)
    assert tags.count("label") == tags.count("select") == 2


def policy(found: Page) -> dict[str, str]:
    """The page's Content-Security-Policy, rule by rule."""
    said = next(attrs["content"] for _, attrs in found.elements if attrs.get("http-equiv") == "Content-Security-Policy")
    return dict(rule.strip().partition(" ")[::2] for rule in (said or "").split(";"))


@pytest.mark.parametrize(
    "place", ["task", "source", "recipe", "setting", "metric", "panel", "command", "path", "title"]
)
def test_text_of_runs_is_text(tmp_path: Path, place: str) -> None:
    task = {"name": NASTY} if place == "task" else {"source": NASTY} if place == "source" else {}
    given = run(
        NASTY if place == "recipe" else "fedavg",
        rows=[{"round": 0, "test_auc": 0.5, f"test_{NASTY}" if place == "metric" else "test_x": 0.1}],
        task=task,
        parts={"local": {"name": NASTY, "lr": NASTY}} if place == "setting" else {},
        panels=[panel(NASTY if place == "panel" else "sizes")],
        command=NASTY if place == "command" else None,
    )
    if place == "path":
        given = Run(Path("somewhere") / NASTY.replace("/", ""), *list(vars(given).values())[1:])
    found = page(tmp_path, given, title=NASTY if place == "title" else "fedslice")
    plain = page(tmp_path, run(rows=[{"round": 0, "test_auc": 0.5, "test_x": 0.1}], panels=[panel("sizes")]))
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in plain.elements]
    assert "alert(1)" in found.text or place == "path"
    assert "{{ 7 * 7 }}" in found.text
    assert found.scripts == plain.scripts
    assert not any(name.startswith("on") for _, attrs in found.elements for name in attrs)


def test_text_of_a_picture_is_text(tmp_path: Path) -> None:
    """The page of `features`: title, axes, classes and the note."""
    place = tmp_path / "map.html"
    place.write_text(picture(panel(NASTY), 300))
    found = Page(place)
    place.write_text(picture(panel("sizes"), 300))
    plain = Page(place)
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in plain.elements]
    assert found.scripts == plain.scripts
    assert "alert(1)" in found.text
    assert found.contents[0]["data"]["panel"]["color"] == [NASTY]
    assert not any(name.startswith("on") for _, attrs in found.elements for name in attrs)
    assert policy(found) == policy(plain) != {}


def test_a_page_says_what_its_marks_and_deviations_mean(tmp_path: Path) -> None:
    two = [run(seed=seed, rows=log(0.5, 0.7 + 0.01 * seed)) for seed in range(2)]
    found = page(tmp_path, *two, run("fedprox", rows=log(0.5, 0.6)), target=Target("test_auc", 0.6))
    assert "± is the standard deviation over seeds: how far single runs lie from their mean." in found.text
    assert "seen at evaluations, every 10 rounds" in found.text
    assert "±" not in page(tmp_path, run()).text


def test_a_path_that_is_no_text_is_shown_as_well_as_can_be(tmp_path: Path) -> None:
    given = run()
    odd = Run(Path("caf\udce9"), *list(vars(given).values())[1:])
    assert "caf?" in page(tmp_path, odd).text


def test_json_in_the_page_cannot_end_its_element_or_a_line(tmp_path: Path) -> None:
    found = page(tmp_path, run(NASTY))
    raw = next(content for _, attrs, content in found.raw if attrs.get("data-role") == "content")
    assert not set(raw) & set("<>&\u2028\u2029")
    assert found.contents[0]["data"]["curves"]["method"][0] == NASTY


def test_nothing_is_fetched(tmp_path: Path) -> None:
    found = page(tmp_path, run(), run(task={"name": "other"}))
    addresses = [
        attrs[name] for _, attrs in found.elements for name in ("src", "href", "action", "data") if name in attrs
    ]
    assert all(address is not None and address.startswith(("#", "data:")) for address in addresses)
    styles = [content for tag, _, content in found.raw if tag == "style"]
    assert not any(re.search(r"url\(|@import", style) for style in styles)
    bundle, own = found.scripts
    assert "http" not in own
    assert "http" not in json.dumps(found.contents)
    # The bundle names namespaces, a schema and an editor that is switched off; the policy forbids it to fetch anything.
    assert {re.sub(r"^https?://([^/]+).*", r"\1", url) for url in re.findall(r"https?://[^\s\"'`)]+", bundle)} <= {
        "www.w3.org",
        "github.com",
        "vega.github.io",
    }


def test_the_policy_allows_the_pages_own_scripts_and_no_network(tmp_path: Path) -> None:
    found = page(tmp_path, run())
    rules = policy(found)
    assert rules["default-src"] == "'none'"
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in found.scripts]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert "connect-src" not in rules
    assert not re.search(r"https?:|\*|unsafe-eval", " ".join(rules.values()))


def test_a_run_that_has_just_begun_is_listed(tmp_path: Path) -> None:
    runs = [run(), run("fedprox", rows=[], finished=False), run("fedadam", rows=log(0.5, 0.6), finished=False)]
    found = page(tmp_path, *runs, target=Target("test_auc", 0.6))
    assert "fedprox, seed 0 (no evaluation yet)" in found.text
    assert "fedadam, seed 0 (unfinished: round 10 of 100)" in found.text
    assert set(found.contents[0]["data"]["curves"]["method"]) == {"fedavg", "fedadam"}


def test_a_report_of_nothing_but_beginnings(tmp_path: Path) -> None:
    found = page(tmp_path, run(rows=[], finished=False), target=Target("test_auc", 0.6))
    assert "no evaluation yet" in found.text
    assert found.contents[0]["specs"] == {}


def test_rows_without_any_measurement(tmp_path: Path) -> None:
    found = page(tmp_path, run(rows=[{"round": 0, "test_auc": None}, {"round": 1}]))
    assert found.contents[0]["specs"] == {}


def test_who_sends_nothing_is_named(tmp_path: Path) -> None:
    found = page(tmp_path, run(), run("centralsgd", rows=log(0.5, 0.6, up=0)))
    assert "not drawn over uploaded bytes: centralsgd." in found.text


def test_two_reports_of_the_same_runs_are_the_same_file(tmp_path: Path) -> None:
    write([run()], tmp_path / "a.html")
    write([run()], tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_failed_report_leaves_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")
    with pytest.raises(UserError, match="unknown metric"):
        write([run()], out, target=Target("nonsense", 1.0))
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        write([run()], tmp_path / "file" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        write([run()], tmp_path / "folder")
