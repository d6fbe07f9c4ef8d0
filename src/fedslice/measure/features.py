"""Inputs of a model's last layer for test samples, as in FLSS's figure 6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.network.head import head, with_head_inputs
from fedslice.task import Task, evaluating

_PERPLEXITY = 30  # about as many neighbours as t-SNE looks at; it must stay well below the number of samples


@dataclass(frozen=True, eq=False)
class Features:
    """Features of test samples, one row per sample."""

    client: list[Any]  # the owner's own name; ``None`` if it is nobody who trains
    label: Tensor
    predicted: Tensor  # the most likely class; a single logit is thresholded at zero
    values: Tensor  # [samples, features], what enters the last Linear layer


def features(task: Task, model: Values, count: int, seed: int) -> Features:
    """Return the inputs of the last layer for some test samples, the same for all runs of one seed."""
    test = task.federation.test
    if not len(test):
        raise UserError(f"task {task.name!r} has no test samples, whose features could be shown; give another run.")
    try:
        last = head(task)
    except UserError:
        raise UserError(
            f"task {task.name!r}: {type(task.module).__name__} has no Linear layer of its own that is trained, and "
            "features are what enters the last one; give a run of another model."
        ) from None
    index = _drawn(len(test), count, seed)
    labels, predicted, values = [], [], []
    with torch.no_grad(), evaluating(task.module):
        for part in index.split(task.eval_batch):
            batch, label = test.batch(part)
            outputs, inner = with_head_inputs(task, last.name, model, batch)
            if inner.dim() != 2:
                raise UserError(
                    f"task {task.name!r}: what enters the last Linear layer {last.name!r} has the shape "
                    f"{tuple(inner.shape[1:])} for each sample, expected one row; give a run of another model."
                )
            classes = outputs.dim() == 2 and outputs.shape[1] > 1
            labels.append(label)
            predicted.append(outputs.argmax(1) if classes else (outputs.flatten() > 0).long())
            values.append(inner)
    ids = task.federation.ids.tolist()
    owners = torch.bucketize(index, test.offsets[1:], right=True).tolist()
    return Features(
        [ids[owner] if owner < len(ids) else None for owner in owners],
        torch.cat(labels),
        torch.cat(predicted),
        torch.cat(values),
    )


def load_tsne() -> Any:
    """scikit-learn's class: asked for before the work begins, for it is an extra."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError(
            "--tsne needs scikit-learn; install it with the extra (pip install 'fedslice[tsne]')."
        ) from None
    return TSNE


def tsne(values: Tensor, seed: int) -> NDArray[np.float32]:
    """Two coordinates per sample, in which neighbours stay neighbours (van der Maaten and Hinton 2008)."""
    kind = load_tsne()
    samples, size = values.shape
    if samples < 3 or size < 2:
        raise UserError(
            f"--tsne was given {samples} samples of {size} features, expected three samples and two features or more; "
            "ask for more --samples, or leave it out."
        )
    if not bool(values.isfinite().all()):
        raise UserError("--tsne was given features that are not finite, for the model diverged; leave it out.")
    perplexity = min(_PERPLEXITY, (samples - 1) / 3)
    made = kind(n_components=2, perplexity=perplexity, init="pca", random_state=seed % 2**32)
    places: NDArray[np.float32] = made.fit_transform(values.float().numpy())
    return places


def _drawn(samples: int, count: int, seed: int) -> Tensor:
    if count >= samples:
        return torch.arange(samples)
    chosen = rng.generator(seed, rng.Purpose.EVALUATION).choice(samples, count, replace=False)
    return torch.from_numpy(np.sort(chosen))
