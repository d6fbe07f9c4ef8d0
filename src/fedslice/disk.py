"""Files: opened without waiting for what is no file, and written with errors that name them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from fedslice.core.errors import UserError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open for reading; anything else, such as a pipe, raises an ``OSError`` at once."""
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    kind = stat.S_IFMT(os.fstat(stream.fileno()).st_mode)
    if kind != stat.S_IFREG:
        stream.close()
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'no file')}, expected a regular file", str(path))
    return stream


def read_bytes(path: Path) -> bytes:
    """The content of a regular file."""
    with open_regular(path) as stream:
        return stream.read()


def reason(error: Exception) -> str:
    """An error of the system in its own words, without its number and the file, which the sentence names."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell an error of the block, which writes this file, in a sentence: a full disk, missing permissions."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be written ({reason(error)}); make room or correct its permissions, and give the same "
            "command again, with --resume if a run was under way."
        ) from error
