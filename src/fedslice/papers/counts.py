"""Exhibits of data sets: statistics and heat (FedSubAvg, table 1 and figure 5; its draft, table 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fedslice.config import build_task
from fedslice.core.errors import UserError
from fedslice.data.ragged import Ragged, ranges
from fedslice.measure.heat import describe, histogram
from fedslice.papers import verdicts
from fedslice.papers.exhibits import Column, Exhibit, Line, Setup
from fedslice.papers.jobs import Order
from fedslice.papers.verdicts import INCOMPARABLE, Verdict
from fedslice.task import Task

Document = dict[str, Any]


def rows(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Document]:
    """One row per line and reading; a task whose data are missing says so in its row."""
    look = _values if exhibit.kind == "statistics" else _heat
    out = []
    for line in exhibit.row:
        for setup in line.setups:
            order.console.print(f"{name}: {line.paper}, {setups[setup].reading}", soft_wrap=True)
            out.append(_row(line, setups[setup], order, look))
    return out


def _row(line: Line, setup: Setup, order: Order, look: Callable[[Task, Line], Document]) -> Document:
    scale = f"scaled to {order.scale:g} of the clients" if setup.population and order.scale != 1 else None
    source, error, found = None, None, {}
    asked = order.request(setup, setup.options(order.scale))
    try:
        task = build_task(asked)
        source, found = task.source, look(task, line)
    except UserError as problem:
        error = str(problem)
    return {
        "row": line.paper,
        "reading": line.reading or setup.reading,
        "task": setup.task,
        "source": source,
        "standin": setup.standin,
        "note": setup.note,
        "settings": asked.set,
        "command": asked.command("inspect"),
        "error": error,
        **found,
        "values": [
            {
                "value": name,
                "paper": paper,
                "measured": found.get("statistics", {}).get(name),
                **_judge(name, paper, found, setup, error, scale).document(),
            }
            for name, paper in line.values.items()
        ],
    }


def _judge(name: str, paper: float, found: Document, setup: Setup, error: str | None, scale: str | None) -> Verdict:
    if error is not None:
        return Verdict(INCOMPARABLE, f"not run: {error}")
    if scale or setup.standin:
        return Verdict(INCOMPARABLE, scale or "other data")
    measured = found["statistics"][name]
    verdict = verdicts.counted(name, paper, measured)
    if setup.part is not None and name.startswith("samples") and verdict.verdict == verdicts.FAILS and measured < paper:
        return Verdict(INCOMPARABLE, setup.part)
    return verdict


def _values(task: Task, line: Line) -> Document:
    """The numbers of FedSubAvg's and the draft's tables 1."""
    if line.column is not None:
        return {"statistics": {"sparsity": column_sparsity(task, line.column)}}
    found = describe(task)
    samples = found["train_samples"] + found["test_samples"]
    numbers = {
        "clients": found["clients"],
        "samples": samples,
        "samples_per_client": samples / found["clients"],
        "dispersion": found["feature_heat_dispersion"],
        "sparsity": found["slice_bytes"]["mean"] / found["model_bytes"],
    }
    return {"statistics": numbers}


def _heat(task: Task, line: Line) -> Document:  # noqa: ARG001
    return {"histogram": histogram(task)}


def column_sparsity(task: Task, column: Column) -> float:
    """Mean share of clients that involve a row, over the rows that one column of a feature indexes."""
    parts = [task.federation.train, *([task.federation.test] if column.samples == "all" else [])]
    pairs = []
    for samples in parts:
        ids = samples.features[column.feature]
        if isinstance(ids, Ragged):
            raise UserError(f"feature {column.feature!r} is a sequence, which has no columns; name another feature.")
        index, owner = ranges(samples.offsets, torch.arange(len(task.federation)))
        pairs.append(torch.stack([owner, ids[index, column.place].long()], 1).numpy())
    return len(np.unique(np.concatenate(pairs), axis=0)) / (len(task.federation) * column.rows)
