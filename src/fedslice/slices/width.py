"""Clients with networks of different widths: HeteroFL's slices and FjORD's."""

from __future__ import annotations

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice import rng
from fedslice.channels import Layer
from fedslice.errors import UserError
from fedslice.parts import CHECKED, World
from fedslice.slice import Axis, Slice, Values
from fedslice.slices.narrow import Narrow
from fedslice.task import Task


@dataclass(config=CHECKED)
class Width(Narrow):
    """A client exchanges the first outputs and inputs of each layer; see :class:`Narrow` for ``widths``.

    ``drawn``: the client's width is the widest it can train, and in every round it draws one among those that are no
    wider (ordered dropout of FjORD, with a width per round). ``own_labels``: of the last layer only the rows of classes
    that the client has samples of go up (HeteroFL's masking).
    """

    label = "width"

    drawn: bool = False
    own_labels: bool = False

    @property
    def sends_all(self) -> bool:
        """Rows of classes that a client has not seen stay at home."""
        return not self.own_labels

    def setup(self, world: World) -> None:
        """Which widths are within which, and who has samples of which classes."""
        super().setup(world)
        self._seed = world.seed
        outputs = torch.stack([counts[:, 0] for counts in self._counts.values()], 1)
        self._within = (outputs[None] <= outputs[:, None]).all(2)  # [own, other]
        self._last = next(layer for layer in self._layers.values() if layer.last)
        self._labels = _labels(world.task, self._last) if self.own_labels else None

    def hold(self, t: int, clients: Tensor) -> Slice:
        """The client's own width, or one drawn for this round."""
        own = self._width(clients)
        if self.drawn:
            allowed = self._within[own.cpu()]
            chance = rng.uniform(self._seed, rng.Purpose.SLICE, t, clients.cpu().numpy())
            place = torch.from_numpy(np.floor(chance * allowed.sum(1).numpy()))
            own = (allowed.cumsum(1) > place[:, None]).int().argmax(1).to(clients.device)
        return self._slice(own)

    def up(self, t: int, clients: Tensor, hold: Slice, start: Values, end: Values) -> Slice:  # noqa: ARG002
        """All of it, or of the last layer the rows of the client's own classes."""
        if self._labels is None:
            return hold
        axis = Axis.from_mask(self._labels[clients.cpu()].to(clients.device))
        return hold.replace(dict.fromkeys(self._last.parameters, axis))


def _labels(task: Task, last: Layer) -> Tensor:
    """[clients, outputs]: which classes each client has samples of."""
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
