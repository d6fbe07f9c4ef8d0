"""One HTML file with everything in it: text, data, charts and the library that draws them.

The file asks the network for nothing, and its Content-Security-Policy says so: scripts run only if their hash is in it.
Charts use Vega's expression interpreter, so that no text is ever evaluated as code.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fedslice.core.errors import UserError
from fedslice.panel import LARGEST, Panel
from fedslice.report import charts, tables
from fedslice.report.curves import Columns, Curves, coinciding, curves
from fedslice.report.gather import Group, aim, gather
from fedslice.report.panels import columns, omitted, panels
from fedslice.runs.checkpoint import replacing
from fedslice.runs.results import legend
from fedslice.runs.run import Run
from fedslice.runs.stopping import Target
from fedslice.sheets import Sheet, html

_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Figure:
    """A panel on the page."""

    key: str  # of its chart and of its data
    label: str
    note: str


@dataclass(frozen=True)
class Section:
    """A task on the page."""

    group: Group
    curves: Curves
    metric: int | None  # the one to look at first, by its place
    incomplete: str
    hint: str
    results: list[Sheet]
    legend: str  # what ± and bold numbers mean
    panels: list[tuple[str, list[Figure]]]
    settings: list[Sheet]
    environment: Sheet
    runs: Sheet
    commands: list[str]
    content: Markup  # data and charts as JSON


def write(
    runs: Sequence[Run],
    out: Path,
    *,
    target: Target | str | None = None,
    title: str = "fedslice",
    baseline: str | None = None,
) -> None:
    """Write the report of these runs as one file.

    Args:
        runs: What to show.
        out: The HTML file.
        target: A metric and its value: the page tells what each method took to reach it.
        title: The heading of the page.
        baseline: The method, or recipe, whose simulated time to the target counts as one.
    """
    groups = gather(runs)
    aimed = aim(target, groups)
    text = render([_section(group, aimed, baseline) for group in groups], title)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as fresh:
            fresh.write_text(text, encoding="utf-8", errors="replace")  # a file's name may be no text
    except OSError as error:
        raise UserError(f"the report cannot be written to {out} ({error.strerror}); give another file.") from None


def render(sections: Sequence[Section], title: str) -> str:
    """The page as text."""
    return _page("page.html.j2", title, sections=sections, table=lambda sheet: Markup(html(sheet)))


def picture(shown: Panel, side: int) -> str:
    """A page with one panel, ``side`` pixels high, and nothing else."""
    spec = charts.panel(shown, "panel", "container") | {"height": side}
    content = _json({"data": {"panel": columns(shown)}, "specs": {"panel": spec}})
    return _page("picture.html.j2", shown.title, note=_note(shown), content=content)


def _page(template: str, title: str, **given: Any) -> str:
    """A page of its own: the template's text, within the layout that brings styles, scripts and the policy."""
    scripts = [_bundle(), _asset("page.js")]
    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(
        title=title,
        policy=_policy(scripts),
        style=Markup(_asset("page.css")),
        scripts=[Markup(script) for script in scripts],
        themes=_json({kind: charts.theme(kind) for kind in ("light", "dark")}),
        **given,
    )


def _section(group: Group, target: Target | None, baseline: str | None) -> Section:
    found = curves(group)
    specs: dict[str, Any] = {
        f"curves-{m}-{a}": charts.curves(found, metric, axis, target, "container")
        for m, metric in enumerate(found.metrics)
        for a, axis in enumerate(found.axes)
    }
    data: dict[str, Columns] = {"curves": found.columns}
    shown: list[tuple[str, list[Figure]]] = []
    for side in panels(group):
        figures = []
        for one in side:
            key = f"panel-{len(data)}"
            specs[key], data[key] = charts.panel(one.panel, key, "container"), columns(one.panel)
            figures.append(Figure(key, one.label, _note(one.panel)))
        shown.append((side[0].panel.title, figures))
    rows = tables.summary(group, target, baseline)
    there = target is not None and target.metric in group.metrics
    results = [
        *([tables.target_table(group, rows, target, baseline)] if target and there else []),
        *([tables.end_table(group, rows)] if rows else []),
    ]
    return Section(
        group,
        found,
        group.metrics.index(first) if (first := group.metric(target)) is not None else None,
        _incomplete(group),
        _hint(group, found) if found.metrics else "",
        results,
        legend(results),
        shown,
        tables.settings_sheets(group),
        tables.environment_sheet(group),
        tables.runs_sheet(group),
        [run.command or f"# {run.directory.name}: its command was not recorded" for run in group.runs],
        _json({"data": data, "specs": specs}),
    )


def _incomplete(group: Group) -> str:
    """Notes that a reader needs before comparing."""
    runs = [(method.name, run) for method in group.methods for run in method.runs]
    ends = [f"{name}, seed {run.seed} ({tables.state(run)})" for name, run in runs if not (run.finished and run.rows)]
    return f"Not complete: {'; '.join(ends)}." if ends else ""


def _hint(group: Group, found: Curves) -> str:
    """A hint on reading the curves, and on methods that are not shown."""
    words = ["Bands reach from the lowest to the highest seed."] if any(len(m.begun) > 1 for m in group.begun) else []
    words.append("A click on a name shows that method alone; another click takes it back.")
    points = zip(found.columns["method"], found.columns["up_bytes"], strict=True)
    seen = {method for method, sent in points if sent is not None}
    silent = [method for method in found.methods if method not in seen]
    if seen and silent:
        words.append(f"Who uploads nothing is not drawn over uploaded bytes: {'; '.join(silent)}.")
    words += [f"Equal in every point, and drawn over each other: {'; '.join(same)}." for same in coinciding(found)]
    return " ".join(words)


def _note(shown: Panel) -> str:
    """The panel's own note, and how many points are missing from it."""
    lost = omitted(shown)
    why = "zero or less on a logarithmic axis, or beyond" if shown.log else "beyond"
    words = f"Not drawn, being {why} {LARGEST:g}: {lost:,} of the points." if lost else ""
    return f"{shown.note} {words}".strip()


def _json(content: Mapping[str, Any]) -> Markup:
    """JSON that may stand in a script element: no character of it can end the element or a line of JavaScript."""
    return Markup(json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).translate(_ESCAPED))


def _policy(scripts: Sequence[str]) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that leaves one name behind."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=charts.VEGA_LITE)
    return script.strip().replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return files("fedslice.report").joinpath(name).read_text(encoding="utf-8").strip()
