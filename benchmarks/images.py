"""The image race: 10 clients with 500 pictures each, one pass in batches of 32, FedDD's CNN2 on CIFAR-10's shape."""

from typing import Any

from fedslice import tasks
from fedslice.task import Task

SETTINGS: dict[str, Any] = {"lr": 0.05, "batch_size": 32, "epochs": 1}


def task() -> Task:
    """Generated pictures: what they show does not matter for time."""
    return tasks.get("cifar10").build({"train": 5000, "clients": 10}, None)
