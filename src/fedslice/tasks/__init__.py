"""The tasks that come with the library, by name."""

from fedslice.errors import unknown
from fedslice.tasks import amazon, hotcold, movielens
from fedslice.tasks.entry import Entry

TASKS: dict[str, Entry] = {
    "hotcold": hotcold.ENTRY,
    "movielens": movielens.ENTRY,
    "amazon": amazon.ENTRY,
}


def get(name: str) -> Entry:
    """A task's entry in the table."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


__all__ = ["TASKS", "Entry", "get"]
