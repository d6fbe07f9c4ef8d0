"""The tasks that come with the library, by name."""

from fedslice.core.errors import unknown
from fedslice.tasks import agnews, amazon, example1, hotcold, images, movielens, renttherunway, sent140, taobao
from fedslice.tasks.entry import Entry

TASKS: dict[str, Entry] = {
    "hotcold": hotcold.ENTRY,
    "example1": example1.ENTRY,
    "movielens": movielens.ENTRY,
    "amazon": amazon.ENTRY,
    "sent140": sent140.ENTRY,
    "renttherunway": renttherunway.ENTRY,
    "taobao": taobao.ENTRY,
    **{entry.name: entry for entry in images.ENTRIES},
    "agnews": agnews.ENTRY,
}


def get(name: str) -> Entry:
    """A task's entry in the table."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


__all__ = ["TASKS", "Entry", "get"]
