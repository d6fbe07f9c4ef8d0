"""Statistics of a task: clients, samples, heat and slice sizes (FedSubAvg table 1, FedSubAvg's draft table 1)."""

from typing import Any

import torch
from torch import Tensor

from fedslice.core.encodings import Ids
from fedslice.core.slice import Slice
from fedslice.data.index_sets import IndexSets
from fedslice.panel import Cell, Panel
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
        "slice_id_bytes": _spread(sum(map(_id_bytes, task.index_sets), torch.zeros_like(everyone))),
        "tables": tables,
    }


def histogram(task: Task) -> list[dict[str, Any]]:
    """Return the number of rows by heat (FedSubAvg, figure 5), for each group of tables.

    The bins are 1, 2, 3-4, 5-8, …: heat spreads over orders of magnitude. Rows that nobody holds are in none.
    """
    return [
        {"tables": list(sets.tables), "features": list(sets.features), "bins": _bins(_counted(sets))}
        for sets in task.index_sets
    ]


def heat_panels(task: Task) -> list[Panel]:
    """The histograms as a report shows them, each with its dispersion."""
    out = []
    for position, sets in enumerate(task.index_sets):
        found = _table(task, position)
        rows: list[dict[str, Cell]] = [
            {
                "heat": f"{one['from']:,}" if one["from"] == one["to"] else f"{one['from']:,}-{one['to']:,}",
                "rows": one["rows"],
            }
            for one in found["histogram"]
        ]
        note = (
            f"How many rows of {', '.join(sets.tables)} are held by how many clients. Dispersion "
            f"{found['heat_dispersion']:,.0f}: from {found['heat_min']:,} to {found['heat_max']:,} of "
            f"{len(task.federation):,} clients."
        )
        title = f"Heat of {', '.join(sets.features)}"
        out.append(Panel(title=title, note=note, mark="bar", x="heat", y="rows", rows=rows))
    return out


def corrections(task: Task) -> dict[str, Tensor]:
    """D = diag(N/n_m) (FedSubAvg, section 4.2) for every row of every table, in float64; 0 where nobody holds the row.

    Such a row has no gradient. A parameter that is not a table is held by everyone, and its factor is one.
    """
    out: dict[str, Tensor] = {}
    for sets in task.index_sets:
        heat = sets.heat.cpu().double()
        out |= dict.fromkeys(sets.tables, torch.where(heat > 0, len(task.federation) / heat, 0.0))
    return out


def _id_bytes(sets: IndexSets) -> Tensor:
    """Bytes that name each client's rows, once for all tables of a group."""
    counts = sets.counts.cpu()
    return Ids().size(counts, torch.zeros_like(counts, dtype=torch.bool), torch.full_like(counts, sets.rows))


def _bins(heat: Tensor) -> list[dict[str, int]]:
    """Rows by heat in bins that double, up to the largest heat; empty ones between are kept."""
    held = heat[heat > 0]
    place = torch.ceil(torch.log2(held.double())).long()  # exact at powers of two, where the bins end
    return [
        {"from": 2 ** (k - 1) + 1 if k else 1, "to": 2**k, "rows": rows}
        for k, rows in enumerate(torch.bincount(place).tolist())
    ]


def _table(task: Task, position: int) -> dict[str, Any]:
    """Heat of one group of tables; rows that everyone holds by construction (padding) are left out."""
    sets = task.index_sets[position]
    heat = _counted(sets)
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
        "histogram": _bins(heat),
    }


def _counted(sets: IndexSets) -> Tensor:
    """Heat of the rows that data name; the padding row, which everyone holds, is none of them."""
    return sets.heat[1:] if sets.padded else sets.heat


def _spread(values: Tensor) -> dict[str, float]:
    values = values.double()
    return {
        "min": float(values.min()),
        "median": float(values.median()),
        "mean": float(values.mean()),
        "max": float(values.max()),
    }
