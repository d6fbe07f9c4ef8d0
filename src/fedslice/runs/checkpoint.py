"""Tensors and JSON in one file that is always whole: a crash leaves the old file or the new one.

The format is plain safetensors, readable by any tool that knows it, and nothing is ever unpickled.
Safetensors itself notices a file that was cut short but not a changed byte, so a checksum goes into the
header: a run must never go on from numbers that nobody computed.
"""

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.disk import open_regular, reason, writing

_BODY = "fedslice"  # the header entry that holds our JSON, and marks the file as ours
_CHECKSUM = "crc32"
_TEMPORARY = ".tmp"  # how safetensors begins the name of the file that it writes first
REMEDY = "restore it from a copy, or delete it and the run starts over from its first round"


def save(path: Path, tensors: Mapping[str, Tensor], meta: dict[str, Any]) -> None:
    """Write tensors and meta to `path`, replacing what was there in one step.

    One process at a time may save to a path; for a run, the directory's lock sees to that. Meta goes through
    JSON as Python writes it: infinities and NaN survive, tuples come back as lists and keys as strings.
    """
    packed = plain(tensors)
    body = json.dumps({"meta": meta, "order": list(packed)})
    with writing(path), replacing(path) as fresh:
        save_file(packed, fresh, metadata={_BODY: body, _CHECKSUM: _checksum(body, packed)})


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, in the order in which they were saved, and the meta of a checkpoint."""
    try:
        open_regular(path).close()
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if _BODY not in header:
                raise UserError(f"{path} is not a checkpoint of fedslice; {REMEDY}")
            # Cloned, for safetensors maps the file: a later change to it would reach into the running model.
            found = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"checkpoint {path} cannot be read ({reason(error)}); {REMEDY}") from error
    if header.get(_CHECKSUM) != _checksum(header[_BODY], found):
        raise UserError(f"checkpoint {path} is damaged (its checksum does not match); {REMEDY}")
    order, meta = _body(path, header[_BODY])
    if sorted(order) != sorted(found):
        raise UserError(f"checkpoint {path} lists other tensors than it holds; {REMEDY}")
    return {name: found[name] for name in order}, meta


def _body(path: Path, text: str) -> tuple[list[str], dict[str, Any]]:
    """The names of the tensors in their order, and meta."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    match body:
        case {"order": list(order), "meta": dict(meta)} if all(isinstance(name, str) for name in order):
            return order, meta
    raise UserError(f"checkpoint {path} has a header without names and numbers; {REMEDY}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A fresh path to write to; when the block ends well, that file becomes `path` in one durable step.

    The fresh file lives in a directory of its own beside `path`, because safetensors writes through a
    temporary file whose name it chooses: whatever a crash leaves is in there, and `discard_partial` finds it.
    """
    discard_partial(path)
    partial = _partial(path)
    partial.mkdir()
    try:
        fresh = partial / path.name
        yield fresh
        fresh.chmod(partial.stat().st_mode & 0o666)  # what the umask asks for; safetensors always makes 0600
        _fsync(fresh)
        os.replace(fresh, path)
    finally:
        discard_partial(path)
    _fsync(path.parent)


def discard_partial(path: Path) -> None:
    """Remove what an interrupted `replacing(path)` left behind, if anything; what it can not have left is refused."""
    partial = _partial(path)
    if not partial.is_symlink() and partial.is_dir():
        for name in sorted(entry.name for entry in partial.iterdir()):
            if name != path.name and not name.startswith(_TEMPORARY):
                raise UserError(f"{partial}, in which {path.name} is to be written, holds {name!r}; move it elsewhere.")
        shutil.rmtree(partial)
    elif os.path.lexists(partial):
        raise UserError(f"{partial} is a file, where a folder is made to write {path.name}; move it elsewhere.")


def partial_name(name: str) -> str:
    """Return the name of the directory in which the next file of that name is being written."""
    return f"{name}.partial"


def _partial(path: Path) -> Path:
    return path.with_name(partial_name(path.name))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors wants them: on the CPU, contiguous, and no two in the same memory."""
    packed: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        # A lazily conjugated or negated view would be written without its conjugation or sign.
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if plain.untyped_storage().data_ptr() in storages:
            plain = plain.clone()
        storages.add(plain.untyped_storage().data_ptr())
        packed[name] = plain
    return packed


def _checksum(body: str, tensors: Mapping[str, Tensor]) -> str:
    """Over all that a reader relies on: the JSON, and every tensor's name, type, shape and bytes."""
    crc = zlib.crc32(body.encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"
