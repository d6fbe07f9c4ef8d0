"""One contestant in a process of its own: `python -m benchmarks.worker KIND TASK [--data DIR] [--items N]`.

The protocol is the peers' (`peers/workload.py`): `ready`, then for each line `rounds N` one line of JSON with the
seconds of each round, here with the peak memory of the process so far.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import images, language
from benchmarks.plain import PlainLoop
from fedslice import recipes, tasks
from fedslice.task import Task
from fedslice.tasks.hotcold import HotColdOptions, Taste
from fedslice.training.engines.scope import threads
from fedslice.training.experiment import Experiment
from fedslice.training.rounds import play_round

BASE_ITEMS = 100_000


def spread(items: int) -> Task:
    """Hotcold with 10^5 items laid out in a table of ``items`` rows: same clients, same slices, larger table."""
    options = HotColdOptions(items=BASE_ITEMS, clients=2000)
    task = tasks.get("hotcold").make(options, None)
    federation = task.federation
    for part in (federation.train, federation.test):
        part.features["item"] = part.features["item"] * (items // BASE_ITEMS)
    return replace(task, federation=federation, model=lambda: Taste(items, options.factors))


def contestant(kind: str, name: str, data: Path | None, items: int | None) -> Callable[[], None]:
    """What plays the next round."""
    settings: Mapping[str, Any] = {"cohort": 50, "lr": 0.1, "batch_size": 5}
    if name == "lstm":
        task = language.task(plain=kind == "plain")
    elif name == "images":
        task, settings = images.task(), images.SETTINGS | {"select": "everyone"}
    elif items:
        task = spread(items)
    else:
        task, settings = tasks.get(name).build({}, data), tasks.get(name).settings
    recipe = recipes.get("fedavg" if kind == "plain" else kind).with_options(settings)
    experiment = Experiment(task, recipe, rounds=1)
    if kind == "plain":
        return PlainLoop(experiment).round
    count = experiment.engine.round_threads

    def one_round() -> None:
        with threads(count):
            play_round(experiment.server, experiment.transport)

    return one_round


def main() -> None:
    """Answer requests until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("task")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--items", type=int)
    given = parser.parse_args()
    one_round = contestant(given.kind, given.task, given.data, given.items)
    for _ in range(3):
        one_round()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line.split()[1])):
            began = time.perf_counter()
            one_round()
            seconds.append(time.perf_counter() - began)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds_per_round": seconds, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
