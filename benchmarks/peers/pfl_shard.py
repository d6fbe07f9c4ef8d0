"""One process of the pfl-research simulation that `pfl_movielens.py` starts.

Tensors in memory, the simulated backend, FedAvg and plain SGD, as in pfl's own PyTorch examples; metrics
are neither evaluated nor printed. One thread per process: the model is too small for more.
"""

import os
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import BATCH, COHORT, FEATURES, LEARNING_RATE, STEPS, WARM_UP, Clients, Requests

NEVER = sys.maxsize


class LogisticRegression(nn.Module):
    """One value per feature; pfl asks for the loss and the metrics as methods."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(FEATURES, 1)
        nn.init.zeros_(self.table.weight)
        self.criterion = nn.BCEWithLogitsLoss()

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        return self.table(ids).sum((1, 2))

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the batch's mean loss."""
        return self.criterion(self(ids), labels)

    def metrics(self, ids: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """Return what pfl evaluates in its very first iteration, which is never timed."""
        return {"loss": Weighted(self.loss(ids, labels).item() * len(labels), len(labels))}


class ClientDataset(PyTorchTensorDataset):
    """A client's samples, iterated as random batches drawn with replacement."""

    def __init__(self, clients: Clients, client: int) -> None:
        part = slice(clients.offsets[client], clients.offsets[client + 1])
        super().__init__((clients.ids[part], clients.labels[part]))
        self._clients, self._client = clients, client

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of one round (or, without a batch size, all samples)."""
        return super().iter(None) if batch_size is None else self._clients.batches(self._client)


class Cohorts:
    """Names the clients of cohort after cohort, each drawn without replacement; alike in all processes."""

    def __init__(self, population: int) -> None:
        self._population = population
        self._random = np.random.default_rng(0)
        self._left: list[int] = []

    def __call__(self) -> int:
        if not self._left:
            self._left = self._random.choice(self._population, COHORT, replace=False).tolist()
        return self._left.pop()


class Clock(TrainingProcessCallback):
    """Marks the time when training begins and after every central iteration."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_begin(self, **_: object) -> Metrics:
        """Mark the start of the first iteration."""
        self.marks = [time.perf_counter()]
        return Metrics()

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        """Mark the end of an iteration, with the model updated."""
        self.marks.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Warm up, then run the rounds that are asked for."""
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # or pfl looks for a GPU with every batch
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002 - pfl wants the same global seed in all its processes
    requests = Requests()
    clients = Clients(sys.argv[1])
    module = LogisticRegression()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset(lambda client: ClientDataset(clients, client), Cohorts(len(clients)))
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    local = NNTrainHyperParams(
        local_num_epochs=None,
        local_num_steps=STEPS,
        local_learning_rate=LEARNING_RATE,
        local_batch_size=BATCH,
    )
    algorithm, clock, total = FederatedAveraging(), Clock(), 0

    def run(rounds: int) -> None:
        nonlocal total
        total += rounds  # a further run continues where the last one ended
        plan = NNAlgorithmParams(
            central_num_iterations=total,
            evaluation_frequency=NEVER,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        )
        algorithm.run(plan, backend, model, local, callbacks=[clock], send_metrics_to_platform=False)

    run(WARM_UP)
    requests.ready()
    for rounds in requests:
        run(rounds)
        requests.answer(clock.marks)


if __name__ == "__main__":
    main()
