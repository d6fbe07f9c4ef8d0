"""The scores of one model on a task: training loss on a fixed sample, loss and metrics on the test set."""

import torch
from torch import Tensor

from fedslice import rng
from fedslice.federation import Samples
from fedslice.metrics import measured
from fedslice.slice import Values
from fedslice.task import Task, evaluating


def evaluate(task: Task, model: Values, seed: int) -> dict[str, float]:
    """``train_loss``, ``test_loss`` and one ``test_<metric>`` per metric of the task; NaN where one is undefined."""
    train, test = task.federation.train, task.federation.test
    loss, _, _ = _scores(task, model, train, _sample(train, task.train_sample, seed))
    out = {"train_loss": loss}
    if len(test):
        loss, outputs, labels = _scores(task, model, test, torch.arange(len(test), device=test.offsets.device))
        out["test_loss"] = loss
        out |= {f"test_{name}": measured(name, metric, outputs, labels) for name, metric in task.metrics.items()}
    return out


def _sample(samples: Samples, count: int, seed: int) -> Tensor:
    """The same random samples at every evaluation, in ascending order."""
    if count >= len(samples):
        return torch.arange(len(samples), device=samples.offsets.device)
    chosen = rng.generator(seed, rng.Purpose.EVALUATION).choice(len(samples), count, replace=False)
    chosen.sort()
    return torch.from_numpy(chosen).to(samples.offsets.device)


def _scores(task: Task, model: Values, samples: Samples, index: Tensor) -> tuple[float, Tensor, Tensor]:
    """Mean loss, and all outputs and labels, brought to where float64 is to be had."""
    total, outputs, labels = 0.0, [], []
    with torch.no_grad(), evaluating(task.module):
        for part in index.split(task.eval_batch):
            features, label = samples.batch(part)
            out = task.forward(model, features)
            total += float(task.loss(out, label).cpu().double().sum())
            outputs.append(out.cpu())
            labels.append(label.cpu())
    return total / len(index), torch.cat(outputs), torch.cat(labels)
