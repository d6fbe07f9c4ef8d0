"""Secure sums as messages: the fields of each step, which both sides derive alike.

A sum has four steps, each a stage of its own, as :mod:`fedslice.privacy.secagg` has phases. The server opens one with a
message of kind ``SUM``, whose layout says which; a client answers with ``PART``. Vectors travel in the third: of what
clients count when they enrol in a ``PART``, of updates in the round's ``UPLOAD``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core.encodings import Bits, Counts, Floats
from fedslice.core.entries import OnSlice
from fedslice.core.errors import Refused
from fedslice.core.message import Body, Field, Fields
from fedslice.core.spec import Spec
from fedslice.privacy.encoding import RingElements
from fedslice.privacy.ring import Ring
from fedslice.privacy.secagg.messages import COMMITMENT, KEY, SEALED, SECRETS, Vector
from fedslice.privacy.secagg.shares import LIMBS
from fedslice.training import schema

SESSION = 16  # bytes
LEAST, MOST = 3, 1 << 20  # clients over whom anything is summed
_PREFIX = "sum/"


class Purpose(IntEnum):
    """The vectors that are summed."""

    TALLIES = 0  # of clients that enrol
    UPDATES = 1  # of a round


class Step(IntEnum):
    """A step of a sum, by what the client sends."""

    KEYS = 0
    SHARES = 1
    VECTORS = 2
    REVEAL = 3


def place(purpose: Purpose, step: Step) -> int:
    """Return the layout of messages of a step."""
    return len(Step) * purpose + step


def placed(layout: int) -> tuple[Purpose, Step]:
    """Return the purpose and the step of a layout.

    Raises:
        Refused: If there is no such purpose.
    """
    purpose = layout // len(Step)
    if purpose not in Purpose._value2member_map_:
        raise Refused(f"speaks of the unknown purpose {purpose} of a sum")
    return Purpose(purpose), Step(layout % len(Step))


def down(step: Step, size: int, degree: int, roster: Tensor | None) -> Fields:
    """Return the fields by which the server opens a step.

    Args:
        step: The step.
        size: Number of clients in the sum.
        degree: Neighbours of each of them.
        roster: Flags of the neighbours that advertised keys, after the first step [clients, degree].
    """
    if step is Step.KEYS:
        return {
            "sum/session": Field(Counts(8), shape=(SESSION,), about="the name of a secure sum"),
            "sum/cohort": Field(
                Counts(32), shape=(3,), about="its number of clients, this one's place, and its layout"
            ),
            "sum/scale": Field(
                Floats(torch.float64, negative=False), shape=(1,), about="the client's weight, or the bound of the sum"
            ),
        }
    if step is Step.SHARES:
        return {
            "sum/present": Field(Bits(), shape=(degree,), about="which neighbours take part"),
            "sum/roster": Field(
                Counts(8), shape=(degree, 2 * KEY), where=_wide("sum/present", 2 * KEY), about="their keys"
            ),
        }
    if step is Step.VECTORS:
        assert roster is not None
        return {
            "sum/delivered": Field(
                Bits(), shape=(degree,), where=lambda _: roster, about="which neighbours shared secrets"
            ),
            "sum/boxes": Field(
                Counts(8),
                shape=(degree, SEALED),
                where=_wide("sum/delivered", SEALED),
                about="their shares, sealed for it",
            ),
        }
    return {"sum/survivors": Field(Bits(), shape=(size,), about="whose vectors arrived")}


def up(step: Step, degree: int, roster: Tensor | None, delivered: Tensor | None) -> Fields:
    """Return the fields of a client's answer, but for the vectors.

    Args:
        step: The step.
        degree: Neighbours of each client.
        roster: Flags of those that advertised keys [clients, degree].
        delivered: Flags of those that shared their secrets [clients, degree].
    """
    if step is Step.KEYS:
        return {"sum/keys": Field(Counts(8), shape=(2 * KEY,), about="two public keys, made for this sum")}
    if step is Step.SHARES:
        assert roster is not None
        own = _with_own(roster)
        return {
            "sum/sealed": Field(
                Counts(8),
                shape=(degree, SEALED),
                where=lambda _: _repeated(roster, SEALED),
                about="shares of its two secrets, sealed for neighbours",
            ),
            "sum/digests": Field(
                Counts(8),
                shape=(SECRETS, 1 + degree, COMMITMENT),
                where=lambda _: _repeated(own, COMMITMENT)[:, None].expand(-1, SECRETS, -1, -1),
                about="digests of these shares",
            ),
            "sum/seed": Field(Counts(8), shape=(COMMITMENT,), about="a digest of the seed of its own mask"),
        }
    if step is Step.REVEAL:
        assert delivered is not None
        return {
            "sum/given": Field(
                Bits(), shape=(1 + degree,), where=lambda _: _with_own(delivered), about="whose shares follow"
            ),
            "sum/shares": Field(
                Counts(32),
                shape=(1 + degree, LIMBS),
                where=_wide("sum/given", LIMBS),
                about="of each client a share of one of its two secrets",
            ),
        }
    return {}


def vector_fields(vectors: Mapping[str, Vector], about: str) -> Fields:
    """Return the fields of vectors under masks."""
    return {
        name: Field(RingElements(vector.ring.bits), shape=(vector.length,), about=about)
        for name, vector in vectors.items()
    }


def tally_vectors(lengths: Mapping[str, int], most: int) -> dict[str, Vector]:
    """Return the vectors of tallies, in the smallest ring in which a sum of at most ``most`` cannot wrap around."""
    return {name: Vector(Ring.for_sum(most), length) for name, length in lengths.items()}


def update_vectors(spec: Spec, size: int, layout: int) -> dict[str, Vector]:
    """Return the vectors of a round's uploads."""
    codec = spec.recipe.codec
    whole = schema.plain(spec, schema.whole(spec), layout)
    lengths = {name: int(each.counts(1)[0]) for name, each in whole.items() if isinstance(each, Field)}
    return {name: Vector(codec.quantizer(spec, name, size, layout).ring, n) for name, n in lengths.items()}


def line(field: Field, whole: Field, entries: Any, client: int) -> Tensor:
    """Return one client's entries of a field as they stand in the whole model, with zeros where it has none."""
    if field.on is None or whole.on is None:
        own: Tensor = entries[client].flatten()
        return own
    part, values = field.on.one(client), entries.one(client, field.on)
    lines = [
        part.spread(name, values[name])[0].flatten()
        if name in part.axes
        else torch.zeros(math.prod(whole.on.shapes[name]))
        for name in whole.on.axes
    ]
    return torch.cat(lines) if lines else torch.zeros(0)


def opened(whole: Fields, totals: Mapping[str, NDArray[np.float64]]) -> Body:
    """Return sums in the form of one client's entries of the whole model."""
    body: Body = {}
    for name, each in whole.items():
        assert isinstance(each, Field)
        assert isinstance(each.encoding, Floats)
        total = torch.from_numpy(totals[name]).to(each.encoding.dtype)
        if each.on is None:
            body[name] = total.view(1, *each.shape)
            continue
        shapes = {parameter: each.on.shapes[parameter] for parameter in each.on.axes}
        parts = total.split([shape.numel() for shape in shapes.values()])
        values = {n: own.view(1, *shape) for (n, shape), own in zip(shapes.items(), parts, strict=True)}
        body[name] = OnSlice(each.on, values)
    return body


def _with_own(flags: Tensor) -> Tensor:
    """Flags of a client itself, and then of its neighbours [clients, 1 + degree]."""
    return torch.cat([torch.ones(len(flags), 1, dtype=torch.bool), flags], 1)


def _repeated(flags: Tensor, times: int) -> Tensor:
    return flags.bool()[..., None].expand(*flags.shape, times)


def _wide(name: str, times: int) -> Callable[[Body], Tensor]:
    """Return how to repeat the flags of a field of the same message for each entry of another."""
    return lambda body: _repeated(body[name], times)
