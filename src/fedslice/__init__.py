"""Federated learning in which a client and the server exchange a slice of the model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedslice.api import compare, load, run
    from fedslice.codecs import LBGM, STC, Codec, Dense, FetchSGD, Quantize, SecAgg, Sign, StreamingSubspace, TopK
    from fedslice.combine import Combine, Coverage, HeatCorrected, Mean
    from fedslice.core.errors import UserError
    from fedslice.data import partition
    from fedslice.data.federation import Federation
    from fedslice.data.ragged import Ragged
    from fedslice.data.vocabulary import Vocabulary
    from fedslice.local import (
        APFL,
        FDRL,
        SGD,
        Adagrad,
        Adam,
        AdamW,
        Cosine,
        Ditto,
        Exponential,
        FedBABU,
        FedDyn,
        FedGen,
        FedNTD,
        FedRep,
        InverseTime,
        Local,
        Moon,
        Optimizer,
        Projected,
        Prox,
        Sampler,
        Scaffold,
        Schedule,
        Term,
    )
    from fedslice.metrics import Metric
    from fedslice.recipe import Recipe
    from fedslice.registry import register
    from fedslice.runs.callbacks import Callback
    from fedslice.runs.comparison import Comparison
    from fedslice.runs.run import Run
    from fedslice.runs.stopping import EarlyStopping, Target
    from fedslice.runs.trackers import MLflow, TensorBoard, WandB
    from fedslice.select import Everyone, FedCS, Oort, Pooled, Select, Uniform
    from fedslice.server import (
        Drift,
        ScaffoldApprox,
        ServerAdagrad,
        ServerAdam,
        ServerMomentum,
        ServerOptimizer,
        ServerSGD,
        ServerYogi,
    )
    from fedslice.slices import ChannelDropout, FeatureRows, Shared, Slices, Whole, Width
    from fedslice.task import Task
    from fedslice.training.experiment import Experiment
    from fedslice.training.parties import Client, Server

    __version__: str

__all__ = [
    "APFL",
    "FDRL",
    "LBGM",
    "SGD",
    "STC",
    "Adagrad",
    "Adam",
    "AdamW",
    "Callback",
    "ChannelDropout",
    "Client",
    "Codec",
    "Combine",
    "Comparison",
    "Cosine",
    "Coverage",
    "Dense",
    "Ditto",
    "Drift",
    "EarlyStopping",
    "Everyone",
    "Experiment",
    "Exponential",
    "FeatureRows",
    "FedBABU",
    "FedCS",
    "FedDyn",
    "FedGen",
    "FedNTD",
    "FedRep",
    "Federation",
    "FetchSGD",
    "HeatCorrected",
    "InverseTime",
    "Local",
    "MLflow",
    "Mean",
    "Median",
    "Metric",
    "Moon",
    "Oort",
    "Optimizer",
    "Pooled",
    "Projected",
    "Prox",
    "Quantize",
    "Ragged",
    "Recipe",
    "Robust",
    "Run",
    "Sampler",
    "Scaffold",
    "ScaffoldApprox",
    "Schedule",
    "SecAgg",
    "Select",
    "Server",
    "ServerAdagrad",
    "ServerAdam",
    "ServerMomentum",
    "ServerOptimizer",
    "ServerSGD",
    "ServerYogi",
    "Shared",
    "Sign",
    "Slices",
    "StreamingSubspace",
    "Target",
    "Task",
    "TensorBoard",
    "Term",
    "TopK",
    "TrimmedMean",
    "Uniform",
    "UserError",
    "Vocabulary",
    "WandB",
    "Weighted",
    "Whole",
    "Width",
    "__version__",
    "compare",
    "load",
    "partition",
    "register",
    "run",
]

# The module of each public name. Names of one line are parts of a recipe with the base class of one's own parts.
_MODULES = {
    "fedslice.api": ("compare", "load", "run"),
    "fedslice.core.errors": ("UserError",),
    "fedslice.data.federation": ("Federation",),
    "fedslice.data.ragged": ("Ragged",),
    "fedslice.data.vocabulary": ("Vocabulary",),
    "fedslice.metrics": ("Metric",),
    "fedslice.recipe": ("Recipe",),
    "fedslice.registry": ("register",),
    "fedslice.runs.callbacks": ("Callback",),
    "fedslice.runs.comparison": ("Comparison",),
    "fedslice.runs.run": ("Run",),
    "fedslice.runs.stopping": ("EarlyStopping", "Target"),
    "fedslice.runs.trackers": ("MLflow", "TensorBoard", "WandB"),
    "fedslice.task": ("Task",),
    "fedslice.training.experiment": ("Experiment",),
    "fedslice.training.parties": ("Client", "Server"),
    "fedslice.select": ("Everyone", "FedCS", "Oort", "Pooled", "Select", "Uniform"),
    "fedslice.slices": ("ChannelDropout", "FeatureRows", "Shared", "Slices", "Whole", "Width"),
    "fedslice.local": (
        "APFL",
        "FDRL",
        "SGD",
        "Adagrad",
        "Adam",
        "AdamW",
        "Cosine",
        "Ditto",
        "Exponential",
        "FedBABU",
        "FedDyn",
        "FedGen",
        "FedNTD",
        "FedRep",
        "InverseTime",
        "Local",
        "Moon",
        "Optimizer",
        "Projected",
        "Prox",
        "Sampler",
        "Scaffold",
        "Schedule",
        "Term",
    ),
    "fedslice.codecs": (
        "LBGM",
        "STC",
        "Codec",
        "Dense",
        "FetchSGD",
        "Quantize",
        "SecAgg",
        "Sign",
        "StreamingSubspace",
        "TopK",
    ),
    "fedslice.combine": ("Combine", "Coverage", "HeatCorrected", "Mean", "Median", "Robust", "TrimmedMean", "Weighted"),
    "fedslice.server": (
        "Drift",
        "ScaffoldApprox",
        "ServerAdagrad",
        "ServerAdam",
        "ServerMomentum",
        "ServerOptimizer",
        "ServerSGD",
        "ServerYogi",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

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
