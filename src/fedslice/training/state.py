"""Checks of a saved experiment: a checkpoint may have been edited, exchanged, or written by another version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedslice.core.errors import UserError

COUNTS = ("round", "updates", "rejected", "updates_before", "rejected_before")
AMOUNTS = ("seconds",)
_BOOKS, _WHOLE, _REAL = ("up", "down", "enrol", "evaluation"), ("framing", "updates", "rejected"), ("words", "clock")
_GROUPS = ("server", "clients", "measure")


def inventory(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Type and shape of every tensor, as text."""
    return {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in tensors.items()}


def check_numbers(numbers: Mapping[str, Any], rounds: int) -> None:
    """Every number has its type and lies in its range."""
    _number(numbers, "tensors")
    for name in COUNTS:
        found = _number(numbers, name)
        if type(found) is not int or not 0 <= found <= (rounds if name == "round" else math.inf):
            most = f"to {rounds}" if name == "round" else "on"
            raise UserError(f"{name} is {found!r:.40}, expected a whole number from 0 {most}")
    for name in AMOUNTS:
        found = _number(numbers, name)
        if type(found) not in (int, float) or not 0 <= found < math.inf:
            raise UserError(f"{name} is {found!r:.40}, expected a number from 0 on")
    for part, whole in (("rejected", "updates"), ("updates_before", "updates"), ("rejected_before", "rejected")):
        if numbers[part] > numbers[whole]:
            raise UserError(f"{part} is {numbers[part]}, expected at most the {numbers[whole]} of {whole}")
    _check_ledger(_number(numbers, "ledger"))
    for name in ("updates", "rejected"):
        if numbers["ledger"][name] != numbers[name]:
            raise UserError(f"{name} is {numbers[name]}, but the ledger has {numbers['ledger'][name]}")
    at = _number(numbers, "diverged_round")
    if at is not None and (type(at) is not int or not 0 <= at <= numbers["round"]):
        raise UserError(f"diverged_round is {at!r:.40}, expected a round that is done, or none")
    ended = _number(numbers, "ended")
    if ended is not None and not isinstance(ended, str):
        raise UserError(f"ended is {ended!r:.40}, expected a reason, or none")
    for name in ("finite", "sound"):
        if type(found := _number(numbers, name)) is not bool:
            raise UserError(f"{name} is {found!r:.40}, expected true or false")


def check_tensors(tensors: Mapping[str, Tensor], noted: object, model: Mapping[str, Tensor]) -> None:
    """The tensors are those that were noted when they were saved, and the model among them is this one."""
    found, wanted = inventory(tensors), inventory(model)
    if not isinstance(noted, dict):
        raise UserError(f"tensors is {noted!r:.40}, expected names with types and shapes")
    own = {name: what for name, what in found.items() if name.startswith("server.model.")}
    for there, expected in ((own, wanted), (found, noted)):
        for name in {**expected, **there}:
            if there.get(name) != expected.get(name):
                raise UserError(
                    f"tensor {name!r} is {there.get(name, 'absent')}, expected {expected.get(name, 'none')!s:.80}"
                )
    for name in found:
        if name.partition(".")[0] not in _GROUPS:
            raise UserError(f"tensor {name!r} belongs to none of {', '.join(_GROUPS)}")

    for name, value in model.items():
        table = name.removeprefix("server.model.")
        for key, ids in tensors.items():
            if key.endswith(f"/{table}/ids") and bool((ids >= len(value)).any()):
                raise UserError(f"tensor {key!r} names rows beyond the {len(value)} of {table}")


def _check_ledger(books: Any) -> None:
    """Bytes by field and counts are whole numbers, words and the clock are numbers, and nothing is missing."""
    if not isinstance(books, dict) or books.keys() != {*_BOOKS, *_WHOLE, *_REAL}:
        raise UserError(f"ledger is {books!r:.40}, expected {', '.join((*_BOOKS, *_WHOLE, *_REAL))}")
    for name in _BOOKS:
        sizes = books[name]
        if not isinstance(sizes, dict) or any(type(size) is not int or size < 0 for size in sizes.values()):
            raise UserError(f"ledger has {name}={sizes!r:.40}, expected bytes by field")
    for name in (*_WHOLE, *_REAL):
        found = books[name]
        kinds = (int,) if name in _WHOLE else (int, float)
        if type(found) not in kinds or not 0 <= found < math.inf:
            raise UserError(f"ledger has {name}={found!r:.40}, expected a number from 0 on")


def _number(numbers: Mapping[str, Any], name: str) -> Any:
    if name not in numbers:
        raise UserError(f"{name} is missing")
    return numbers[name]
