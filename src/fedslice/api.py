"""Run, compare and load: what the command line does, from Python."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedslice.address import is_address
from fedslice.config import Named, Plan, request, resolve
from fedslice.core.errors import RunWarning, UserError
from fedslice.measure.instruments import run_columns
from fedslice.runs import callbacks as hooks
from fedslice.runs.callbacks import Callback
from fedslice.runs.comparison import Comparison, requests
from fedslice.runs.directory import RunDirectory
from fedslice.runs.execute import default_directory, execute
from fedslice.runs.reading import read
from fedslice.runs.run import Run
from fedslice.runs.settings import RunSettings
from fedslice.runs.stopping import Target

if TYPE_CHECKING:
    from fedslice.recipe import Recipe
    from fedslice.task import Task

_SECONDS = 30.0  # between checkpoints
Watch = Callable[[int, int, Plan], Sequence[Callback]]
"""The number of a run, of how many, and its plan, to callbacks of its own."""


def run(
    task: Task | str,
    recipe: Recipe | str = "fedavg",
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    checkpoint_seconds: float = _SECONDS,
    **settings: Any,
) -> Run:
    """Train a task with a recipe and return the run.

    Args:
        task: A :class:`Task`, the name of a built-in one, or ``"MODULE:NAME"`` of one of your own.
        recipe: A :class:`Recipe`, the name of a method, or ``"MODULE:NAME"``.
        resume: Whether an unfinished run in ``out`` is continued. A finished one is only read.
        callbacks: What is told of rounds and evaluations, see :class:`Callback`.
        checkpoint_seconds: Time between checkpoints.
        settings: The other fields of :class:`RunSettings`: {fields}.

    Without ``out`` the run lies in a temporary folder that goes with the returned object.

    Example:
        >>> run("hotcold", "fedsubavg", rounds=2, set={{"clients": 20, "items": 30}}).frame.shape  # doctest: +SKIP
        (2, 11)
    """
    asked = request({"task": task, "recipe": recipe, **settings})
    plan = resolve(asked)
    place, keep = _place(asked.out)
    (found,) = train([plan], [place], resume, checkpoint_seconds, lambda *_: callbacks)
    return replace(found, keep=keep)


def compare(
    task: Task | str,
    recipes: Sequence[Recipe | str] | Mapping[str, Recipe | str],
    *,
    seeds: int = 1,
    target: Target | str | None = None,
    baseline: str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    checkpoint_seconds: float = _SECONDS,
    **settings: Any,
) -> Comparison:
    """Train a task with several recipes and seeds, and return the comparison.

    Args:
        task: As for :func:`run`.
        recipes: Recipes or their names; a mapping names recipes of your own.
        seeds: Number of seeds, from ``seed`` on.
        target: A value to reach, for example ``"test_auc >= 0.7"``.
        baseline: The recipe whose simulated time to the target counts as one; needs ``devices``.
        resume: As for :func:`run`.
        callbacks: As for :func:`run`; every run has the same ones, one run after another.
        checkpoint_seconds: Time between checkpoints.
        settings: The other fields of :class:`RunSettings`: {fields}. A setting goes to the recipes that have it.
    """
    place, keep = _place(settings.get("out"))
    named = [Named(*pair) for pair in recipes.items()] if isinstance(recipes, Mapping) else list(recipes)
    found = compared({"task": task, **settings, "out": str(place)}, named, seeds, target, baseline).train(
        resume, checkpoint_seconds, lambda *_: callbacks
    )
    return replace(found, keep=keep)


def load(directory: str | Path) -> Run:
    """Return the run in a directory, finished or not. Nothing of the user's code is imported."""
    place = Path(directory)
    if not (place / "config.json").exists():
        raise UserError(f"{place} holds no run (no config.json); give the directory of a run.")
    return read(place)


def _own(asked: RunSettings) -> dict[str, Any]:
    """Return the settings that are the user's own objects, or their addresses."""
    given = {name: getattr(asked, name) for name in ("task", "recipe", "model")}
    return {
        name: one for name, one in given.items() if (one is not None and not isinstance(one, str)) or is_address(one)
    }


class Compared:
    """A comparison with everything decided, and nothing trained."""

    def __init__(self, plans: Sequence[Plan], places: Sequence[Path], target: Target | None, baseline: str | None):
        self.plans = plans
        self.places = places
        self._target = target
        self._baseline = baseline

    def train(self, resume: bool, checkpoint_seconds: float, watch: Watch) -> Comparison:
        """Train all runs, one after another; what cannot run is refused before the first begins."""
        for plan, place in zip(self.plans, self.places, strict=True):
            directory = RunDirectory(place)
            try:
                if plan.settings.seed == self.plans[0].settings.seed and not directory.finished:
                    plan.experiment(directory.scratch)
            except UserError as error:
                raise UserError(f"recipe {plan.recipe_name!r}: {error}") from None
        runs = train(self.plans, self.places, resume, checkpoint_seconds, watch)
        return Comparison(runs, self._target, self._baseline)


def compared(
    said: Mapping[str, Any],
    recipes: Sequence[Any],
    seeds: int,
    target: Target | str | None,
    baseline: str | None,
) -> Compared:
    """Decide a comparison, and refuse what is wrong with it."""
    asked = requests(said, recipes, seeds)
    plans = [resolve(one) for one in asked]
    names = list(dict.fromkeys(plan.recipe_name for plan in plans))
    if baseline is not None and (baseline not in names or asked[0].devices is None or target is None):
        raise UserError(f"--baseline {baseline} needs --devices, --target and a recipe among {', '.join(names)}.")
    columns = {
        name: column
        for name, column in run_columns(plans[0].task, plans[0].settings.measure).items()
        if column.kind == "score"
    }
    aim = Target.parse(target, columns) if isinstance(target, str) else target and target.bound(columns)
    places = [
        Path(one.out) / f"{plan.recipe_name}-seed{plan.settings.seed}" if one.out else default_directory(plan)
        for one, plan in zip(asked, plans, strict=True)
    ]
    return Compared(plans, places, aim, baseline)


def train(
    plans: Sequence[Plan], places: Sequence[Path], resume: bool, checkpoint_seconds: float, watch: Watch
) -> list[Run]:
    """Train runs, one after another, each with callbacks of its own."""
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        warnings.warn(note, RunWarning, stacklevel=3)
    runs = []
    for number, (plan, place) in enumerate(zip(plans, places, strict=True), 1):
        told = hooks.check(watch(number, len(plans), plan))
        found = execute(plan, place, resume=resume, checkpoint_seconds=checkpoint_seconds, callbacks=told)
        runs.append(replace(found, own=_own(plan.asked)))
    return runs


def _place(out: str | Path | None) -> tuple[Path, object]:
    """Return the folder of a run, and an object that keeps a temporary one there."""
    if out is not None:
        return Path(out), None
    folder = _Temporary()
    return folder.path / "run", folder


class _Temporary:
    """A folder that is removed with this object, or at the latest when the program ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedslice-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _describe(function: Callable[..., Any]) -> None:
    """List the settings of a run in the signature and the text of a function that takes them."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    fields = {name: one for name, one in RunSettings.model_fields.items() if name not in signature.parameters}
    more = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.get_default(call_default_factory=True),
            annotation=one.annotation,
        )
        for name, one in fields.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    function.__doc__ = (
        (function.__doc__ or "")
        .replace("{fields}", ", ".join(f"``{name}``" for name in fields))
        .replace("{{", "{")
        .replace("}}", "}")
    )


for _function in (run, compare):
    _describe(_function)
