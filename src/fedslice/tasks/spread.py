"""Shared by tasks whose data have no clients: options, the partition, and the test samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.data.partition import Partition
from fedslice.data.ways import Ints, Way, held_out
from fedslice.tasks.entry import Options, Seed

Size = Annotated[int, Field(ge=1, le=10**9)]

_BETA = ("dirichlet", "pfl-dirichlet")
_CLASSES = ("pathological", "pfl-pathological", "shards")
_LIMIT = ("shards",)


class SpreadOptions(Options):
    """``source`` is the official set if data are given and a generated one if not.

    With ``split=pfllib`` training and test samples are merged and spread, and a quarter of each client's is held out;
    the global model is tested on all of these (FLSS, in the way of PFLlib). With ``partition=shards`` clients have
    training samples of a few classes and the official test samples of these classes, divided among those who have them
    (FDRL's published code, with 50 clients). Else the official test samples belong to nobody.
    """

    source: Literal["official", "generated"] | None = None
    partition: Literal[Way, "shards"] = "iid"
    split: Literal["official", "pfllib"] = "official"
    clients: Size = 100
    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5  # of partition=dirichlet and pfl-dirichlet
    classes: Size = 2  # per client, of partition=pathological, pfl-pathological and shards
    limit: Size = 500  # training samples of a client, of partition=shards
    train: Size | None = None  # so many of the samples that are spread, drawn at random
    data_seed: Seed = 0  # of the partition, of that draw, and of what is generated


@dataclass(frozen=True, eq=False)
class Spread:
    """The samples that are used, in their order, and for each its client and whether it is tested on."""

    index: Ints
    owner: Ints
    test: NDArray[np.bool_]
    about: str


def generated(name: str, options: SpreadOptions, data: Path | None) -> bool:
    """Whether the samples are to be generated; data beside that are refused."""
    if options.source == "official" or (options.source is None and data is not None):
        return False
    if data is not None:
        raise UserError(f"task {name}: source=generated needs no data, so --data {data} has no place; leave it out.")
    return True


def counts(options: SpreadOptions, samples: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of training and test samples of a generated set; merged ones count as training samples."""
    train, test = (sum(samples), 0) if options.split == "pfllib" else samples
    return options.train or train, test


def check(name: str, options: SpreadOptions) -> None:
    """Refuse what would do nothing beside the other options."""
    for option, ways in (("beta", _BETA), ("classes", _CLASSES), ("limit", _LIMIT)):
        value = getattr(options, option)
        if options.partition not in ways and value != type(options).model_fields[option].default:
            raise UserError(
                f"task {name}: {option}={value} is for partition={' or '.join(ways)}; leave one of them out."
            )
    if options.partition == "shards" and options.split == "pfllib":
        raise UserError(
            f"task {name}: partition=shards deals the official test samples out, which split=pfllib would merge with "
            "the others; leave one of them out."
        )


def spread(name: str, options: SpreadOptions, label: Ints, trains: int, what: str) -> Spread:
    """Samples with these labels, the first ``trains`` of them for training, over the clients; ``what`` they are."""
    merged = options.split == "pfllib"
    pool, kind = (len(label), what) if merged else (trains, f"training {what}")
    wanted = pool if options.train is None else options.train
    if wanted > pool:
        raise UserError(f"task {name}: train={wanted} but there are {pool:,} {kind}; give fewer.")
    chosen = np.sort(rng.generator(options.data_seed, rng.Purpose.SPLIT).choice(pool, wanted, replace=False))
    rest = np.arange(trains, len(label))
    way = Partition(options.partition, options.beta, options.classes, options.limit)
    owner, tested = way.owners(label[chosen], label[rest], options.clients, options.data_seed)
    chosen, owner = chosen[owner >= 0], owner[owner >= 0]
    dealt = f"{len(chosen):,} {kind} {_way(options, what)}"
    if merged:
        test = held_out(owner, options.data_seed)
        about = f"{dealt}, of each client's a quarter held out ({test.sum():,})"
        return Spread(chosen, owner, test, about)
    divided = " divided by class" * (options.partition == "shards")
    return Spread(
        index=np.concatenate([chosen, rest]),
        owner=np.concatenate([owner, tested]),
        test=np.arange(len(chosen) + len(rest)) >= len(chosen),
        about=f"{dealt}, {len(rest):,} test {what}{divided}",
    )


def _way(options: SpreadOptions, what: str) -> str:
    detail = ""
    if options.partition in _BETA:
        detail = f" (beta {options.beta:g})"
    elif options.partition == "shards":
        detail = f" ({options.classes} each, at most {options.limit:,} {what})"
    elif options.partition in _CLASSES:
        detail = f" ({options.classes} classes each)"
    return f"over {options.clients} clients by {options.partition}{detail}"
