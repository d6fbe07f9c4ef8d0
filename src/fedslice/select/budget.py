"""Shared by selections by device speed under a budget of parameters (FedDD, section 6.2: FedCS and Oort)."""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from fedslice.core.errors import UserError
from fedslice.core.facts import facts
from fedslice.core.memory import Memory
from fedslice.core.message import Fields
from fedslice.core.part import ClientRun, ServerRun
from fedslice.core.spec import Spec
from fedslice.select.base import Cohort, Select

Numbers = NDArray[np.int64]
Vector = NDArray[np.float64]
Share = Annotated[float, Field(gt=0, le=1)]
_SLACK = 1e-14  # a share of the total that is rounding: 0.57 of 100 is not 57 in binary


class BySpeed(Select):
    """A selection for which clients say, once, how long they take and how much they hold."""

    asked: ClassVar[tuple[str, ...]] = ("pace", "held")

    def facts(self, spec: Spec) -> Fields:
        """Pace and size."""
        return facts(self.asked, spec)

    def client_memory(self, run: ClientRun, place: str) -> Memory:
        """Refuse clients that do not know how fast they are."""
        if run.devices is None:
            raise UserError(
                f"select={self.label} needs to know how fast devices are, but the run has none; "
                "add --devices feddd, or devices=Devices.drawn(clients, seed) in Python."
            )
        return Memory(run, place)


class Known(NamedTuple):
    """Facts of the enrolled clients, in the order of their numbers.

    A round of a client that exchanges all it holds takes download + training + upload (FedDD, equations 7, 9 and 11 at
    D_n = 0), in seconds.
    """

    numbers: Numbers
    held: Numbers
    download: Vector
    training: Vector
    upload: Vector

    @classmethod
    def of(cls, run: ServerRun) -> Known:
        """Return it."""
        enrolled = run.enrolled
        held, pace = enrolled.all_facts("held")[:, 0], enrolled.all_facts("pace").numpy()
        return cls(enrolled.numbers().numpy(), held.numpy(), pace[:, 0], pace[:, 1], pace[:, 2])

    @property
    def seconds(self) -> Vector:
        """Return the seconds of each client's round."""
        return self.download + self.training + self.upload


def affordable(order: Numbers, sizes: Numbers, budget: float) -> Numbers:
    """Return the longest beginning of an order of clients that holds at most this share of all; one client at least."""
    spent = sizes[order].cumsum()
    fit = np.searchsorted(spent, (budget + _SLACK) * sizes.sum(), side="right")
    return order[: max(int(fit), 1)]


def cohort(clients: Numbers) -> Cohort:
    """Return distinct clients as a cohort."""
    return Cohort(torch.from_numpy(np.sort(clients)), torch.zeros(len(clients), dtype=torch.int64))
