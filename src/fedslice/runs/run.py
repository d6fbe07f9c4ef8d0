"""A run: its metrics, its model, and its report, as its directory has them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from fedslice.core.errors import UserError
from fedslice.data.vocabulary import Vocabulary, loads
from fedslice.disk import read_bytes, reason
from fedslice.panel import Panel
from fedslice.runs.directory import VOCABULARIES, RunDirectory
from fedslice.runs.results import run_sheet
from fedslice.runs.weights import Layout
from fedslice.schema import Column, find
from fedslice.sheets import html
from fedslice.training.devices import PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from fedslice.runs.personal import PersonalModels
    from fedslice.runs.stopping import Target

_MODEL = "server.model."  # before the names of the model's tensors in a checkpoint


@dataclass(frozen=True, repr=False)
class Run:
    """A run, finished or not: what :func:`fedslice.run` returns and :func:`fedslice.load` reads.

    Args:
        directory: Where it lies. Of a run without ``out`` this is a temporary folder, which goes with the object.
        config: Everything that determines the result.
        environment: The software and hardware on which it began.
        command: What makes this run again, if it is known.
        panels: What task and recipe have to show in a report.
        rows: The rows of its log.
        finished: Whether it is complete.
        diverged: Of a finished run that diverged: the round, and how many updates were rejected of how many.
        columns: What the columns of its log are.
        stopped: Of a finished run that ended early: the round and the reason.
        settings: The settings as they were given.
        own: Objects of the user's that it was made with: task, recipe and model.
        keep: Whatever must live as long as this object.
    """

    directory: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    command: str | None
    panels: list[Panel]
    rows: list[dict[str, Any]]
    finished: bool
    diverged: dict[str, Any] | None = None
    columns: dict[str, Column] = field(default_factory=dict)
    stopped: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict, compare=False)
    keep: object = field(default=None, compare=False)

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.config["task"]["name"])

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return str(self.config["recipe"]["name"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @property
    def rounds(self) -> int:
        """The number of rounds of the complete run."""
        return int(self.config["rounds"])

    @property
    def method(self) -> dict[str, Any]:
        """All settings but the task's and the seed: runs that agree in them are runs of one method.

        Of devices that were drawn by the seed the configuration has a digest, which differs by seed; here they are
        called after what they were drawn from.
        """
        recipe = {key: value for key, value in self.config["recipe"].items() if key != "name"}
        rest = {key: value for key, value in self.config.items() if key not in ("task", "recipe", "seed")}
        drawn = option(self.command, "--devices")
        return recipe | rest | ({"devices": drawn} if "devices" in rest and drawn in PRESETS else {})

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The metrics: a row per evaluation, a column per number, null where one is undefined."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        return pl.DataFrame(columns, strict=False)

    @property
    def scores(self) -> dict[str, float | None]:
        """The scores at the last evaluation."""
        last = self.rows[-1] if self.rows else {}
        return {name: last[name] for name in last if find(name, self.columns).kind == "score"}

    @property
    def model(self) -> dict[str, Tensor]:
        """The server's model at the last checkpoint, as a state dict of the task's own module."""
        return Layout.read(self._file("module.safetensors")).state_dict(self.trained)

    @cached_property
    def trained(self) -> dict[str, Tensor]:
        """The trained parameters of the server's model at the last checkpoint."""
        state = RunDirectory(self.directory).state()
        if state is None:
            raise UserError(f"{self.directory} has no model: it has no checkpoint; go on with the run first.")
        return {key.removeprefix(_MODEL): value for key, value in state[1].items() if key.startswith(_MODEL)}

    @cached_property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """The value that each id and class stands for, by feature and label; empty if the data came as numbers."""
        path = self.directory / VOCABULARIES
        if not path.exists():
            return {}
        try:
            return loads(read_bytes(path).decode())
        except (OSError, UnicodeDecodeError, UserError) as error:
            raise UserError(f"{path} cannot be read ({reason(error)}); restore it from a copy.") from None

    def personal(self, client: Any, **named: Any) -> dict[str, Tensor]:
        """Return a client's own model as a state dict: what the client would start its next round from.

        Args:
            client: The client's id, as the federation has it.
            named: ``task``, ``recipe`` and ``model`` if they are your own, ``data`` if it has moved. A run that
                :func:`fedslice.run` has returned knows its own ones.
        """
        return self.personal_models(**named).model(client)

    def personal_models(self, **named: Any) -> PersonalModels:
        """Return all clients' own models, which are made one by one; arguments as for :meth:`personal`."""
        from fedslice.runs.personal import PersonalModels

        return PersonalModels(self, **(self.own | named))

    def clients(self) -> pl.DataFrame:
        """Return the scores by client that ``measure=["personal"]``, ``stale`` or ``tuned`` found."""
        from fedslice.runs.clients import read_clients

        return pl.DataFrame(read_clients(self.directory))

    def report(self, path: str | Path, target: Target | str | None = None) -> Path:
        """Write the run's page, which needs nothing but a browser, and return where it is."""
        from fedslice.report.page import write

        write([self], Path(path), target=target)
        return Path(path)

    def document(self) -> dict[str, Any]:
        """Return what ``fedslice run --json`` prints."""
        return {
            "task": self.task,
            "recipe": self.recipe,
            "seed": self.seed,
            "source": self.config["task"].get("source", ""),
            "metrics": self.rows,
            "diverged": self.diverged,
            "stopped": self.stopped,
        }

    def __repr__(self) -> str:
        scores = "".join(f", {name} {find(name, self.columns).text(value)}" for name, value in self.scores.items())
        return f"Run({self.recipe} on {self.task}, seed {self.seed}, {self._progress}{scores}, {str(self.directory)!r})"

    def _repr_html_(self) -> str:
        return html(
            run_sheet(f"{self.recipe} on {self.task}, seed {self.seed}, {self._progress}", self.rows, self.columns)
        )

    @property
    def _progress(self) -> str:
        done = self.rows[-1]["round"] if self.rows else 0
        if not self.finished:
            return f"unfinished at round {done} of {self.rounds}"
        return f"{self.rounds} rounds" if self.stopped is None else f"stopped at round {done} of {self.rounds}"

    def _file(self, name: str) -> Path:
        found = self.directory / name
        if not found.exists():
            raise UserError(f"{self.directory} has no {name}; go on with the run, which writes it.")
        return found


def option(command: str | None, name: str) -> str | None:
    """Return what a run's command says after an option, or None."""
    try:
        words = shlex.split(command or "")
    except ValueError:  # no command of ours
        return None
    return words[words.index(name) + 1] if name in words[:-1] else None
