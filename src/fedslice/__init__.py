"""Federated learning in which a client and the server exchange a slice of the model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedslice.api import compare, load, run
    from fedslice.core.errors import UserError
    from fedslice.data import partition
    from fedslice.data.federation import Federation
    from fedslice.data.ragged import Ragged
    from fedslice.data.vocabulary import Vocabulary
    from fedslice.metrics import Metric
    from fedslice.recipe import Recipe
    from fedslice.runs.callbacks import Callback
    from fedslice.runs.comparison import Comparison
    from fedslice.runs.run import Run
    from fedslice.runs.stopping import EarlyStopping, Target
    from fedslice.runs.trackers import MLflow, TensorBoard, WandB
    from fedslice.task import Task
    from fedslice.training.experiment import Experiment
    from fedslice.training.parties import Client, Server

    __version__: str

__all__ = [
    "Callback",
    "Client",
    "Comparison",
    "EarlyStopping",
    "Experiment",
    "Federation",
    "MLflow",
    "Metric",
    "Ragged",
    "Recipe",
    "Run",
    "Server",
    "Target",
    "Task",
    "TensorBoard",
    "UserError",
    "Vocabulary",
    "WandB",
    "__version__",
    "compare",
    "load",
    "partition",
    "run",
]

_HOMES = {
    "Callback": "fedslice.runs.callbacks",
    "Client": "fedslice.training.parties",
    "Comparison": "fedslice.runs.comparison",
    "EarlyStopping": "fedslice.runs.stopping",
    "Experiment": "fedslice.training.experiment",
    "Federation": "fedslice.data.federation",
    "MLflow": "fedslice.runs.trackers",
    "Metric": "fedslice.metrics",
    "Ragged": "fedslice.data.ragged",
    "Recipe": "fedslice.recipe",
    "Run": "fedslice.runs.run",
    "Server": "fedslice.training.parties",
    "Target": "fedslice.runs.stopping",
    "Task": "fedslice.task",
    "TensorBoard": "fedslice.runs.trackers",
    "UserError": "fedslice.core.errors",
    "Vocabulary": "fedslice.data.vocabulary",
    "WandB": "fedslice.runs.trackers",
    "compare": "fedslice.api",
    "load": "fedslice.api",
    "run": "fedslice.api",
}

if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        """Load a public name or a submodule when it is first used: torch alone takes two seconds to load."""
        if name == "__version__":
            value = _version()
        elif name == "partition":
            value = import_module("fedslice.data.partition")
        elif name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        else:
            value = _submodule(name)
        globals()[name] = value
        return value


def _submodule(name: str) -> Any:
    from importlib.util import find_spec

    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    """The version in pyproject.toml: through the installed package, or from a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fedslice")
    except PackageNotFoundError:
        import tomllib
        from pathlib import Path

        project = Path(__file__).parents[2] / "pyproject.toml"
        found: str = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
        return found
