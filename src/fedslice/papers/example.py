"""FedSubAvg, figure 2: FedAvg and FedSubAvg on example 1, round by round, against their closed forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedslice.config import resolve
from fedslice.papers.exhibits import Cell, Exhibit, Line, Setup
from fedslice.papers.jobs import Order, scaled
from fedslice.papers.verdicts import FAILS, HOLDS, Verdict

Document = dict[str, Any]
ROUNDS = 50
EXACT = 1e-12  # of the starting point: what double precision leaves of an equality


def rows(name: str, exhibit: Exhibit, setups: Mapping[str, Setup], order: Order) -> list[Document]:
    """One row per line and reading."""
    order.console.print(f"{name}: {sum(len(line.cells) for line in exhibit.row)} trajectories", soft_wrap=True)
    return [_row(line, setups[setup], order) for line in exhibit.row for setup in line.setups]


def _row(line: Line, setup: Setup, order: Order) -> Document:
    return {
        "row": line.paper,
        "reading": setup.reading,
        "task": setup.task,
        "source": None,
        "standin": setup.standin,
        "note": setup.note,
        "cells": [_cell(cell, setup, order) for cell in line.cells],
    }


def _cell(cell: Cell, setup: Setup, order: Order) -> Document:
    """w1 is row 0 of the table and belongs to one client, w2 is row 1 and belongs to everyone."""
    asked = order.request(
        setup, setup.settings(cell, 1.0), recipe=cell.recipe, rounds=scaled(ROUNDS, order.scale), eval_every=1
    )
    plan = resolve(asked)
    experiment = plan.experiment()
    start = experiment.model["w"].flatten().tolist()
    factors = closed_form(cell.recipe, plan.recipe.local.optimizer.lr, len(plan.task.federation))
    path, error = [], 0.0
    for row in experiment.stream():
        point = experiment.model["w"].flatten().tolist()
        exact = [value * factor ** row["round"] for value, factor in zip(start, factors, strict=True)]
        error = max(error, *(abs(found - wanted) for found, wanted in zip(point, exact, strict=True)))
        path.append({"round": row["round"], "w1": point[0], "w2": point[1], "loss": row["train_loss"]})
    exact_enough = error <= EXACT * max(map(abs, start))
    verdict = Verdict(HOLDS) if exact_enough else Verdict(FAILS, f"off by {error:.2g}")
    return {
        "cell": cell.name,
        "recipe": cell.recipe,
        "settings": asked.set,
        "command": asked.command(),
        "max_error": error,
        "trajectory": path,
        **verdict.document(),
    }


def closed_form(recipe: str, rate: float, clients: int) -> tuple[float, float]:
    """By what w1 and w2 are multiplied in a round (FedSubAvg, sections 3.1 and 3.2)."""
    fast = 1 - 2 * rate
    return (fast if recipe == "fedsubavg" else 1 - 2 * rate / clients), fast
