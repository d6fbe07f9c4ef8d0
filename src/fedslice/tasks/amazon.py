"""Amazon Electronics click prediction with DIN (FedSubAvg, section 5.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.datasets import amazon
from fedslice.measure import accuracy, auc
from fedslice.models import DIN
from fedslice.task import Task
from fedslice.tasks.entry import Entry, Options, data_folder

NEEDS = "the authors' per-user training files, or amazon_train.tsv.gz"


class AmazonOptions(Options):
    """``history=zeroed`` gives the model the lengths of histories and not their items, as the published runs did."""

    history: Literal["real", "zeroed"] = "real"
    holdout: Annotated[float, Field(gt=0, lt=1)] = 0.2  # share of each user's last samples, if there is no test file


def make(options: AmazonOptions, data: Path | None) -> Task:
    """Train on the training file; test on the test file, or on each user's chronological tail if there is none."""
    clicks = amazon.read(data_folder("amazon", data, NEEDS))
    parts = [clicks.train] if clicks.test is None else [clicks.train, clicks.test]
    user = np.concatenate([part.user for part in parts])
    values = np.concatenate([part.history.values for part in parts])
    lengths = np.concatenate([np.diff(part.history.offsets) for part in parts])
    history = Ragged(
        torch.from_numpy(np.zeros_like(values) if options.history == "zeroed" else values),
        torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
    )
    if clicks.test is None:
        held_out = tail(user, options.holdout)
        split = f"last {options.holdout:.0%} of each user held out"
    else:
        held_out = np.arange(len(user)) >= len(clicks.train.user)
        split = "the published split by date"
    federation = Federation.from_arrays(
        client=user,
        features={"user": user, "item": np.concatenate([part.item for part in parts]), "history": history},
        label=np.concatenate([part.label for part in parts]).astype(np.int64),
        test=held_out,
    )
    return Task(
        federation,
        lambda: DIN(amazon.USERS, amazon.ITEMS),
        cross_entropy,
        tables={"user.weight": "user", "item.weight": ("item", "history")},
        metrics={"auc": auc, "accuracy": accuracy},
        name="amazon",
        source=f"Amazon Electronics, {len(user):,} ratings, {split}, histories {options.history}",
        eval_batch=1024,  # Dice normalises over the batch, so the published size is part of the model
    )


def tail(user: NDArray[np.int32], share: float) -> NDArray[np.bool_]:
    """The last ``share`` of each user's rows, in file order, rounded down."""
    order = np.argsort(user, kind="stable")
    sizes = np.bincount(user)[user[order]]
    starts = np.searchsorted(user[order], user[order])
    place = np.arange(len(user)) - starts
    held_out = np.empty(len(user), dtype=np.bool_)
    held_out[order] = place >= sizes - np.floor(sizes * share + 1e-9)
    return held_out


def cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy of each sample."""
    return nn.functional.cross_entropy(output, label, reduction="none")


# The published code minimises half the cross-entropy at rate 0.1 with gradients clipped at 5: on the whole
# cross-entropy that is rate 0.05 and a bound of 10.
ENTRY = Entry(
    name="amazon",
    about="click prediction, deep interest network on user, item and history",
    needs=NEEDS,
    options=AmazonOptions,
    make=make,
    needs_data=True,
    rounds=200,
    settings={"cohort": 100, "lr": 0.05, "batch_size": 4, "clip": 10.0, "local.decay": 0.999},
)
