"""What selection by device speed under a budget of parameters has in common (S3, section 6.2: FedCS and Oort)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from fedslice.devices import Devices, Vector
from fedslice.errors import UserError
from fedslice.parts import World
from fedslice.select.base import Cohort

Numbers = NDArray[np.int64]
Share = Annotated[float, Field(gt=0, le=1)]
_SLACK = 1e-14  # a share of the total that is rounding: 0.57 of 100 is not 57 in binary


def known_devices(world: World, label: str) -> Devices:
    """The devices of a run, without which speed says nothing."""
    if world.devices is None:
        raise UserError(
            f"select={label} needs to know how fast devices are, but the run has none; "
            "add --devices feddd, or devices=Devices.drawn(clients, seed) in Python."
        )
    return world.devices


def full_seconds(world: World, devices: Devices, training: bool = True) -> Vector:
    """t_n of every client that exchanges all it holds (S3, equations 7, 9 and 11 at D_n = 0), or that without t_cmp."""
    held = world.round_bytes().cpu()
    return devices.seconds(np.arange(len(devices)), world.round_samples() if training else 0, held, held)


def affordable(order: Numbers, sizes: Numbers, budget: float) -> Numbers:
    """The longest beginning of an order of clients whose sizes sum to at most this share of all, but one at least."""
    spent = sizes[order].cumsum()
    fit = np.searchsorted(spent, (budget + _SLACK) * sizes.sum(), side="right")
    return order[: max(int(fit), 1)]


def cohort(clients: Numbers) -> Cohort:
    """Distinct clients as a cohort."""
    return Cohort(torch.from_numpy(np.sort(clients)), torch.zeros(len(clients), dtype=torch.int64))
