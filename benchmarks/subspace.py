"""The subspace race: 20 clients with 64 pictures each in batches of 128, FLSS's CNN on CIFAR-10's shape, R=50, s=5.

`python -m benchmarks.subspace fedavg|flss EPOCHS` speaks the protocol of `peers/workload.py`. Of every five rounds of
`flss` the first is a full one. Its basis is planted: fifty rounds of sampling would cost the same whatever they find.
"""

import sys
import time

import torch

from benchmarks.peers.workload import Requests
from fedslice import recipes, tasks
from fedslice.codecs.basis import Basis
from fedslice.codecs.subspace import Subspace
from fedslice.training.engines.scope import threads
from fedslice.training.experiment import Experiment
from fedslice.training.rounds import play_round

CLIENTS, PICTURES, RANK, EVERY = 20, 64, 50, 5
_STEP = 1e-4  # a parameter's, so that directions of the basis weigh about as much as updates


def experiment(kind: str, epochs: int) -> Experiment:
    """FedAvg, or FLSS, after one round of warm-up."""
    options = {"train": CLIENTS * PICTURES, "clients": CLIENTS, "model": "fedavgcnn"}
    task = tasks.get("cifar10").build(options, None)
    own = {"rank": RANK, "warmup": 1, "every": EVERY} if kind == "flss" else {}
    recipe = recipes.get(kind, select="everyone", lr=0.01, batch_size=128, epochs=epochs, **own)
    made = Experiment(task, recipe, rounds=1)
    play_round(made.server, made.transport)
    state = made.server.states["codec"]
    if isinstance(state, Subspace):
        size = sum(shape.numel() for shape in task.shapes.values())
        chance = torch.Generator().manual_seed(0)
        state.basis = Basis.of(_STEP * torch.randn(size, RANK, generator=chance), RANK)
    return made


def main() -> None:
    """Answer requests until the input ends."""
    kind, epochs = sys.argv[1:]
    requests, run = Requests(), experiment(kind, int(epochs))
    with threads(run.engine.round_threads):
        for _ in range(EVERY):
            play_round(run.server, run.transport)
        requests.ready()
        for count in requests:
            marks = [time.perf_counter()]
            for _ in range(count):
                play_round(run.server, run.transport)
                marks.append(time.perf_counter())
            requests.answer(marks)


if __name__ == "__main__":
    main()
