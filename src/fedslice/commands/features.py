"""Looking at a model's features: as a table, and as a map of the samples."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from fedslice.commands.app import Data, say, writable
from fedslice.core.errors import UserError
from fedslice.loading import loading

if TYPE_CHECKING:
    import polars as pl

    from fedslice.core.slice import Values
    from fedslice.measure.features import Features
    from fedslice.panel import Panel
    from fedslice.runs.run import Run
    from fedslice.task import Task

Kind = Literal["html", "svg", "png"]

_POINTS = 20_000  # of a chart, at most
_SIDE = 480


def features(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="The directory of a run that has ended.")],
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The CSV file to write.")] = "features.csv",
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Test samples, drawn by the run's seed.")] = 1000,
    data: Data = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="The task, if it is your own: MODULE:NAME or FILE.py:NAME.")
    ] = None,
    with_tsne: Annotated[bool, typer.Option("--tsne", help="Two columns more: places on a map, by t-SNE.")] = False,
    chart: Annotated[
        str | None, typer.Option(metavar="FILE", help="The map as a picture by class: a .html, .svg or .png file.")
    ] = None,
) -> None:
    """Write the features of test samples, or draw a map of them.

    Features are what enters the last Linear layer of a run's final global model.
    """
    with loading():
        import polars as pl

        from fedslice.measure.features import features as find
        from fedslice.measure.features import load_tsne, tsne
        from fedslice.runs.reading import read

    kind = _kind(chart, samples) if chart is not None else None
    if kind is not None and not with_tsne:
        raise UserError(f"--chart {chart} draws the map that --tsne makes; add --tsne.")
    if chart is not None and Path(chart) == Path(out):
        raise UserError(f"--chart and --out are both {chart}; give two files.")
    writable("--out", out)
    writable("--chart", chart)
    if with_tsne:
        load_tsne()
    run = read(_directory(Path(run_dir)))
    built, model = _final(run, task, data)
    found = find(built, model, samples, run.seed)
    table = _table(found)
    if with_tsne:
        table = table.hstack(pl.from_numpy(tsne(found.values, run.seed), schema=["tsne_1", "tsne_2"]))
    files = {Path(out): table.write_csv().encode()}
    if chart is not None and kind is not None:
        files[Path(chart)] = _picture(_map(run, table), kind)
    _write(files)
    say(f"features: {out}")
    if chart is not None:
        say(f"chart: {chart}")


def _kind(chart: str, samples: int) -> Kind:
    ending = Path(chart).suffix.removeprefix(".").lower()
    for kind in get_args(Kind):
        if kind == ending:
            if samples > _POINTS:
                raise UserError(f"--samples {samples} are more points than the {_POINTS} of a --chart; give fewer.")
            return kind  # type: ignore[no-any-return]
    raise UserError(f"--chart {chart} ends in {ending!r}, expected html, svg or png; name it for example map.svg.")


def _directory(place: Path) -> Path:
    from fedslice.runs.directory import CONFIG

    if not (place / CONFIG).exists():
        raise UserError(f"{place} holds no run (no {CONFIG}); give the directory of a run that has ended.")
    return place


def _final(run: Run, task: str | None, data: str | None) -> tuple[Task, Values]:
    """The task of a run, built again, and the global model of its last checkpoint, which must fit it."""
    from fedslice.runs.directory import RunDirectory
    from fedslice.runs.rebuild import rebuilt_task

    if not run.finished or RunDirectory(run.directory).state() is None:
        what = "its checkpoint is gone" if run.finished else "it has not ended"
        raise UserError(f"{run.directory} has no final model ({what}); finish the run with --resume, or give another.")
    built, model = rebuilt_task(run, task, data=data), run.trained
    there = {name: tuple(value.shape) for name, value in model.items()}
    wanted = {name: tuple(shape) for name, shape in built.shapes.items()}
    if there != wanted:
        differing = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))[0]
        raise UserError(
            f"{run.directory}: parameter {differing!r} has shape {there.get(differing)} in the checkpoint, expected "
            f"{wanted.get(differing)}; give a run of this version of its task."
        )
    return built, model


def _table(found: Features) -> pl.DataFrame:
    import polars as pl

    columns: dict[str, Any] = {
        "client": found.client,
        "label": found.label.tolist(),
        "predicted": found.predicted.tolist(),
    }
    width = found.values.shape[1]
    values = pl.from_numpy(found.values.numpy(), schema=[f"feature_{place}" for place in range(width)])
    return pl.DataFrame(columns).hstack(values)


def _map(run: Run, table: pl.DataFrame) -> Panel:
    import polars as pl

    from fedslice.panel import Panel

    shown = table.sort("label").select(
        pl.col("tsne_1").alias("first"), pl.col("tsne_2").alias("second"), pl.col("label").alias("class")
    )
    title = f"{run.recipe} on {run.task}, round {run.rounds}: features by class"
    return Panel(title=title, mark="point", x="first", y="second", color="class", rows=shown.to_dicts())


def _picture(shown: Panel, kind: Kind) -> bytes:
    import vl_convert  # charts take a while to load, and most commands draw none

    from fedslice.report import charts
    from fedslice.report.page import picture
    from fedslice.report.panels import columns

    if kind == "html":
        return picture(shown, _SIDE).encode()
    cells = columns(shown)
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    spec = charts.panel(shown, "map", _SIDE) | {"height": _SIDE, "title": shown.title, "datasets": {"map": rows}}
    given: dict[str, Any] = {
        "vl_version": charts.VEGA_LITE,
        "config": charts.theme("light") | {"background": "white"},
    }
    if kind == "svg":
        return vl_convert.vegalite_to_svg(spec, **given).encode()
    return vl_convert.vegalite_to_png(spec, scale=2.0, **given)


def _write(files: dict[Path, bytes]) -> None:
    """All of them or none."""
    from fedslice.runs.checkpoint import replacing

    with ExitStack() as stack:
        for path, content in files.items():
            try:
                stack.enter_context(replacing(path)).write_bytes(content)
            except OSError as error:
                raise UserError(f"{path} cannot be written ({error.strerror}); give another place.") from None
