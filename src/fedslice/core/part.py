"""The interface that all parts of a recipe share: settings, declarations, and where their state lies.

A part is a frozen set of settings. What changes during a run lies outside of it: on the server in a :class:`State`, on
the client in a :class:`~fedslice.core.memory.Memory`. A method takes the one or the other, and so tells which side it
runs on; no method takes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from fedslice.core.capabilities import Rule
from fedslice.core.component import CHECKED as CHECKED  # noqa: PLC0414 # for parts that are decorated
from fedslice.core.component import Component
from fedslice.core.facts import FACTS
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Fields
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.update import Step
from fedslice.panel import Panel

if TYPE_CHECKING:
    from fedslice.core.memory import ClientMemories
    from fedslice.task import Task
    from fedslice.training.devices import Devices
    from fedslice.training.enrolled import Enrolled

Count = Annotated[
    int, BeforeValidator(lambda given: given.item() if isinstance(given, np.generic) else given), Field(ge=1, le=10**9)
]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True, eq=False)
class ServerRun:
    """The server's side of a run, as its parts may know it.

    Args:
        spec: What both sides know.
        enrolled: The clients.
        device: Where the model lies.
        scratch: A folder for what is too large for memory or for a checkpoint.
    """

    spec: Spec
    enrolled: Enrolled
    device: torch.device
    scratch: Path | None = None


@dataclass(frozen=True, eq=False)
class ClientRun:
    """The client's side of a run, as its parts may know it.

    Args:
        spec: What both sides know.
        task: The network with the clients' data.
        memories: What the clients remember.
        seed: The clients' own seed, of which the server need not know.
        device: Where values lie.
        devices: How fast the clients are, if that is simulated or measured.
        secret: The seed of answers that hide something, not negative and below 2^256, which no server may know.
    """

    spec: Spec
    task: Task
    memories: ClientMemories
    seed: int
    device: torch.device
    devices: Devices | None = None
    secret: int = 0

    def held(self, clients: Tensor) -> Tensor:
        """Return the number of values that each of these clients holds, by the recipe's slices [clients]."""
        slices = self.spec.recipe.slices
        memory = self.slices_memory
        return slices.held(memory, clients)

    def samples(self, clients: Tensor) -> Tensor:
        """Return the number of samples that each of these clients trains on in a round, passes counted [clients]."""
        recipe = self.spec.recipe
        sizes = self.task.federation.train.sizes_of(clients).cpu()
        return recipe.local.sampler.samples(sizes, recipe.select.batch_scale())

    @property
    def slices_memory(self) -> Memory:
        """The memory of the recipe's slices, for facts that depend on what a client holds."""
        return self.parts["slices"]

    @property
    def parts(self) -> dict[str, Memory]:
        """The memories of all parts by place, as far as they have been made."""
        found: dict[str, Memory] = self.__dict__.setdefault("_parts", {})
        return found


@dataclass(frozen=True)
class Round:
    """A round that is over.

    Args:
        number: Its number.
        invited: Clients that were asked.
        taken: Clients whose upload was taken.
        told: What they reported on no slice, by field [taken, ...].
        sums: What they reported on slices, by field, summed with the weights of the merge.
        change: How the model changed.
        model: The server's model after the round.
    """

    number: int
    invited: Tensor
    taken: Tensor
    told: Mapping[str, Tensor]
    sums: Mapping[str, Step]
    change: Step
    model: Mapping[str, Tensor]


class State:
    """The state of a part on the server during a run.

    Attributes named in ``saved`` change from round to round, those in ``learned`` when a client enrols: tensors,
    dictionaries of tensors, numbers, or objects with a ``state_dict`` of their own. Other attributes follow from the
    settings and never change.

    Args:
        run: The server's side of the run.
    """

    saved: ClassVar[tuple[str, ...]] = ()
    learned: ClassVar[tuple[str, ...]] = ()

    def __init__(self, run: ServerRun):
        self.run = run

    def state_dict(self) -> Values:
        """Return as tensors what rounds have changed."""
        return self._tensors(self.saved)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._load(self.saved, state)

    def facts_dict(self) -> Values:
        """Return as tensors what enrolments have changed."""
        return self._tensors(self.learned)

    def load_facts_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved facts."""
        self._load(self.learned, state)

    def _tensors(self, names: Iterable[str]) -> Values:
        out: Values = {}
        for name in names:
            value = getattr(self, name)
            if hasattr(value, "state_dict"):
                value = value.state_dict()
            if isinstance(value, dict):
                out |= {f"{name}.{key}": one for key, one in value.items()}
            else:
                out[name] = value if isinstance(value, Tensor) else torch.tensor(value)
        return out

    def _load(self, names: tuple[str, ...], state: Mapping[str, Tensor]) -> None:
        for key in state:
            if key.partition(".")[0] not in names:
                raise ValueError(f"{type(self).__name__} has no state {key!r}; it has {', '.join(names) or 'none'}")
        for name in names:
            value = getattr(self, name)
            own = {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(own)
            elif isinstance(value, dict):
                setattr(self, name, own)
            elif isinstance(value, Tensor):
                setattr(self, name, state[name].to(value.device))
            else:
                setattr(self, name, type(value)(state[name].item()))


class Part(Component):
    """A part of a recipe. Its constructor takes hyperparameters and nothing else.

    The methods below are what every part may declare and do; those of its own place come on top. All of them have a
    default that does nothing.
    """

    @property
    def provides(self) -> frozenset[str]:
        """Capabilities of this part; see :mod:`fedslice.core.capabilities`."""
        return frozenset()

    def rules(self) -> Iterable[Rule]:
        """Return the capabilities that other parts of a recipe must have, or must not."""
        return ()

    # --- the server's side

    def server_state(self, run: ServerRun) -> Any:
        """Return the part's state at the beginning of a run. Refuse here what the server can know to be wrong."""
        return State(run)

    def enrol(self, state: Any, clients: Tensor, facts: Body) -> None:
        """Learn the facts of clients that enrol."""

    def leave(self, state: Any, clients: Tensor, facts: Body) -> None:
        """Forget clients that leave, and their facts."""

    def uncounted(self, state: Any) -> Tensor:  # noqa: ARG002
        """Return the enrolled clients whose :meth:`tally` has not been counted, ascending."""
        return torch.zeros(0, dtype=torch.int64)

    def tally_bound(self, state: Any, clients: Tensor) -> int:  # noqa: ARG002
        """Return an upper bound of the sum of these clients' tallies, at any place."""
        return 0

    def learn_sums(self, state: Any, clients: Tensor, sums: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Learn the sums of clients' tallies."""

    def tell(self, state: Any, t: int, clients: Tensor, part: Slice) -> Body:  # noqa: ARG002
        """Return the entries of :meth:`down_fields`."""
        return {}

    def forget(self, state: Any, clients: Tensor) -> None:
        """Forget what is paired with memories of these clients, who do not know of it any more."""

    def observe(self, state: Any, end: Round) -> None:
        """Look at a finished round."""

    def panels(self, state: Any) -> list[Panel]:  # noqa: ARG002
        """Return the panels of this part for a report."""
        return []

    # --- the client's side

    def client_memory(self, run: ClientRun, place: str) -> Any:
        """Return the part's memory at the beginning of a run. Refuse here what the client can know to be wrong."""
        return Memory(run, place)

    def introduce(self, memory: Any, clients: Tensor) -> Body:
        """Return the entries of :meth:`facts` for clients that enrol; by default those of the table in ``facts.py``."""
        return {name: FACTS[name].tell(memory.run, clients) for name in self.facts(memory.run.spec) if name in FACTS}

    def tally(self, memory: Any, client: int) -> Mapping[str, np.ndarray[Any, Any]]:  # noqa: ARG002
        """Return a client's entries of :meth:`tallies`, in int64."""
        return {}

    # --- what both sides derive

    def tallies(self, spec: Spec) -> Mapping[str, int]:  # noqa: ARG002
        """Return the lengths of vectors of whole numbers, from 0 on, of which the server is told sums alone.

        They are summed over clients that enrol together. One part of a recipe may have some.
        """
        return {}

    def facts(self, spec: Spec) -> Fields:  # noqa: ARG002
        """Return the fields of the enrolment message that this part needs. Fields of one name are sent once."""
        return {}

    def initial(self, spec: Spec) -> frozenset[str]:  # noqa: ARG002
        """Return the parameters of whose initial values a newcomer is sent what it holds."""
        return frozenset()

    def down_fields(self, spec: Spec, part: Slice) -> Fields:  # noqa: ARG002
        """Return fields that come down beside the values, in a message about these coordinates."""
        return {}

    def up_fields(self, spec: Spec, part: Slice) -> Fields:  # noqa: ARG002
        """Return fields that go up beside the update, in a message about these coordinates."""
        return {}
