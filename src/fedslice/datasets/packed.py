"""The bytes of a data file as it was fetched: plain, gzip, or a member of a zip; nothing is unpacked on disk.

Every reader gives a limit that its official files stay below. A file that is larger, or claims to unpack to more, is
refused before it is read. Headers can lie, so no more than the limit is unpacked in any case.
"""

import errno
import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import error as StructError
from typing import IO, cast

from fedslice.core.errors import UserError
from fedslice.disk import open_regular

_DAMAGED = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    StructError,
    OverflowError,
    RuntimeError,  # an encrypted zip, or a version of the format that nobody uses (NotImplementedError)
    UnicodeDecodeError,
)
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The methods of every official archive; of the others zipfile unpacks a block of any size at once."""


def load(path: Path, limit: int, wanted: str = "") -> tuple[str, bytes]:
    """Return the name of a file for messages, and its bytes, which are not white space alone.

    A zip is asked for the member ``wanted``, or, if it has none of that name, for the only member it has.
    """
    if path.suffix == ".zip":
        with opened(path) as archive:
            name = _name(archive, path, wanted)
            place, raw = f"{path / name}", member(archive, name, limit)
    else:
        place, raw = f"{path}", file(path, limit)
    if not raw or raw.isspace():
        raise UserError(f"{place} is empty, expected lines of text; fetch the file again.")
    return place, raw


def file(path: Path, limit: int) -> bytes:
    """A file's bytes, unpacked if its name ends in .gz."""
    with _regular(path) as stream, _told(f"{path}", "gzip"):
        if path.suffix == ".gz":
            return _whole(f"{path}", cast(IO[bytes], gzip.open(stream)), limit)
        return _whole(f"{path}", stream, limit, path.stat().st_size)


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip, of which only the list of members has been read."""
    with _regular(path) as stream:
        with _told(f"{path}", "zip"):
            archive = zipfile.ZipFile(stream)
        yield archive


def member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """The bytes of a member that an opened zip lists."""
    place, info = f"{archive.filename}/{name}", archive.getinfo(name)
    if info.compress_type not in _BOUNDED:
        raise UserError(
            f"{place} is packed by method {info.compress_type} of the zip format, expected none or deflate; fetch the "
            "official archive."
        )
    with _told(f"{archive.filename}", "zip"), archive.open(info) as stream:
        return _whole(place, stream, limit, info.file_size)


def _name(archive: zipfile.ZipFile, path: Path, wanted: str) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if wanted in names or len(names) == 1:
        return wanted if wanted in names else names[0]
    raise UserError(f"{path} holds {len(names)} files and none is called {wanted}; give the official archive.")


def _whole(place: str, stream: IO[bytes], limit: int, size: int | None = None) -> bytes:
    """All of a stream that says it has ``size`` bytes, unless that or what comes is above the limit."""
    if size is not None and size > limit:
        raise UserError(f"{place} has {size:,} bytes, expected at most {limit:,}; fetch the official file.")
    raw = stream.read((limit if size is None else size) + 1)
    if len(raw) > limit:
        raise UserError(f"{place} unpacks to more than {limit:,} bytes, expected fewer; fetch the official file.")
    return raw


@contextmanager
def _regular(path: Path) -> Iterator[IO[bytes]]:
    """The opened file; a pipe could keep its reader waiting for ever, and a device give bytes without end."""
    try:
        stream = open_regular(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    with stream:
        yield stream


@contextmanager
def _told(path: str, kind: str) -> Iterator[None]:
    """Whatever is raised over a file that cannot be read or unpacked becomes one sentence."""
    try:
        yield
    except _DAMAGED as error:
        raise _damaged(path, kind, error) from error
    except OSError as error:
        if error.errno == errno.EINVAL:  # an archive that points before its own beginning
            raise _damaged(path, kind, error) from error
        raise _unreadable(path, error) from error


def _damaged(path: str, kind: str, error: Exception) -> UserError:
    found = str(error)[:100] or type(error).__name__
    return UserError(
        f"{path} cannot be read as a {kind} archive ({found}), expected the whole archive; fetch it again."
    )


def _unreadable(path: Path | str, error: OSError) -> UserError:
    return UserError(f"{path} cannot be read ({error.strerror or error}); check it and its permissions.")
