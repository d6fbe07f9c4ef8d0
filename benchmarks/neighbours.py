"""Rounds beside busy processes: as the library trains, and on PyTorch's threads.

`python -m benchmarks.neighbours TASK SETTING [--data DIR]` speaks the protocol of `peers/workload.py`. Settings other
than the library's own train a chunk on PyTorch's threads, which share out single operations and spin while they wait
for each other. How long is fixed when OpenMP is loaded, before anything of ours runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks import families
from benchmarks.peers.workload import Requests
from fedslice import recipes, tasks
from fedslice.training.engines.scope import threads
from fedslice.training.experiment import Experiment
from fedslice.training.rounds import play_round

TASKS = {"hotcold": 20, "taobao": 3, "amazon-like": 3, "amazon": 3}  # and the rounds of a repeat
BUSY = (0, 1, 2)
LIBRARY = "workers"
NOTEBOOK = "workers, as in a notebook"  # PyTorch's threads are there and were used before
SETTINGS: dict[str, tuple[str, ...]] = {
    LIBRARY: (),
    NOTEBOOK: (),
    "two threads": (),
    "one thread": (),
    "passive waiting": ("OMP_WAIT_POLICY=passive",),
    "bounded spin": ("GOMP_SPINCOUNT=10000",),
}
_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # it does not outlive the bench
_AMAZON = {"cohort": 100, "lr": 0.05, "batch_size": 4, "clip": 10.0}


def command(task: str, setting: str, data: Path | None) -> list[str]:
    """The command of a contestant."""
    place = [] if data is None or task != "amazon" else ["--data", str(data)]
    return ["env", *SETTINGS[setting], sys.executable, "-m", "benchmarks.neighbours", task, setting, *place]


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that never wait, for a while."""
    processes = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(count)]
    try:
        time.sleep(0.5 if count else 0.0)  # until they are started
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def times_fair(seconds: float, best: float, count: int) -> float:
    """How many times the fair share a round takes beside ``count`` busy processes.

    A process with as many threads as the machine has cores has a claim to ``cores / (cores + count)`` of them. Its
    round then takes ``(cores + count) / cores`` times that of the best setting when the machine is quiet.
    """
    cores = torch.get_num_threads()
    return seconds / (best * (cores + count) / cores)


def experiment(name: str, data: Path | None) -> Experiment:
    """A task at its own settings, or with generated samples in the place of Amazon's."""
    if name == "amazon-like":
        size = families.FAMILIES["din"][1]
        recipe = recipes.get("fedsubavg").with_options(_AMAZON)
        return Experiment(families.task(size, 4, clients=1000), recipe, rounds=1)
    entry = tasks.get(name)
    task = entry.build({"scale": 0.02} if name == "taobao" else {}, data if name == "amazon" else None)
    return Experiment(task, recipes.get("fedsubavg").with_options(entry.settings), rounds=1)


def main() -> None:
    """Answer requests until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    if given.setting == NOTEBOOK:
        torch.randn(2000, 2000) @ torch.randn(2000, 2000)
    requests, run = Requests(), experiment(given.task, given.data)
    count = run.engine.round_threads
    if given.setting not in (LIBRARY, NOTEBOOK):
        count = 1 if given.setting == "one thread" else torch.get_num_threads()
        run.population._chosen = run.engine._replace(engine=type(run.engine.engine)())
    with threads(count):
        for _ in range(2):
            play_round(run.server, run.transport)
        requests.ready()
        for rounds in requests:
            marks = [time.perf_counter()]
            for _ in range(rounds):
                play_round(run.server, run.transport)
                marks.append(time.perf_counter())
            requests.answer(marks)


if __name__ == "__main__":
    main()
