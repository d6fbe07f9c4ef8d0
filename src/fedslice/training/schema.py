"""The fields of every message, as both sides derive them from what parts declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from fedslice.core import statistics
from fedslice.core.encodings import Counts, Floats, Ids
from fedslice.core.entries import Maybe, View
from fedslice.core.errors import UserError
from fedslice.core.fields import value_fields
from fedslice.core.header import Header, Opened
from fedslice.core.message import AnyField, Body, Field, Fields, Log, Message, unpack
from fedslice.core.slice import Axis, Slice
from fedslice.core.spec import Spec

UploadSlice = Callable[[dict[str, Axis]], Slice]

FIRST = "first"
_TOKEN = Field(Counts(64), shape=(2,), about="a token by which the client proves its number later")
HELLO: Fields = {"token": _TOKEN}
WELCOME: Fields = {"seed": Field(Counts(64), shape=(1,), about="the shared seed"), "token": _TOKEN}


def facts(spec: Spec) -> Fields:
    """Return the fields of an enrolment: what parts ask of a client once. ``Ids`` come first."""
    return _in_order(_declared(part.facts(spec) for part in spec.recipe))


def request(spec: Spec) -> Fields:
    """Return the fields of a request."""
    return _in_order(spec.recipe.slices.request_fields(spec))


def download(spec: Spec, hold: Slice, down: Slice, layout: int) -> Fields:
    """Return the fields of a download."""
    return _declared(
        [
            spec.recipe.codec.send_fields(spec, down, layout),
            first(spec, hold),
            *(part.down_fields(spec, down) for part in spec.recipe),
            statistics.fields(spec),
        ]
    )


def upload(spec: Spec, hold: Slice, up: Slice, layout: int) -> Fields:
    """Return the fields of an upload."""
    return {**spec.recipe.slices.up_ids(spec, hold), **_sent(spec, up, layout)}


def _sent(spec: Spec, up: Slice, layout: int) -> Fields:
    codec = spec.recipe.codec
    if "sealed" not in codec.provides:
        return plain(spec, up, layout)
    return codec.sealed(spec, plain(spec, up, layout), plain(spec, whole(spec), layout), layout)


def plain(spec: Spec, up: Slice, layout: int) -> dict[str, AnyField]:
    """Return the fields of codes and reports in an upload, before anything is masked."""
    parts = (part.up_fields(spec, up) for part in spec.recipe)
    return _declared([spec.recipe.codec.fields(spec, up, layout), *parts, statistics.fields(spec)])


def whole(spec: Spec) -> Slice:
    """Return all that a client may send, as a slice of one client."""
    kept = spec.recipe.slices.kept(spec)
    return Slice.whole(1, spec.shapes, [name for name in spec.shapes if name not in kept])


def scores(spec: Spec) -> Fields:
    """Return the fields of an evaluation: the number of test samples, and each metric of the run."""
    own = {
        name: Field(Floats(torch.float64, finite=False), shape=(1,), about=f"{name} on its own test samples")
        for name in spec.metrics
    }
    return {"samples": Field(Counts(32), shape=(1,), about="how many test samples it has"), **own}


def initial_names(spec: Spec) -> frozenset[str]:
    """Return the parameters of whose initial values newcomers are sent what they hold."""
    return frozenset(name for part in spec.recipe for name in part.initial(spec))


def first(spec: Spec, hold: Slice) -> Fields:
    """Return the fields of the initial values, which newcomers alone are sent."""
    names = initial_names(spec)
    if not names:
        return {}
    part = hold.only(name for name in hold.axes if name in names)
    return value_fields(spec, part, FIRST, optional=True, about="initial values, as it is new")


def reports(spec: Spec, part: Slice) -> Fields:
    """Return the fields of an upload that parts report besides the update."""
    return {name: field for each in spec.recipe for name, field in each.up_fields(spec, part).items()}


# --- reading what arrived


def read_facts(spec: Spec, opened: Opened) -> Message:
    """Read an enrolment."""
    ids, rest = _split(facts(spec))
    return unpack(opened, ids, lambda _: rest)


def read_request(spec: Spec, opened: Opened) -> Message:
    """Read a request."""
    ids, rest = _split(request(spec))
    return unpack(opened, ids, lambda _: rest)


def read_download(spec: Spec, opened: Opened, hold: Slice, down: Slice) -> Message:
    """Read a download for a client that holds this and is sent that of it."""
    fields = download(spec, hold, down, opened.head.layout)
    return unpack(opened, {}, lambda _: fields)


def read_upload(spec: Spec, opened: Opened, hold: Slice, sent: UploadSlice) -> Message:
    """Read an upload of a client that holds this. ``sent`` returns its slice, given the axes that it names."""
    ids, _ = _split(spec.recipe.slices.up_ids(spec, hold))
    return unpack(opened, ids, lambda axes: _sent(spec, sent(dict(axes)), opened.head.layout))


def read_scores(spec: Spec, opened: Opened) -> Message:
    """Read the scores of a client."""
    return unpack(opened, {}, lambda _: scores(spec))


def zeros(spec: Spec, head: Header, hold: Slice, zero: Mapping[str, Tensor]) -> Message:
    """Return a download of zeros, of all that is held."""
    fields = download(spec, hold, hold, 0)
    body: Body = {}
    for name, each in fields.items():
        if isinstance(each, Log):
            body[name] = Maybe(
                torch.zeros(hold.clients, dtype=torch.bool), torch.zeros(hold.clients, dtype=torch.int64)
            )
        elif each.on is not None:
            body[name] = View(zero, each.on)
        else:
            kind = getattr(each.encoding, "dtype", torch.int64)
            body[name] = torch.zeros(hold.clients, *each.shape, dtype=kind)
    return Message(head, fields, body)


def _in_order(fields: Fields) -> Fields:
    ids, rest = _split(fields)
    return {**ids, **rest}


def _split(fields: Fields) -> tuple[dict[str, Field], dict[str, AnyField]]:
    """The fields of positions, and the others."""
    ids = {n: each for n, each in fields.items() if isinstance(each, Field) and isinstance(each.encoding, Ids)}
    return ids, {name: each for name, each in fields.items() if name not in ids}


def _declared(all_fields: Iterable[Fields]) -> dict[str, AnyField]:
    """Fields of several parts. Two may ask for the same; two fields of one name that differ are refused."""
    out: dict[str, AnyField] = {}
    for fields in all_fields:
        for name, each in fields.items():
            if name in out and out[name] != each:
                raise UserError(f"two parts of the recipe declare different fields named {name!r}; rename one.")
            out[name] = each
    return out
