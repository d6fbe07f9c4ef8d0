"""Clients with networks of different widths: HeteroFL's slices and FjORD's.

HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients
    Enmao Diao, Jie Ding, Vahid Tarokh. ICLR 2021.
FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout
    Samuel Horvath, Stefanos Laskaridis, Mario Almeida, Ilias Leontiadis, Stylianos Venieris, Nicholas Lane.
    NeurIPS 2021.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.core.message import Body, Fields
from fedslice.core.part import ClientRun
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.network.graph import Layer
from fedslice.slices.narrow import WIDTH, Narrow, NarrowMemory, NarrowState, width_field
from fedslice.slices.networks import Networks
from fedslice.slices.outputs import ids_field, parameters, positions, restricted
from fedslice.task import Task

_CLASSES = "classes"


class WidthMemory(NarrowMemory):
    """The networks of clients, which lie within each other, and their classes, if those are asked for."""

    def __init__(self, run: ClientRun, place: str, networks: Networks, own_labels: bool):
        super().__init__(run, place, networks)
        self.within = networks.within()
        self.labels = _labels(run.task, networks.last) if own_labels else None


class Width(Narrow):
    """A client exchanges the first outputs and inputs of each layer; see :class:`Narrow` for ``widths``.

    Args:
        drawn: Whether a client draws a width up to its own in every round (FjORD), in place of a fixed one.
        own_labels: Whether of the last layer only rows of classes that a client has go up (HeteroFL).
    """

    label = "width"

    drawn: bool = False
    own_labels: bool = False

    @property
    def provides(self) -> frozenset[str]:
        """Rows of classes that a client has not seen stay at home."""
        found = super().provides
        if self.drawn:
            found |= {"redraws"}
        return found if self.own_labels else found | {"sends-all"}

    def client_memory(self, run: ClientRun, place: str) -> WidthMemory:
        """Look at the labels, if they choose rows of the last layer."""
        networks = self.networks(run.spec)
        self.check(run, networks)
        return WidthMemory(run, place, networks, self.own_labels)

    def hold(self, memory: Any, t: int, clients: Tensor) -> Slice:
        """The client's own width, or one drawn for this round."""
        networks: Networks = memory.networks
        return networks.slice(self._drawn(memory, t, clients))

    def request(self, memory: WidthMemory, t: int, clients: Tensor, hold: Slice) -> Body:  # noqa: ARG002
        """The width that was drawn: the server need not know how."""
        return {WIDTH: self._drawn(memory, t, clients)[:, None]} if self.drawn else {}

    def requested(self, state: NarrowState, t: int, clients: Tensor, request: Body) -> Slice:
        """By the width of this round."""
        if not self.drawn:
            return super().requested(state, t, clients, request)
        return state.networks.slice(request[WIDTH][:, 0].to(state.run.device))

    def up(
        self,
        memory: WidthMemory,
        t: int,  # noqa: ARG002
        clients: Tensor,
        hold: Slice,
        start: Values,  # noqa: ARG002
        end: Values,  # noqa: ARG002
        came: Body,  # noqa: ARG002
    ) -> tuple[Slice, Body]:
        """All of it, or of the last layer the rows of the client's own classes."""
        last = memory.networks.last
        if memory.labels is None or not parameters(last, hold):
            return hold, {}
        axis = positions(last, hold, memory.labels[clients.cpu()].to(clients.device))
        return restricted(hold, {last: axis}), {_CLASSES: axis}

    def sent(self, state: NarrowState, t: int, clients: Tensor, hold: Slice, upload: Body) -> Slice:  # noqa: ARG002
        """The same by the classes that the upload names."""
        return restricted(hold, {state.networks.last: upload[_CLASSES]}) if _CLASSES in upload else hold

    def request_fields(self, spec: Spec) -> Fields:
        """The number of a width, if one is drawn."""
        return {WIDTH: width_field(self.networks(spec))} if self.drawn else {}

    def up_ids(self, spec: Spec, hold: Slice) -> Fields:
        """The client's classes, if they choose rows of the last layer."""
        last = self.networks(spec).last
        return {_CLASSES: ids_field(last, hold)} if self.own_labels and parameters(last, hold) else {}

    def _drawn(self, memory: WidthMemory, t: int, clients: Tensor) -> Tensor:
        """The number of each client's width in round ``t``."""
        own = self.own_width(memory, clients)
        if not self.drawn:
            return own
        allowed = memory.within[own.cpu()]
        chance = rng.uniform(memory.run.seed, rng.Purpose.SLICE, t, clients.cpu().numpy())
        place = torch.from_numpy(np.floor(chance * allowed.sum(1).numpy()))
        return (allowed.cumsum(1) > place[:, None]).int().argmax(1).to(clients.device)


def _labels(task: Task, last: Layer) -> Tensor:
    """Return which classes each client has samples of [clients, outputs].

    Raises:
        UserError: If labels are no numbers of outputs of the last layer.
    """
    train = task.federation.train
    label = train.label.cpu()
    if label.is_floating_point() or label.dim() != 1 or int(label.min()) < 0 or int(label.max()) >= last.outputs:
        raise UserError(
            f"own_labels=true needs class numbers from 0 to {last.outputs - 1} as labels, for the outputs of "
            f"{last.name!r}; leave it out."
        )
    owner = torch.repeat_interleave(torch.arange(len(train.sizes)), train.sizes.cpu())
    out = torch.zeros(len(train.sizes), last.outputs, dtype=torch.bool)
    out[owner, label] = True
    return out
