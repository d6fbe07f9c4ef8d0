"""What is free: the machine's memory, what control groups leave of it, and disks."""

from pathlib import Path

import pytest

from fedslice import room

GB = 2**30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of which 8 GiB are free, and no limits."""
    monkeypatch.setattr(room, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(room, "_CGROUPS", tmp_path / "groups")
    write(tmp_path / "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {8 * GB // 1024} kB\n")
    return tmp_path


def write(path: Path, text: str | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_without_limits_it_is_what_the_machine_has(machine: Path) -> None:
    assert room.free_memory() == 8 * GB
    write(machine / "proc/self/cgroup", "0::/job\n1:cpu:/job")
    write(machine / "groups/job/memory.max", "max")
    write(machine / "groups/job/memory.current", GB)
    assert room.free_memory() == 8 * GB


@pytest.mark.parametrize("group", ["", "job", "job/part"])
@pytest.mark.parametrize(
    ("line", "root", "limit", "usage", "cache"),
    [
        ("0::/job/part", "groups", "memory.max", "memory.current", "inactive_file"),
        (
            "4:cpu,memory:/job/part",
            "groups/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_a_group_around_the_process_limits_it_and_gives_back_what_is_cached(
    machine: Path, group: str, line: str, root: str, limit: str, usage: str, cache: str
) -> None:
    write(machine / "proc/self/cgroup", line)
    write(machine / root / group / limit, 3 * GB)
    write(machine / root / group / usage, 2 * GB)
    assert room.free_memory() == GB
    write(machine / root / group / "memory.stat", f"anon 5\n{cache} {GB // 2}")
    assert room.free_memory() == 1.5 * GB
    write(machine / root / group / usage, 9 * GB)
    assert room.free_memory() == 0


def test_a_system_that_tells_nothing_has_the_memory_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_PROC", tmp_path)
    assert room.free_memory() > 2**20


def test_the_disk_of_a_folder_that_is_not_there_yet_is_that_of_the_one_around_it(tmp_path: Path) -> None:
    assert room.free_disk(tmp_path / "not/yet") == pytest.approx(room.free_disk(tmp_path), rel=0.1)
