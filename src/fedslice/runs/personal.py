"""Clients' own models of a run that has a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fedslice.core.errors import UserError, unknown
from fedslice.measure.personal import own_model
from fedslice.runs.directory import RunDirectory
from fedslice.runs.rebuild import rebuilt
from fedslice.runs.run import Run
from fedslice.runs.weights import Layout

_NAMED = 20  # clients that a sentence lists


class PersonalModels:
    """Clients' own models: what each would start its next round from.

    Args:
        run: A run with a checkpoint.
        named: The user's own ``task``, ``recipe`` and ``model``, and ``data``, as for :func:`rebuilt`.
    """

    def __init__(self, run: Run, **named: Any):
        plan = rebuilt(run, **named)
        directory = RunDirectory(run.directory)
        state = directory.state()
        if state is None:
            raise UserError(f"{run.directory} has no checkpoint; go on with the run first.")
        self._experiment = plan.experiment(directory.scratch if directory.scratch.exists() else None)
        try:
            self._experiment.load_state_dict(state[1], state[2])
        except UserError as error:
            raise UserError(f"the checkpoint of {run.directory} does not give clients' models: {error}.") from error
        self._layout = Layout.of(plan.task)
        self.task = plan.task
        self.clients: list[Any] = plan.task.federation.ids.tolist()

    def model(self, client: Any) -> dict[str, Tensor]:
        """Return a client's model as a state dict.

        Args:
            client: The client's id, as the federation has it or as text.
        """
        places = [place for place, one in enumerate(self.clients) if one == client or str(one) == str(client)]
        if not places:
            raise unknown("client", str(client), map(str, self.clients[:_NAMED]))
        return self._layout.state_dict(own_model(self._experiment.moment, places[0]))

    def __iter__(self) -> Iterator[tuple[Any, dict[str, Tensor]]]:
        """All clients' ids and models."""
        return ((client, self.model(client)) for client in self.clients)
