"""The bytes of a data file as it was fetched: plain, gzip, or one member of a zip; nothing is unpacked on disk."""

import gzip
import zipfile
import zlib
from contextlib import nullcontext
from pathlib import Path
from struct import error as StructError
from typing import IO, cast

from fedslice.datasets import lines
from fedslice.disk import open_regular
from fedslice.errors import UserError


def load(path: Path, member: str = "") -> tuple[str, bytes]:
    """What a sentence should call the file, and its bytes.

    A zip is asked for the member of that name, or, if it has none, for the only member it has.
    """
    kind = {".gz": "gzip", ".zip": "zip"}.get(path.suffix, "")
    place = f"{path}"
    try:
        if kind == "zip":
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                name = _member(archive, path, member)
                place = f"{path / name}"
                with archive.open(name) as stream:
                    raw = _whole(place, stream)
        else:
            with open_regular(path) as file, gzip.open(file) if kind else nullcontext(file) as stream:
                raw = _whole(place, cast(IO[bytes], stream))
    except (
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        zipfile.BadZipFile,
        StructError,
        OverflowError,
        RuntimeError,  # an encrypted zip, or a compression method nobody uses (NotImplementedError)
        UnicodeDecodeError,
    ) as error:
        raise UserError(
            f"{path} cannot be read as a {kind} archive ({str(error) or type(error).__name__}), "
            "expected the whole archive; fetch it again."
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); check it and its permissions.") from error
    if not raw.strip():
        raise UserError(f"{place} is empty, expected lines of text; fetch the file again.")
    return place, raw


def _member(archive: zipfile.ZipFile, path: Path, wanted: str) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if wanted in names or len(names) == 1:
        return wanted if wanted in names else names[0]
    raise UserError(f"{path} holds {len(names)} files and none is called {wanted}; give the official archive.")


def _whole(place: str, stream: IO[bytes]) -> bytes:
    """All of it, unless it is absurdly large: what a header claims about the size is not believed."""
    raw = stream.read(lines.MAX_BYTES + 1)
    if len(raw) > lines.MAX_BYTES:
        raise UserError(f"{place} has more than {lines.MAX_BYTES:,} bytes, expected far less; fetch the official file.")
    return raw
