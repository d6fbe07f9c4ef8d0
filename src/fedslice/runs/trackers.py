"""Trackers: callbacks that write a run's rows to TensorBoard, MLflow or Weights & Biases.

Each package is optional, and asked for when a tracker is made. A tracker of a run that is complete already writes all
its rows.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedslice.core.errors import UserError
from fedslice.runs.callbacks import Callback, RunState


def needed(package: str, what: str, extra: str) -> Any:
    """Return a package of an extra, or say how to install it."""
    try:
        return sys.modules.get(package) or import_module(package)
    except ImportError:
        raise UserError(
            f"{what} needs the package {package}, which is not installed; install it with: pip install "
            f"fedslice[{extra}]"
        ) from None


class Tracker(Callback):
    """A callback that opens a record, writes rows to it, and closes it."""

    @abstractmethod
    def open(self, run: RunState) -> None:
        """Begin the record of a run, or go on with it."""

    @abstractmethod
    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """End the record."""

    def on_start(self, run: RunState) -> None:
        """Open the record; of a complete run, write all rows."""
        self._open = False
        self.open(run)
        self._open = True
        if run.finished:
            for row in run.rows:
                self.write(row)

    def on_evaluation(self, run: RunState, row: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Write the row."""
        self.write(row)

    def on_end(self, run: RunState, error: BaseException | None) -> None:  # noqa: ARG002
        """Close the record, if it was opened."""
        if getattr(self, "_open", False):
            self._open = False
            self.close(error is not None)


class TensorBoard(Tracker):
    """Event files for TensorBoard, in a folder per run below this one.

    Args:
        folder: Where the folders go.
    """

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)

    def open(self, run: RunState) -> None:
        """A folder that is called as the run's directory."""
        from fedslice.runs.events import Events

        self._events = Events(self._folder / run.directory.name, run.config)

    def write(self, row: Mapping[str, Any]) -> None:
        """A scalar per number."""
        self._events.row(row)

    def close(self, failed: bool) -> None:  # noqa: ARG002
        """End the session."""
        self._events.close()


class MLflow(Tracker):
    """A run of MLflow per run, with its configuration as parameters and its rows as metrics.

    Args:
        experiment: The experiment's name.
        uri: The tracking server; MLflow's own setting by default.
    """

    def __init__(self, experiment: str = "fedslice", uri: str | None = None):
        self._mlflow = needed("mlflow", "MLflow tracking", "mlflow")
        self._experiment = experiment
        self._uri = uri

    def open(self, run: RunState) -> None:
        """A run that is called by recipe, task and seed."""
        if self._uri is not None:
            self._mlflow.set_tracking_uri(self._uri)
        self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(run_name=f"{run.task} {run.title}")
        self._mlflow.log_params(flat(run.config))

    def write(self, row: Mapping[str, Any]) -> None:
        """The row's numbers at its round."""
        self._mlflow.log_metrics(numbers(row), step=row["round"])

    def close(self, failed: bool) -> None:
        """Finished, or failed."""
        self._mlflow.end_run(status="FAILED" if failed else "FINISHED")


class WandB(Tracker):
    """A run of Weights & Biases per run, with its configuration and its rows.

    Args:
        project: The project's name.
        options: Further arguments of ``wandb.init``, for example ``mode="offline"``.
    """

    def __init__(self, project: str = "fedslice", **options: Any):
        self._wandb = needed("wandb", "Weights & Biases tracking", "wandb")
        self._options = {"project": project, **options}

    def open(self, run: RunState) -> None:
        """A run that is called by recipe, task and seed."""
        self._run = self._wandb.init(name=f"{run.task} {run.title}", config=dict(run.config), **self._options)

    def write(self, row: Mapping[str, Any]) -> None:
        """The row's numbers at its round."""
        self._run.log(numbers(row), step=row["round"])

    def close(self, failed: bool) -> None:
        """Finished, or failed."""
        self._run.finish(exit_code=int(failed))


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row, without its round."""
    return {
        name: value for name, value in row.items() if name != "round" and value is not None and math.isfinite(value)
    }


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names.

    >>> flat({"recipe": {"local": {"lr": 0.1}}, "seed": 0})
    {'recipe.local.lr': 0.1, 'seed': 0}
    """
    out: dict[str, Any] = {}
    for key, value in config.items():
        out |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return out
