"""The memory and the disk space that a process may still take."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from math import inf
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))  # of version 2, of 1
_CACHE = ("inactive_file ", "total_inactive_file ")  # pages of files, which a group in need gives back


def free_memory() -> float:
    """Bytes of memory that are free, of the machine and of the control groups that the process belongs to.

    The memory of the whole machine where its system does not tell what is free, infinity where it tells nothing.
    """
    return min([_machine(), *(_left(group) for group in _groups())])


def free_disk(folder: Path) -> float:
    """Bytes that are free on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(next(place for place in (folder, *folder.absolute().parents) if place.exists())).free


def gib(size: float) -> str:
    """A number of bytes as text."""
    return f"{size / 2**30:,.1f} GiB"


def _machine() -> float:
    for line in _lines(_PROC / "meminfo"):
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else inf


def _groups() -> Iterator[Path]:
    """The folders of the process's memory groups, each with those around it; inside a container some are not there."""
    for line in _lines(_PROC / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            root = _CGROUPS / "memory" if controllers else _CGROUPS
            inner = Path(path.lstrip("/"))
            yield from (root / part for part in (inner, *inner.parents))


def _left(group: Path) -> float:
    """Bytes up to a group's limit."""
    for limit, usage in _LIMITS:
        try:
            most, used = int((group / limit).read_text()), int((group / usage).read_text())
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
        cached = [int(line.split()[1]) for line in _lines(group / "memory.stat") if line.startswith(_CACHE)]
        return max(0, most - used + max(cached, default=0))
    return inf


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
