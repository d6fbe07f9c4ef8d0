"""Narrow models: a client holds the first outputs and the first inputs of each layer (FedDD, tables 3 and 6)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import BeforeValidator, field_validator
from torch import Tensor

from fedslice.core.encodings import Counts
from fedslice.core.errors import UserError
from fedslice.core.facts import FACTS
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Field, Fields
from fedslice.core.part import ClientRun, ServerRun, State
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec
from fedslice.network.graph import Layer, Prefixes, same_when_narrow
from fedslice.slices.base import Slices
from fedslice.slices.networks import Networks, parse, texts
from fedslice.task import Task, evaluating

WIDTH = "width"


class NarrowState(State):
    """The network of several that each client holds, as it said when it enrolled."""

    def __init__(self, run: ServerRun, networks: Networks):
        super().__init__(run)
        self.networks = networks
        self._coverage: dict[str, tuple[int, Tensor]] = {}

    def widths(self, clients: Tensor) -> Tensor:
        """Return the number of each client's network [clients]."""
        if not self.networks.differ:
            return torch.zeros(len(clients), dtype=torch.int64, device=self.run.device)
        return self.run.enrolled.facts(WIDTH, clients)[:, 0].to(self.run.device)

    def held(self) -> Tensor:
        """Return how many values each enrolled client holds, in the order of their numbers."""
        return self.networks.sizes()[self.widths(self.run.enrolled.numbers()).cpu()]

    def coverage(self, layer: Layer) -> Tensor:
        """Return CR(k) of FedDD's equation 21, the share of all enrolled clients that hold channel k [outputs]."""
        version = self.run.enrolled.version
        if self._coverage.get(layer.name, (None,))[0] != version:
            each = self.widths(self.run.enrolled.numbers()).cpu()
            found = self.networks.coverage(layer, torch.bincount(each, minlength=len(self.networks)))
            self._coverage[layer.name] = version, found.to(self.run.device, self.run.spec.dtype)
        return self._coverage[layer.name][1]


class NarrowMemory(Memory):
    """The networks that clients may hold."""

    def __init__(self, run: ClientRun, place: str, networks: Networks):
        super().__init__(run, place)
        self.networks = networks


class Narrow(Slices):
    """Slices by width: clients hold networks of different ``widths``, in turn.

    Client n has number n of the list, over and over, and says so when it enrols.

    Args:
        widths: Widths of the clients' networks, separated by commas, in turn: shares of each layer's outputs
            (``1,0.5``) or numbers of outputs (``32-64-100``); ``feddd-a`` and ``feddd-b`` are sets of FedDD's.
    """

    widths: Annotated[str, BeforeValidator(str)] = "1"

    @property
    def provides(self) -> frozenset[str]:
        """Clients' layers may differ in size."""
        return frozenset({"narrows"})

    @field_validator("widths")
    @classmethod
    def _read(cls, text: str) -> str:
        parse(text)
        return text

    def server_state(self, run: ServerRun) -> NarrowState:
        """Read the network, which is refused if it cannot be narrowed."""
        return NarrowState(run, self.networks(run.spec))

    def client_memory(self, run: ClientRun, place: str) -> NarrowMemory:
        """Try the narrow networks on the clients' own samples: the graph does not show everything."""
        networks = self.networks(run.spec)
        self.check(run, networks)
        return NarrowMemory(run, place, networks)

    def facts(self, spec: Spec) -> Fields:
        """The number of the client's network, if it makes a difference."""
        networks = self.networks(spec)
        return {WIDTH: width_field(networks)} if networks.differ else {}

    def introduce(self, memory: NarrowMemory, clients: Tensor) -> Body:
        """The same, and what else a part asks for."""
        asked = self.facts(memory.run.spec)
        told: Body = {name: FACTS[name].tell(memory.run, clients) for name in asked if name != WIDTH}
        if WIDTH in asked:
            told[WIDTH] = self.own_width(memory, clients)[:, None]
        return told

    def hold(self, memory: NarrowMemory, t: int, clients: Tensor) -> Slice:  # noqa: ARG002
        """The first outputs and inputs of every layer."""
        return memory.networks.slice(self.own_width(memory, clients))

    def held(self, memory: NarrowMemory, clients: Tensor) -> Tensor:
        """By each client's own width."""
        return memory.networks.sizes()[self.own_width(memory, clients).cpu()]

    def requested(self, state: NarrowState, t: int, clients: Tensor, request: Body) -> Slice:  # noqa: ARG002
        """The same by the widths that clients enrolled with."""
        return state.networks.slice(state.widths(clients))

    def own_width(self, memory: NarrowMemory, clients: Tensor) -> Tensor:
        """Return the number of each client's network."""
        return clients % len(memory.networks)

    def networks(self, spec: Spec) -> Networks:
        """Return the networks of all widths.

        Raises:
            UserError: If the network cannot be narrowed.
        """

        def read() -> Networks:
            try:
                return Networks(spec.module, spec.shapes, self.widths)
            except UserError as error:
                raise UserError(f"slices={self.label}: {error}") from None

        return spec.once((Networks, self.widths), read)

    def check(self, run: ClientRun, networks: Networks) -> None:
        """Compare each narrow network with the whole one, on a few of the clients' samples.

        Raises:
            UserError: If one fails or gives another result.
        """
        if networks.whole:
            return
        for text, one in zip(texts(self.widths), networks.held, strict=True):
            if not _agrees(run.task, one):
                raise UserError(
                    f"{type(run.task.module).__name__} cannot be narrowed to widths={text}: it then fails or gives "
                    "another result than with the other channels at zero; its forward must take sizes from its input, "
                    "as x.flatten(1) does."
                )


def width_field(networks: Networks) -> Field:
    """Return the field of a network's number."""
    return Field(Counts(8, most=len(networks) - 1), shape=(1,), about="the number of its network's width")


def _agrees(task: Task, held: Prefixes) -> bool:
    """Does the narrow network give what the whole one gives whose other channels are zero, on a few samples?"""
    train = task.federation.train
    features, _ = train.batch(torch.arange(min(2, len(train)), device=train.offsets.device))
    chance = torch.Generator().manual_seed(0)  # a network may begin with zeros, which would hide a difference
    whole = {
        name: 0.1 * torch.randn(shape, generator=chance).to(train.offsets.device) for name, shape in task.shapes.items()
    }
    with torch.no_grad(), evaluating(task.module):
        return same_when_narrow(lambda values: task.forward(values, features), whole, held)
