"""Speed and memory against peers: `python -m benchmarks [--data DIR] [--repeats R] [--json FILE]`.

Every contestant is a process of its own that waits while others run. Repeats are interleaved, so that noise of the
machine falls on all alike, and medians are reported.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import families, neighbours, population, tables, weights
from benchmarks.peers import environments
from benchmarks.subspace import EVERY
from fedslice import tasks

PEERS = Path(__file__).parent / "peers"
_REST = 2.0  # seconds: some peers go on working after they have answered


class Contestant:
    """A worker process and what it measured."""

    def __init__(self, name: str, command: list[str], rounds: int):
        self.name = name
        self.rounds = rounds
        self.seconds: list[float] = []
        self.each: list[list[float]] = []  # the rounds of every repeat
        self.peak = 0
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(f"starting {name}", file=sys.stderr, flush=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{name} did not start; its complaint is above.")

    def measure(self) -> None:
        """One repeat: the median of a few rounds, after a rest in which the one before clears up."""
        time.sleep(_REST)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(f"rounds {self.rounds}", file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        self.each.append(answer["seconds_per_round"])
        self.seconds.append(statistics.median(self.each[-1]))
        self.peak = answer.get("peak_bytes", 0)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    @property
    def median(self) -> float:
        """Seconds per round."""
        return statistics.median(self.seconds)


def worker(kind: str, task: str, *options: str) -> list[str]:
    """The command of a contestant written here."""
    return [sys.executable, "-m", "benchmarks.worker", kind, task, *options]


def peer(name: str, data: Path) -> list[str]:
    """The command of a peer, with its own interpreter."""
    return [str(environments.python(name)), str(PEERS / f"{name}_movielens.py"), str(data)]


def race(contestants: list[Contestant], repeats: int) -> None:
    """Interleaved repeats."""
    for repeat in range(repeats):
        for each in contestants:
            each.measure()
        print(f"repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
    for each in contestants:
        each.close()


def export(data: Path, folder: Path) -> Path:
    """MovieLens as the peers read it."""
    train = tasks.get("movielens").build({}, data).federation.train
    path = folder / "movielens.npz"
    ids = train.features["ids"].numpy()
    np.savez(path, offsets=train.offsets.numpy(), ids=ids, labels=train.label.numpy())
    return path


Start = Callable[[], list[Contestant]]


def ratios(task: str, start: Start, repeats: int) -> list[dict[str, Any]]:
    """Seconds per round of each contestant, and how many times the first one's."""
    contestants = start()
    race(contestants, repeats)
    return [ratio(task, each.name, each.seconds, contestants[0].seconds) for each in contestants]


def ratio(task: str, who: str, theirs: list[float], ours: list[float]) -> dict[str, Any]:
    """Seconds per round, repeat by repeat, against those of the first contestant."""
    times = [their / our for their, our in zip(theirs, ours, strict=True)]
    return {
        "task": task,
        "who": who,
        "seconds_per_round": statistics.median(theirs),
        "times_fedslice": statistics.median(times),
        "times_min": min(times),
        "times_max": max(times),
    }


def speed(data: Path, repeats: int) -> list[dict[str, Any]]:
    """On real data: MovieLens and Amazon."""
    with tempfile.TemporaryDirectory() as folder:
        npz = export(data, Path(folder))
        place = ("--data", str(data))
        races: dict[str, Start] = {
            "movielens": lambda: [
                Contestant("fedslice", worker("fedavg", "movielens", *place), 40),
                Contestant("plain loop", worker("plain", "movielens", *place), 5),
                Contestant("pfl 0.6.0, 1 process", ["taskset", "--cpu-list", "0", *peer("pfl", npz)], 5),
                Contestant("pfl 0.6.0, 1 per core", peer("pfl", npz), 5),
                Contestant("Flower 1.41, 50 nodes", [*peer("flower", npz), "50"], 3),
                Contestant("Flower 1.41, a node per client", peer("flower", npz), 2),
            ],
            "amazon": lambda: [
                Contestant("fedslice", worker("fedavg", "amazon", *place), 5),
                Contestant("plain loop", worker("plain", "amazon", *place), 1),
            ],
        }
        return [row for task, start in races.items() for row in ratios(task, start, repeats)]


def language(repeats: int) -> list[dict[str, Any]]:
    """The LSTM's cohort, against `torch.nn.LSTM` one client at a time."""
    return ratios(
        "lstm",
        lambda: [
            Contestant("fedslice", worker("fedavg", "lstm"), 3),
            Contestant("plain loop", worker("plain", "lstm"), 1),
        ],
        repeats,
    )


def images(repeats: int) -> list[dict[str, Any]]:
    """Convolutions, where there is nothing to win by training clients together: what do the rounds cost besides?"""
    return ratios(
        "cifar10",
        lambda: [
            Contestant("fedslice, FedDD", worker("feddd", "images"), 1),
            Contestant("fedslice, FedAvg", worker("fedavg", "images"), 1),
            Contestant("plain loop", worker("plain", "images"), 1),
        ],
        repeats,
    )


def streaming(repeats: int) -> list[dict[str, Any]]:
    """What the rounds of FLSS cost beside FedAvg's, with one epoch of local training and with FLSS's five."""
    rows = []
    for epochs in (1, 5):
        task = f"cnn, E={epochs}"
        command = [sys.executable, "-m", "benchmarks.subspace"]
        fedavg, flss = (
            Contestant(f"{kind}, {task}", [*command, kind, str(epochs)], rounds)
            for kind, rounds in (("fedavg", 2), ("flss", EVERY))
        )
        race([fedavg, flss], repeats)
        kinds = {
            "FedAvg": fedavg.seconds,
            "FLSS, projected round": [statistics.median(rounds[1:]) for rounds in flss.each],
            "FLSS, full round": [rounds[0] for rounds in flss.each],
            f"FLSS, mean of {EVERY}": [statistics.mean(rounds) for rounds in flss.each],
        }
        rows += [ratio(task, who, seconds, fedavg.seconds) for who, seconds in kinds.items()]
    return rows


def scaling(repeats: int) -> list[dict[str, Any]]:
    """The same clients and slices in tables of 10^5, 10^6 and 10^7 rows."""
    sizes = (10**5, 10**6, 10**7)
    contestants = [Contestant(f"{n:,} items", worker("fedsubavg", "hotcold", "--items", str(n)), 20) for n in sizes]
    race(contestants, repeats)
    table_bytes = [items * 9 * 4 for items in sizes]  # eight factors and a bias per item
    first = contestants[0]
    return [
        {
            "items": items,
            "seconds_per_round": each.median,
            "times_smallest": statistics.median(
                mine / base for mine, base in zip(each.seconds, first.seconds, strict=True)
            ),
            "table_bytes": size,
            "peak_bytes": each.peak,
            "extra_peak_over_extra_table": (each.peak - first.peak) / (size - table_bytes[0])
            if each is not first
            else None,
        }
        for items, each, size in zip(sizes, contestants, table_bytes, strict=True)
    ]


def crowded(data: Path | None, repeats: int) -> list[dict[str, Any]]:
    """Rounds beside processes that never wait: as the library trains, and on PyTorch's threads."""
    rows = []
    for task, rounds in neighbours.TASKS.items():
        if task == "amazon" and data is None:
            continue
        all_of_them = [
            Contestant(f"{task}, {setting}", neighbours.command(task, setting, data), rounds)
            for setting in neighbours.SETTINGS
        ]
        found: dict[int, list[list[float]]] = {count: [[] for _ in all_of_them] for count in neighbours.BUSY}
        for repeat in range(repeats):
            for count, seconds in found.items():
                with neighbours.busy(count):
                    for each, own in zip(all_of_them, seconds, strict=True):
                        each.measure()
                        own.append(each.seconds[-1])
            print(f"repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
        for each in all_of_them:
            each.close()
        best = min(statistics.median(own) for own in found[0])
        for place, setting in enumerate(neighbours.SETTINGS):
            medians = {count: statistics.median(seconds[place]) for count, seconds in found.items()}
            fair = {count: neighbours.times_fair(median, best, count) for count, median in medians.items()}
            rows.append({"task": task, "setting": setting, "seconds_per_round": medians, "times_fair": fair})
    return rows


def race_line(row: dict[str, Any]) -> str:
    """A contestant beside the first."""
    return (
        f"{row['task']:<10} {row['who']:<31} {row['seconds_per_round'] * 1000:>9.1f} ms per round"
        f"  {row['times_fedslice']:>7.2f} x  (from {row['times_min']:.2f} to {row['times_max']:.2f})"
    )


def weights_line(row: dict[str, Any]) -> str:
    """A perceptron on both engines."""
    together, alone = (1000 * row["seconds"][engine] for engine in weights.ENGINES)
    return (
        f"perceptron {row['weights']:>9,} weights, batch {row['batch']:>3}: {together:>6.2f} ms together"
        f" {alone:>6.2f} ms one by one, chosen {row['chosen']}"
    )


def families_line(row: dict[str, Any]) -> str:
    """A family of models on both engines, and as chosen."""
    cells = "".join(f"{1000 * row['seconds'].get(engine, math.nan):>10.1f}" for engine in families.ENGINES)
    return (
        f"{row['family']:<17} {row['size']:<10} batch {row['batch']:>2}:{cells} ms per round"
        f" ({', '.join(families.ENGINES)}), auto {row['auto_over_best']:.2f} x the best, {row['chosen']}"
    )


def neighbours_line(row: dict[str, Any]) -> str:
    """A setting when the machine is quiet, and beside busy processes."""
    cells = "".join(
        f"{1000 * row['seconds_per_round'][count]:>9.1f} ms ({row['times_fair'][count]:>5.2f} x fair)"
        for count in neighbours.BUSY
    )
    return f"{row['task']:<12} {row['setting']:<16}{cells}  beside {', '.join(map(str, neighbours.BUSY))} busy"


def scaling_line(row: dict[str, Any]) -> str:
    """A table beside the smallest."""
    return (
        f"hotcold {row['items']:>11,} items {row['seconds_per_round'] * 1000:>8.1f} ms per round"
        f"  {row['times_smallest']:>5.2f} x  table {row['table_bytes'] / 1e6:>6.1f} MB"
        f"  peak {row['peak_bytes'] / 1e6:>7.1f} MB"
    )


def population_line(row: dict[str, Any]) -> str:
    """A recipe with few and with many clients."""
    few, many = (
        f"{1000 * row['seconds'][clients]:>8.2f} ms with {clients:,} clients" for clients in population.CLIENTS
    )
    return (
        f"{row['recipe']:<16} {few}, {many}: {row['times']:>6.2f} x  (from {row['times_min']:.2f} to "
        f"{row['times_max']:.2f}){'  looks at all clients' if row['all_clients'] else ''}"
    )


def tables_line(row: dict[str, Any]) -> str:
    """A federation from a table."""
    return (
        f"{row['rows']:>11,} rows from a {row['source']:<8} {row['rows'] / row['seconds'] / 1e6:>6.2f} million rows/s"
        f" ({row['seconds']:.1f} s, {row['cpu_seconds']:.1f} s of CPU), peak {row['peak_bytes'] / 1e9:.2f} GB"
        f" ({row['before_bytes'] / 1e9:.2f} GB before)"
    )


Rows = list[dict[str, Any]]
PARTS: dict[str, tuple[Callable[[Any, int], Rows], Callable[[dict[str, Any]], str]]] = {
    "speed": (speed, race_line),
    "language": (lambda _, repeats: language(repeats), race_line),
    "images": (lambda _, repeats: images(repeats), race_line),
    "subspace": (lambda _, repeats: streaming(repeats), race_line),
    "weights": (lambda _, repeats: weights.rows(repeats), weights_line),
    "families": (lambda _, repeats: families.rows(repeats), families_line),
    "neighbours": (crowded, neighbours_line),
    "scaling": (lambda _, repeats: scaling(repeats), scaling_line),
    "population": (lambda _, repeats: population.rows(repeats), population_line),
    "tables": (lambda _, repeats: tables.rows(repeats), tables_line),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with ml-1m.zip and the Amazon training file")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    given = parser.parse_args()
    found: dict[str, Any] = {"repeats": given.repeats}
    if given.only == "speed" and given.data is None:
        parser.error("the races on real data need --data (make bench DATA=...)")
    for name, (measure, line) in PARTS.items():
        if given.only == name or (given.only is None and (name != "speed" or given.data is not None)):
            found[name] = measure(given.data, given.repeats)
            for row in found[name]:
                print(line(row), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
