"""The reader of all data files: it looks at sizes before it takes memory, and tells the true reason of a refusal."""

import errno
import gzip
import os
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fedslice.core.errors import UserError
from fedslice.datasets import packed
from layouts import one_sentence

LIMIT = 1 << 20
SIZE_IN_DIRECTORY = 24  # where an entry of a zip's directory says what its member unpacks to


def read(path: Path, limit: int = LIMIT) -> bytes:
    return packed.load(path, limit)[1]


def zipped(path: Path, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.txt", content)
    return path


def gzipped(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content, mtime=0))
    return path


def plain(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


WRITERS: dict[str, Any] = {"a.zip": zipped, "a.gz": gzipped, "a.txt": plain}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_may_have_as_many_bytes_as_the_limit_and_no_more(tmp_path: Path, name: str) -> None:
    assert read(WRITERS[name](tmp_path / name, b"x" * 1000), 1000) == b"x" * 1000
    told = one_sentence(read, WRITERS[name](tmp_path / name, b"x" * 1001), 1000)
    assert told.startswith(f"{tmp_path / name}")
    assert "1,000" in told
    assert told.endswith("; fetch the official file.")


def claim(path: Path, size: int) -> None:
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, raw.rfind(b"PK\x01\x02") + SIZE_IN_DIRECTORY, size)
    path.write_bytes(raw)


def test_a_member_that_claims_to_be_large_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path / "a.zip", b"few")
    claim(path, 3 << 30)
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda *_: pytest.fail("it was unpacked"))
    told = one_sentence(read, path)
    assert told == f"{path}/a.txt has 3,221,225,472 bytes, expected at most 1,048,576; fetch the official file."


def test_a_member_that_claims_to_be_small_is_unpacked_no_further(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", bytes(64 * LIMIT))
    claim(path, 1000)
    assert one_sentence(read, path).startswith(f"{path} cannot be read as a zip archive (Bad CRC-32")
    assert peak(path) < LIMIT


def peak(path: Path) -> int:
    """The most bytes that are taken at once while a file is refused."""
    tracemalloc.start()
    try:
        one_sentence(read, path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_far_above_the_limit_takes_no_more_memory_than_the_limit(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, bytes(64 * LIMIT))
    assert peak(path) < 4 * LIMIT


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_unpack_without_bounds_are_refused(tmp_path: Path, method: int) -> None:
    path = zipped(tmp_path / "a.zip", bytes(1000), method)
    told = one_sentence(read, path)
    assert told.startswith(f"{path}/a.txt is packed by method {method} of the zip format, expected none or deflate; ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("name", WRITERS)
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    said = f"{path} cannot be read (it is a named pipe, expected a regular file); check it and its permissions."
    assert one_sentence(read, path) == said


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless device here")
@pytest.mark.parametrize("name", WRITERS)
def test_a_device_is_refused_behind_a_link_too(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.symlink_to("/dev/zero")
    assert "it is a device, expected a regular file" in one_sentence(read, path)
    assert stat.S_ISCHR(path.stat().st_mode)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert one_sentence(read, tmp_path).startswith(f"{tmp_path} cannot be read (")


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_without_permission_is_told_as_that(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = WRITERS[name](tmp_path / name, b"some")

    def forbidden(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", f"{path}")

    monkeypatch.setattr("fedslice.datasets.packed.open_regular", forbidden)
    assert one_sentence(read, path) == f"{path} cannot be read (Permission denied); check it and its permissions."


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_fails_is_told_as_that(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = WRITERS[name](tmp_path / name, b"some")

    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(packed, "_whole", fails)
    assert one_sentence(read, path) == f"{path} cannot be read (Input/output error); check it and its permissions."


def test_a_zip_that_points_before_its_beginning_is_damaged(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", b"some")
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, raw.rfind(b"PK\x05\x06") + 16, len(raw) * 2)  # where the directory is said to be
    path.write_bytes(raw)
    assert "cannot be read as a zip archive" in one_sentence(read, path)


def test_a_program_s_mistake_inside_an_open_zip_stays_one(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", b"some")
    with pytest.raises(RuntimeError, match="of its own"), packed.opened(path) as archive:
        raise RuntimeError(f"of its own, with {archive.filename}")
    with pytest.raises(UserError, match="elsewhere"), packed.opened(path):
        raise UserError("elsewhere")
