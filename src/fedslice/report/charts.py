"""The charts, as Altair definitions over named data: page and figures draw the same ones.

Colours are no part of a chart: they come from the theme's `range`, so that a page can be light or dark.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import altair as alt

from fedslice.panel import Panel
from fedslice.plot import DARK, LIGHT
from fedslice.report.curves import Curves
from fedslice.report.panels import floor, logarithmic, numeric
from fedslice.runs.stopping import Target
from fedslice.schema import Column

Spec = dict[str, Any]

VEGA_LITE = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]  # for which these definitions are made
HEIGHT = 360

_SHADES_LIGHT = ("#1d2129", "#545c69", "#e4e7ec")  # ink, soft ink, grid
_SHADES_DARK = ("#e8eaee", "#a9b1bd", "#323843")
_FULL = [1, 0]
# Through the gaps of a dashed line one sees a line that it covers.
_DASHES = ([8, 3], [3, 3], [10, 3, 2, 3], [5, 2], [2, 2], [12, 4], [6, 2, 2, 2, 2, 2], [4, 4], [10, 2, 4, 2])
_FADED = 0.12
_FAR = 10  # times: methods so different in cost are seen together only on a logarithmic axis
_ROOM = 40  # letters that fit below a panel
_DOTTED = 60  # so few points of a line are marked

_SIZE = "replace(format({0}, abs({0}) < 1000 ? '.3~r' : '.3~s'), /([kMGTPE]?)$/, ' $1B')"
_NUMBER = "(abs({0}) < 100 ? format({0}, '.4f') : format({0}, '.4~g'))"
_TIME = "({0} >= 3600 ? format({0} / 3600, ',.2~f') + ' h' : format({0}, ',.1~f') + ' s')"
_SHARE = "format({0}, '.1%')"
_FORMATS = {"B": _SIZE, "s": _TIME, "%": _SHARE}  # by unit


def theme(kind: Literal["light", "dark"]) -> Spec:
    """Fonts and colours of all charts."""
    light = kind == "light"
    ink, soft, grid = _SHADES_LIGHT if light else _SHADES_DARK
    colors = list(LIGHT if light else DARK)
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
    words = {"labelColor": soft, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500}
    return {
        "font": font,
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {
            **words,
            "gridColor": grid,
            "domainColor": grid,
            "tickColor": grid,
            "labelPadding": 6,
            "labelSeparation": 10,
        },
        "axisX": {"grid": False, "titlePadding": 10},
        "axisY": {"domain": False, "ticks": False, "titlePadding": 12},
        "legend": {**words, "labelColor": ink, "symbolStrokeWidth": 2.5, "symbolSize": 220, "rowPadding": 5},
        "rule": {"color": soft},
        "range": {"category": colors},
        "mark": {
            "color": colors[0],
            "aria": False,
        },  # the chart is described as a whole, and the tables tell its numbers
        "line": {"strokeWidth": 2},
    }


def curves(
    found: Curves, metric: Column, axis: Column, target: Target | None, width: int | Literal["container"]
) -> Spec:
    """One metric of all methods over one axis: lines, bands over seeds, the nearest point's numbers, the target."""
    y = f"y{found.metrics.index(metric)}"
    aimed = target if target and target.metric == metric.name else None
    title = f"{metric.words} (grey line: target {aimed.value:g})" if aimed else metric.words
    over = f"{metric.words} over {axis.title}"
    base = alt.Chart()
    wide = axis.name != "round" and _spread(found, axis) > _FAR
    x = alt.X(
        f"{axis.name}:Q",
        title=f"{axis.title} (logarithmic)" if wide else axis.title,
        axis=_axis(_format(axis)),
        scale=alt.Scale(type="log" if wide else "linear", nice=False),
    )
    up = alt.Y(f"{y}:Q", title=title, scale=alt.Scale(zero=False))
    isolate = alt.selection_point(name="isolate", fields=["method"], bind="legend", toggle="true")
    nearest = alt.selection_point(name="nearest", on="pointerover", nearest=True, clear="pointerout")
    dashes = [_dash(place) for place in range(len(found.methods))]
    legend = alt.Legend(title=None, symbolType="stroke", symbolLimit=len(found.methods))
    color = alt.Color("method:N", scale=alt.Scale(domain=found.methods), legend=legend)
    dash = alt.StrokeDash("method:N", scale=alt.Scale(domain=found.methods, range=dashes), legend=legend)
    band = (
        base.transform_filter(f"isValid(datum.{y}_low)")
        .mark_area(tooltip=None)
        .encode(
            x,
            alt.Y(f"{y}_low:Q", title=title),
            alt.Y2(f"{y}_high"),
            color,
            fillOpacity=alt.when(isolate).then(alt.value(0.18)).otherwise(alt.value(0)),
        )
    )
    lines = (
        base.mark_line(tooltip=None)
        .encode(x, up, color, dash, opacity=alt.when(isolate).then(alt.value(1)).otherwise(alt.value(_FADED)))
        .add_params(isolate)
    )
    points = (
        base.transform_filter(isolate)
        .mark_point(filled=True, size=70, tooltip=alt.expr(_words(metric, y, axis)))
        .encode(x, up, color, opacity=alt.when(nearest, empty=False).then(alt.value(1)).otherwise(alt.value(0)))
        .add_params(nearest)
    )
    banded = any(low is not None for low in found.columns[f"{y}_low"])
    layers = [*([band] if banded else []), lines, *_rule(aimed), points]
    chart = alt.layer(*layers, data=alt.NamedData("curves"), width=width, height=HEIGHT)
    there = f"isValid(datum.{axis.name}) && isValid(datum.{y})"
    chart = chart.transform_filter(f"{there} && datum.{axis.name} > 0" if wide else there)
    return _spec(chart.properties(description=f"{over}: {', '.join(found.methods)}"))


def _dash(place: int) -> list[int]:
    """The first line is whole and lies below all others; those of one colour differ, too."""
    return _DASHES[(place - 1 + place // len(LIGHT)) % len(_DASHES)] if place else _FULL


def still(spec: Spec) -> Spec:
    """The same curves where nothing can be pointed at: without the points that show numbers."""
    layers = [layer for layer in spec["layer"] if layer["mark"]["type"] != "point"]
    params = [param for param in spec.get("params", ()) if param["name"] != "nearest"]
    return spec | {"layer": layers, "params": params}


def panel(shown: Panel, name: str, width: int | Literal["container"]) -> Spec:
    """A panel as its part asks for it. Bars over numbers touch each other, as a histogram's do."""
    x, y = _channel(alt.X, shown, "x"), _channel(alt.Y, shown, "y")
    tooltip = [_tooltip(shown, "x"), _tooltip(shown, "y")]
    extra: dict[str, Any] = {}
    if shown.color:
        extra["color"] = alt.Color("color:N", title=shown.color, sort=None)
        tooltip.append(alt.Tooltip("color:N", title=_quoted(shown.color)))
    chart = alt.Chart(alt.NamedData(name))
    match shown.mark:
        case "bar":
            drawn = chart.mark_bar(opacity=0.7 if shown.color else 1)
            x, extra = _bar(shown, x, extra)
        case "line":
            drawn = chart.mark_line(point=len(shown.rows) <= _DOTTED)
        case "point":
            drawn = chart.mark_point(filled=True, opacity=0.7)
    described = f"{shown.title}. {shown.note}".strip()
    drawn = drawn.encode(x=x, y=y, tooltip=tooltip, **extra)
    return _spec(drawn.properties(width=width, height=HEIGHT * 2 // 3, description=described))


def _bar(shown: Panel, x: alt.X, extra: dict[str, Any]) -> tuple[alt.X, dict[str, Any]]:
    """Start and end of a bar: between its neighbours, and above the smallest number of a logarithmic axis."""
    extra = dict(extra)
    if numeric(shown, "x") and numeric(shown, "y"):
        x = _channel(alt.X, shown, "x", "x_low")
        extra |= {"x2": alt.X2("x_high"), "y2": alt.Y2Datum(0)}
    elif shown.color:
        extra["xOffset"] = alt.XOffset("color:N", sort=None)
    if logarithmic(shown, "y"):
        extra["y2"] = alt.Y2Datum(floor(shown))
    return x, extra


def _tooltip(shown: Panel, axis: Literal["x", "y"]) -> alt.Tooltip:
    title = _quoted(getattr(shown, axis))
    if numeric(shown, axis):
        return alt.Tooltip(f"{axis}:Q", title=title, format=",.5~g")
    return alt.Tooltip(f"{axis}:N", title=title)


def _quoted(title: str) -> str:
    """A tooltip's title becomes text within an expression, where Vega-Lite takes care of quotes and of nothing else."""
    return json.dumps(title)[1:-1].replace('\\"', '"')


def _channel(kind: type[Any], shown: Panel, axis: Literal["x", "y"], column: str | None = None) -> Any:
    title = getattr(shown, axis)
    if not numeric(shown, axis):
        words = {str(row[title]) for row in shown.rows}
        angle = -40 if axis == "x" and sum(map(len, words)) > _ROOM else 0
        return kind(f"{column or axis}:N", title=title, sort=None, axis=alt.Axis(labelAngle=angle))
    scale: dict[str, Any] = {"zero": shown.mark == "bar" and axis == "y"}
    if logarithmic(shown, axis):
        scale = {"type": "log"}
        if shown.mark == "bar" and axis == "y":
            scale |= {"domainMin": floor(shown), "nice": False}
    return kind(f"{column or axis}:Q", title=title, scale=alt.Scale(**scale), stack=None)


def _spread(found: Curves, axis: Column) -> float:
    """Return the ratio of the farthest to the nearest method along an axis."""
    ends: dict[Any, float] = {}
    for method, x in zip(found.columns["method"], found.columns[axis.name], strict=True):
        if isinstance(x, float | int):
            ends[method] = max(x, ends.get(method, 0.0))
    reached = [end for end in ends.values() if end > 0]
    return max(reached) / min(reached) if reached else 1.0


def _rule(target: Target | None) -> list[alt.Chart]:
    """The target as a line across; the axis tells its number, where no curve can cross it."""
    if target is None:
        return []
    rule = alt.Chart(alt.sequence(1)).mark_rule(strokeDash=[4, 4], tooltip=None)
    return [rule.encode(y=alt.YDatum(target.value))]


def _words(metric: Column, y: str, axis: Column) -> str:
    """The numbers of a point as the tables write them, as an expression.

    A tooltip encoding would show "undefined" around the points: there Vega-Lite 6.4 looks for the row in the cell of
    the nearest point, while it is in the cell's point.
    """
    row = "(datum.datum || datum)"
    form = _format(metric)
    low, high, count = (f"{row}.{y}_{part}" for part in ("low", "high", "seeds"))
    band = f"{count} + ': ' + {form.format(low)} + ' to ' + {form.format(high)}"
    shown = {
        "method": f"{row}.method",
        axis.title: _format(axis).format(f"{row}.{axis.name}"),
        metric.words: form.format(f"{row}.{y}"),
        "seeds": f"({count} > 1 ? {band} : '1')",
    }
    return "{" + ", ".join(f"{json.dumps(title)}: {words}" for title, words in shown.items()) + "}"


def _format(column: Column) -> str:
    """An expression that writes a number of a column as :meth:`Column.text` does."""
    if column.unit:
        return _FORMATS[column.unit]
    if column.kind == "round":
        return "format({0}, ',')"
    return "format({0}, '.3e')" if column.scientific else _NUMBER


def _axis(form: str) -> alt.Axis:
    return alt.Axis(labelExpr=form.format("datum.value"), labelFlush=True, tickCount=6)


def _spec(chart: alt.TopLevelMixin) -> Spec:
    """Plain JSON; theme and data come later, and the schema's address is nothing a page should hold."""
    spec: Spec = chart.to_dict(validate=False)
    return {key: part for key, part in spec.items() if key not in ("config", "$schema")}
