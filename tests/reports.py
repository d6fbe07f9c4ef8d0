"""Runs as a reader finds them, without having trained anything."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedslice.panel import Panel
from fedslice.runs.run import Run
from fedslice.schema import Column

Rows = list[dict[str, Any]]


def run(
    recipe: str = "fedavg",
    seed: int = 0,
    rows: Rows | None = None,
    *,
    task: dict[str, Any] | None = None,
    panels: list[Panel] | None = None,
    finished: bool = True,
    command: str | None = None,
    rounds: int = 100,
    parts: dict[str, Any] | None = None,
    devices: str | None = None,
) -> Run:
    config = {
        "task": {"name": "toy", "source": "a few numbers", **(task or {})},
        "recipe": {
            "name": recipe,
            "select": {"name": "uniform", "cohort": 5},
            "local": {"name": "sgd", "lr": 0.1},
            **(parts or {}),
        },
        "rounds": rounds,
        "seed": seed,
        **({} if devices is None else {"devices": devices}),
    }
    given = log() if rows is None else rows
    path = Path(f"{config['task']['name']}-{recipe}-{seed}")
    return Run(path, config, {"python": "3.11.7"}, command, panels or [], given, finished)


def log(*scores: float | None, up: int = 1000, every: int = 10, **more: list[float | None]) -> Rows:
    """An evaluation per score."""
    return [
        {
            "round": every * place,
            "train_loss": None if score is None else 1 - score,
            "test_auc": score,
            "up_bytes": up * every * place,
            "down_bytes": 2 * up * every * place,
            "rejected": 0,
            "seconds": 0.5 * place,
            **{name: values[place] for name, values in more.items()},
        }
        for place, score in enumerate(scores or (0.5, 0.6, 0.7))
    ]


def declared(run: Run, **lower_is_better: bool) -> Run:
    """The same run, which says of which scores less is better."""
    columns = {name: Column(name, "score", lower_is_better=lower) for name, lower in lower_is_better.items()}
    return replace(run, columns=columns)
