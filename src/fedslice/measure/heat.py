"""What a task looks like to federated learning: clients, samples, heat and slice sizes (S0 table 1, S1 table 1)."""

from typing import Any

import torch

from fedslice.slice import Slice
from fedslice.task import Task


def describe(task: Task) -> dict[str, Any]:
    """The statistics of a task's training population, with one entry per group of tables."""
    sizes = task.federation.train.sizes.cpu()
    everyone = torch.arange(len(task.federation))
    axes = {name: sets.axis(everyone) for sets in task.index_sets for name in sets.tables}
    whole = Slice.whole(len(everyone), task.shapes)
    rows = whole.replace(axes)
    tables = [_table(task, position) for position in range(len(task.index_sets))]
    return {
        "task": task.name,
        "source": task.source,
        "clients": len(task.federation),
        "train_samples": len(task.federation.train),
        "test_samples": len(task.federation.test),
        "samples_per_client": _spread(sizes),
        "feature_heat_dispersion": max((table["heat_dispersion"] for table in tables), default=1.0),
        "parameters": sum(shape.numel() for shape in task.shapes.values()),
        "model_bytes": int(whole.numbers()[0]) * task.itemsize,
        "slice_bytes": _spread(rows.numbers() * task.itemsize),
        "slice_id_bytes": _spread(rows.id_bytes()),
        "tables": tables,
    }


def _table(task: Task, position: int) -> dict[str, Any]:
    """Heat of one group of tables; rows that everyone holds by construction (padding) are left out."""
    sets = task.index_sets[position]
    heat = sets.heat[1:] if sets.padded else sets.heat
    held = heat[heat > 0]
    return {
        "tables": list(sets.tables),
        "features": list(sets.features),
        "rows": sets.rows,
        "rows_held": len(held),
        "rows_per_client": _spread(sets.counts.cpu()),
        "heat_max": int(held.max()),
        "heat_min": int(held.min()),
        "heat_median": float(held.double().median()),
        "heat_dispersion": float(held.max() / held.min()),
        "sparsity": float(heat.double().mean() / len(task.federation)),
    }


def _spread(values: torch.Tensor) -> dict[str, float]:
    values = values.double()
    return {
        "min": float(values.min()),
        "median": float(values.median()),
        "mean": float(values.mean()),
        "max": float(values.max()),
    }
