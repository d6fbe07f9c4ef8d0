"""Facts about clients that parts may ask for at enrolment: what each is, how it travels, and how a client knows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedslice.core.encodings import Counts, Floats, Ids
from fedslice.core.message import Field, Fields
from fedslice.core.spec import Spec
from fedslice.network.head import head

if TYPE_CHECKING:
    from fedslice.core.part import ClientRun
    from fedslice.core.spec import Spec

_LONGEST = 1e9  # seconds that a part of a round may take, about 30 years


@dataclass(frozen=True)
class Fact:
    """A number, or a few, that a client tells of itself once.

    Args:
        about: What it reveals, in plain words.
        field: How it travels, if need be by the network.
        tell: Return it for some clients [clients, ...].
    """

    about: str
    field: Field | Callable[[Spec], Field]
    tell: Callable[[ClientRun, Tensor], Tensor]


def _samples(run: ClientRun, clients: Tensor) -> Tensor:
    return run.task.federation.train.sizes_of(clients).cpu()[:, None]


def _held(run: ClientRun, clients: Tensor) -> Tensor:
    return run.held(clients)[:, None]


def _pace(run: ClientRun, clients: Tensor) -> Tensor:
    """Seconds to download, train and upload if all that is held travels (FedDD, equations 7, 9 and 11 at D = 0)."""
    assert run.devices is not None, "a part that asks for the pace refuses a run without devices"
    who, held = clients.cpu().numpy(), (run.held(clients) * run.spec.itemsize).numpy()
    parts = [
        run.devices.seconds(who, 0, 0, held),
        run.devices.seconds(who, run.samples(clients).numpy(), 0, 0),
        run.devices.seconds(who, 0, held, 0),
    ]
    return torch.from_numpy(np.stack(parts, 1))


def _held_field(spec: Spec) -> Field:
    return Field(Counts(64, most=spec.size), shape=(1,))


def _label_field(spec: Spec) -> Field:
    return Field(Counts(32), shape=(_classes(spec),))


def _labels(run: ClientRun, clients: Tensor) -> Tensor:
    """Return the number of samples of each label; a label beyond the classes counts as the nearest."""
    train, classes, who = run.task.federation.train, _classes(run.spec), clients.cpu()
    sizes, starts = train.sizes_of(who.to(train.offsets.device)).cpu(), train.offsets.cpu()[who]
    owner = torch.arange(len(who)).repeat_interleave(sizes)
    own = torch.arange(len(owner)) + (starts - sizes.cumsum(0) + sizes)[owner]
    label = train.label[own.to(train.label.device)].cpu()
    if label.dim() > 1:  # no class, but measurements
        label = torch.zeros_like(owner)
    place = owner * classes + label.long().clamp(0, classes - 1)
    return torch.bincount(place, minlength=len(who) * classes).view(-1, classes)


def _classes(spec: Spec) -> int:
    """Return the number of classes that the last layer tells apart: its outputs, and two for a single one."""
    return max(2, head(spec, "the fact 'labels'").classes)


FACTS: dict[str, Fact] = {
    "samples": Fact("how many training samples it has", Field(Counts(32), shape=(1,)), _samples),
    "held": Fact("how many values of the model it holds", _held_field, _held),
    "pace": Fact(
        "how many seconds its device takes to download, train and upload",
        Field(Floats(torch.float64, negative=False, most=_LONGEST), shape=(3,)),
        _pace,
    ),
    "labels": Fact("how many training samples of each class it has", _label_field, _labels),
}


def facts(names: Iterable[str], spec: Spec) -> Fields:
    """Return the fields of these facts, of which some depend on the network."""
    found: dict[str, Field] = {}
    for name in names:
        field = FACTS[name].field
        if not isinstance(field, Field):
            field = field(spec)
        found[name] = replace(field, about=FACTS[name].about)
    return found


def row_fields(spec: Spec) -> Fields:
    """Return a field per group of tables that names rows of it."""
    return {
        row_name(group.name): Field(Ids(), of=group.rows, about=f"the rows of {', '.join(group.tables)} that it has")
        for group in spec.groups
    }


def row_name(group: str) -> str:
    """Return the name of the field that names rows of this group."""
    return f"rows/{group}"
