"""The plain loop: one client at a time, PyTorch's own optimizer, the whole model. What one would write by hand."""

import itertools
import time

import torch
from torch import nn

from fedslice.training.experiment import Experiment


class PlainLoop:
    """The same rounds as an experiment with FedAvg: same cohorts, same batches, same local steps."""

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        self._local = experiment.task.build(0)
        self._model = {name: value.clone() for name, value in experiment.model.items()}
        self._numbers = itertools.count()
        torch.set_num_threads(min((1, torch.get_num_threads()), key=self._timed))

    def _timed(self, threads: int) -> float:
        """Seconds of a round on this many threads; the loop then keeps to the faster number."""
        torch.set_num_threads(threads)
        self.round()
        began = time.perf_counter()
        self.round()
        return time.perf_counter() - began

    def round(self) -> None:
        """Play the next round of FedAvg."""
        t = next(self._numbers)
        recipe, task, seed = self._experiment.recipe, self._experiment.task, self._experiment.seed
        samples, local = task.federation.train, recipe.local
        cohort = recipe.select.choose(self._experiment.server.states["select"], t)
        weights = samples.sizes[cohort.clients].float()
        total = {name: torch.zeros_like(value) for name, value in self._model.items()}
        for client, draw, weight in zip(cohort.clients, cohort.draws, weights / weights.sum(), strict=True):
            self._local.load_state_dict(self._model, strict=False)  # buffers stay as they are
            optimizer = torch.optim.SGD(self._local.parameters(), lr=local.rate(t))
            batches = local.batches(t, client[None], draw[None], samples.sizes[client][None], 1, seed)
            for index in batches.index[0]:
                features, label = samples.batch(samples.offsets[client] + index)
                optimizer.zero_grad()
                task.loss(self._local(**features), label).mean().backward()
                if local.clip is not None:
                    nn.utils.clip_grad_norm_(self._local.parameters(), local.clip)
                optimizer.step()
            with torch.no_grad():
                for name, value in self._local.named_parameters():
                    total[name].add_(value - self._model[name], alpha=float(weight))
        for name, value in total.items():
            self._model[name] += value
