"""Share of the model that each client holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedslice.panel import Panel, histogram

if TYPE_CHECKING:
    from fedslice.core.part import ClientRun

_AT_ONCE = 4096  # clients whose slices are looked at together


def size_panels(run: ClientRun) -> list[Panel]:
    """Return what a report shows of the sizes of clients' slices: nothing, if all clients hold equally much."""
    everyone = torch.arange(len(run.task.federation))
    held = torch.cat([run.held(some) for some in everyone.split(_AT_ONCE)]) * run.spec.itemsize
    low, high, whole = int(held.min()), int(held.max()), run.spec.size * run.spec.itemsize
    if low == high:
        return []
    note = (
        f"Values that a client holds: {low / 1000:,.1f} to {high / 1000:,.1f} kB, "
        f"{float(held.double().mean()) / whole:.2%} of the model's {whole / 1000:,.1f} kB on average."
    )
    return [histogram("Slice sizes", held / 1000, "slice (kB)", note=note)]
