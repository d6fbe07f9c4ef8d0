"""The charts of a report as pictures, for papers and slides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import vl_convert

from fedslice.core.errors import UserError
from fedslice.report import charts
from fedslice.report.curves import Columns, curves
from fedslice.report.gather import aim, gather
from fedslice.report.panels import columns, panels
from fedslice.runs.checkpoint import replacing
from fedslice.runs.run import Run
from fedslice.runs.stopping import Target

Kind = Literal["png", "svg", "pdf"]

_WIDTH = 640
_SHARPNESS = 2.0  # pixels of a PNG per point
_MARGIN = {"left": 5, "right": 30, "top": 5, "bottom": 5}  # a viewer's letters may be wider than those measured here


def save(runs: Sequence[Run], folder: Path, *, kind: Kind = "svg", target: Target | str | None = None) -> list[Path]:
    """Every metric over every axis and every panel, one file each; the files, in the order of the page."""
    groups = gather(runs)
    aimed = aim(target, groups)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written: dict[Path, None] = {}
    for group in groups:
        found = curves(group)
        for metric in found.metrics:
            for axis in found.axes:
                spec = charts.still(charts.curves(found, metric, axis, aimed, _WIDTH))
                path = _free(folder, f"{group.title} {metric.name} over {axis.title}", kind, written)
                written[_draw(spec, "curves", found.columns, path, kind)] = None
        for shown in (one for side in panels(group) for one in side):
            spec = charts.panel(shown.panel, "panel", _WIDTH) | {"title": _title(shown.panel.title, shown.label)}
            path = _free(folder, f"{group.title} {shown.panel.title} {shown.label}", kind, written)
            written[_draw(spec, "panel", columns(shown.panel), path, kind)] = None
    return list(written)


def _title(title: str, label: str) -> dict[str, Any]:
    return {"text": title, "subtitle": label} if label else {"text": title}


def _draw(spec: charts.Spec, name: str, data: Columns, path: Path, kind: Kind) -> Path:
    whole = spec | {"datasets": {name: list(_rows(data))}}
    given: dict[str, Any] = {
        "vl_version": charts.VEGA_LITE,
        "config": charts.theme("light") | {"background": "white", "padding": _MARGIN},
    }
    match kind:
        case "svg":
            picture = vl_convert.vegalite_to_svg(whole, **given).encode()
        case "png":
            picture = vl_convert.vegalite_to_png(whole, scale=_SHARPNESS, **given)
        case "pdf":
            picture = vl_convert.vegalite_to_pdf(whole, **given)
    with _writing(path.parent), replacing(path) as fresh:
        fresh.write_bytes(picture)
    return path


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"no figure can be written to {folder} ({error.strerror}); give another directory.") from None


def _rows(data: Columns) -> Iterator[dict[str, Any]]:
    for cells in zip(*data.values(), strict=True):
        yield dict(zip(data, cells, strict=True))


def _free(folder: Path, words: str, kind: Kind, taken: dict[Path, None]) -> Path:
    """A file name of plain letters; what a task or a panel is called must not lead out of the folder."""
    plain = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:120] or "figure"
    path, again = folder / f"{plain}.{kind}", 2
    while path in taken:
        path, again = folder / f"{plain}-{again}.{kind}", again + 1
    return path
