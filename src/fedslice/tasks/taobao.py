"""Click prediction at the size of Alibaba's data, DIN with categories (FedSubAvg, 5.1): generated, or Taobao's log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.datasets import clicks as generated
from fedslice.datasets import taobao
from fedslice.measure import accuracy, auc
from fedslice.models import DIN
from fedslice.task import Task
from fedslice.tasks.amazon import cross_entropy, tail
from fedslice.tasks.entry import Entry, Options, Seed, data_folder

OFFICIAL = f"the public {taobao.FILE}"


class TaobaoOptions(Options):
    """``source`` is the official log if data are given and a generated one if not; ``users`` or ``scale`` shrink it."""

    source: Literal["generated", "official"] | None = None
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the generated log
    users: Annotated[int, Field(ge=1)] | None = None  # of the official log: the first so many by id
    history: Annotated[int, Field(ge=0, le=1000)] = 20  # last clicks before a sample that the model sees
    holdout: Annotated[float, Field(gt=0, lt=1)] = 0.2  # share of each user's last samples
    test_samples: Annotated[int, Field(ge=1)] = 20_000  # of those: a fixed random choice; the others are left out
    data_seed: Seed = 0


def make(options: TaobaoOptions, data: Path | None) -> Task:
    """Samples in the order of time with the clicks before each; test on some samples of the users' tails."""
    log, source = _log(options, data)
    held_out = tail(log.user, options.holdout)
    late = np.flatnonzero(held_out)
    chance = rng.generator(options.data_seed, rng.Purpose.SPLIT)
    tested = chance.choice(late, min(options.test_samples, len(late)), replace=False)
    used = ~held_out
    used[tested] = True
    offsets, lengths = (torch.from_numpy(column[used]) for column in windows(log, options.history))
    features = {
        "user": log.user[used],
        "item": log.item[used],
        "category": log.category[used],
        "history": Ragged(torch.from_numpy(log.item[log.label]), offsets, lengths),
        "category_history": Ragged(torch.from_numpy(log.category[log.label]), offsets, lengths),
    }
    federation = Federation.from_arrays(
        client=features["user"], features=features, label=log.label[used].astype(np.int64), test=held_out[used]
    )
    users, items, categories = (int(ids.max()) + 1 for ids in (log.user, log.item, log.category))
    return Task(
        federation,
        lambda: DIN(users, items, categories=categories),
        cross_entropy,
        tables={
            "user.weight": "user",
            "item.weight": ("item", "history"),
            "category.weight": ("category", "category_history"),
        },
        metrics={"auc": auc, "accuracy": accuracy},
        name="taobao",
        source=f"{source}, {len(log):,} samples, {len(tested):,} of the last {options.holdout:.0%} of each user tested",
        eval_batch=1024,  # Dice normalises over the batch, so its size is part of the model
    )


def _log(options: TaobaoOptions, data: Path | None) -> tuple[taobao.Clicks, str]:
    """The samples, and the words that say where they come from."""
    if options.source == "official" or (options.source is None and data is not None):
        place = data_folder("taobao", data, OFFICIAL)
        if options.scale != 1:
            raise UserError(f"task taobao: scale={options.scale} is for source=generated; use users=... instead.")
        return taobao.read(place, options.users), "Taobao's public log, buy, cart or fav against pv"
    if data is not None:
        raise UserError(f"task taobao: source=generated needs no data, so --data {data} has no place; leave it out.")
    if options.users is not None:
        raise UserError(f"task taobao: users={options.users} is for source=official; use scale=... instead.")
    seed = options.data_seed
    return generated.generate(options.scale, seed), f"generated at scale {options.scale:g} (data_seed {seed})"


def windows(log: taobao.Clicks, most: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the start among all clicks, and the number, of a user's last ``most`` clicks before each sample."""
    before = np.cumsum(log.label, dtype=np.int32) - log.label
    first = np.flatnonzero(np.diff(log.user, prepend=0))  # the first sample of each user
    own = before - np.repeat(before[first], np.diff(first, append=len(log)))
    lengths = np.minimum(own, np.int32(most))
    return before - lengths, lengths


# The paper's rate for FedSubAvg is 0.3 and the published code clips gradients at 0.1, both on half the cross-entropy:
# on the whole of it that is 0.15 and 0.2.
ENTRY = Entry(
    name="taobao",
    about="click prediction at Alibaba's size, deep interest network with categories",
    needs=f"nothing: it is generated, or {OFFICIAL}",
    options=TaobaoOptions,
    make=make,
    rounds=5000,
    settings={"cohort": 100, "lr": 0.15, "batch_size": 32, "clip": 0.2, "local.decay": 0.999},
)
