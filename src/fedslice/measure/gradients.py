"""Distance of a model from a stationary point: the global gradient and its two norms (FedSubAvg and its draft)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedslice.core.slice import Axis, Slice, Values
from fedslice.measure.heat import corrections
from fedslice.schema import Column
from fedslice.task import Task, evaluating


class Block(NamedTuple):
    """Some training samples, and what each weighs in the objective f."""

    features: dict[str, Tensor]
    label: Tensor
    share: Tensor


def norm_columns(task: Task) -> list[Column]:  # noqa: ARG001
    """Return the columns of :func:`gradient_norms`."""
    names = ("gradient_norm2", "elementwise_gradient_norm2")
    return [Column(name, "diagnostic", lower_is_better=True, scientific=True) for name in names]


def gradient_norms(task: Task, model: Values) -> dict[str, float]:
    """Return ‖∇f‖² and the element-wise norm (1/N)·gᵀUg, g = Σ_i ∇f_i, U = diag(1/n_m) (the draft, definition 1).

    The latter is ∇fᵀD∇f with D = diag(N/n_m), the squared norm of the gradient that FedSubAvg follows (FedSubAvg,
    section 4.3): a row that few clients hold counts as it does for them, and not diluted by those who do not hold it.
    """
    factor = corrections(task)
    plain = corrected = 0.0
    for name, value in full_gradient(task, model).items():
        flat = value.cpu().double().reshape(len(value) if name in factor else 1, -1)
        rows = torch.linalg.vector_norm(flat, dim=1).square()
        plain += float(rows.sum())
        corrected += float(factor[name] @ rows if name in factor else rows.sum())
    return {"gradient_norm2": plain, "elementwise_gradient_norm2": corrected}


def full_gradient(task: Task, model: Values) -> Values:
    """∇f in float64: f = (1/N)·Σ f_i, with f_i the mean loss of client i's training samples (FedSubAvg, section 2).

    One pass over the training samples in blocks of ``eval_batch``, with dropout off. Of tables only the rows that a
    block names are looked at, so a block costs what its samples cost, and the memory is that of the result. A model
    that compares the samples of a batch (Dice) has no gradient per sample: its value is that of these blocks.
    """
    device = task.federation.train.offsets.device
    wide = torch.float32 if device.type == "mps" else torch.float64  # which has no float64
    total = {name: torch.zeros(shape, dtype=wide, device=device) for name, shape in task.shapes.items()}
    still = {name: model[name] for name in task.statistics}
    with evaluating(task.module):
        for block in blocks(task):
            layout, features = _sliced(task, block.features)
            local = {name: value[0].detach().requires_grad_() for name, value in layout.gather(model).items()}
            objective = block_objective(task, local | still, block._replace(features=features))
            parts = torch.autograd.grad(objective, list(local.values()), allow_unused=True, materialize_grads=True)
            layout.scatter_add(total, {name: part[None].to(wide) for name, part in zip(local, parts, strict=True)})
    return total


def blocks(task: Task) -> Iterator[Block]:
    """All training samples in their order; a sample of client i weighs 1/(N·n_i)."""
    train = task.federation.train
    sizes = train.sizes
    share = torch.repeat_interleave(1 / (len(task.federation) * sizes.cpu().double()), sizes.cpu())
    for index in torch.arange(len(train), device=train.offsets.device).split(task.eval_batch):
        yield Block(*train.batch(index), share[index.cpu()])


def block_objective(task: Task, parameters: Values, block: Block) -> Tensor:
    """A block's part of f."""
    losses = task.loss(task.forward(parameters, block.features), block.label)
    return losses @ block.share.to(losses)


def _sliced(task: Task, features: dict[str, Tensor]) -> tuple[Slice, dict[str, Tensor]]:
    """The rows that a block names, as a slice for one holder, and the features with the rows' new numbers."""
    one = {name: column[None] for name, column in features.items()}
    axes: dict[str, Axis | None] = {}
    for sets in task.index_sets:
        axes |= dict.fromkeys(sets.tables, sets.relabel(one))
    return Slice.whole(1, task.shapes).replace(axes), {name: column[0] for name, column in one.items()}
