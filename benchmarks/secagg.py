"""Secure aggregation beside Flower's: `python -m benchmarks.secagg [--flower FOLDER] [--json FILE]`.

50 clients with a million parameters, all pairs, 5 clients lost after they shared their secrets. Both sides sum the same
updates, clipped and rounded to 2^16 levels, and compute the same mean. CPU seconds are of one process; wall seconds are
of one thread per core for fedslice, and of what Flower's functions use. Repeats are interleaved.

`--flower` names a folder made by `pip install --target FOLDER flwr==1.41.0`; without it an environment is made under
`.bench/`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PEERS = Path(__file__).parent / "peers"
CLIP, BITS = 0.1, 16


def play(updates: np.ndarray, lost: int, threads: int) -> dict[str, Any]:
    """One secure sum: rounding, packing and unpacking of all uploads, and the protocol."""
    from concurrent.futures import ThreadPoolExecutor

    from fedslice.privacy.quantize import Quantizer
    from fedslice.privacy.secagg.messages import Masked, Vector, make_setup
    from fedslice.privacy.secagg.plain import Lost
    from fedslice.privacy.secagg.play import play as play_protocol

    size, length = updates.shape
    quantizer = Quantizer(CLIP, size, BITS)
    setup = make_setup(0, os.urandom(16), size, {"update": Vector(quantizer.ring, length)})
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}

    with ThreadPoolExecutor(threads) as pool:
        began, before = time.perf_counter(), time.process_time()
        rounded = pool.map(lambda c: quantizer.quantize(updates[c], 1.0, (7, 0, c, 0))[0], range(size))
        elements = np.stack(list(rounded))
        seconds["quantize"], cpu["quantize"] = time.perf_counter() - began, time.process_time() - before
        before = time.process_time()
        played = play_protocol(setup, {"update": elements}, Lost(masked=frozenset(range(lost))), threads=threads)
        seconds |= played.seconds
        cpu["protocol"] = time.process_time() - before
        sent = [m.vectors["update"] for m in played.received if isinstance(m, Masked)]
        ring = quantizer.ring
        began, before = time.perf_counter(), time.process_time()
        again = list(pool.map(lambda vector: ring.unpack(ring.pack(vector), length), sent))
        seconds["pack"], cpu["pack"] = time.perf_counter() - began, time.process_time() - before
    assert all(np.array_equal(a, b) for a, b in zip(again, sent, strict=True))
    mean = quantizer.value(played.sums["update"]) / (size - lost)
    wanted = np.clip(updates[lost:], -CLIP, CLIP).mean(0)
    plain = (length * BITS + 7) // 8
    up = sum(phase.max() for phase in played.up.values())
    down = sum(phase.max() for phase in played.down.values())
    return {
        "wall": seconds,
        "cpu": cpu,
        "error": float(np.abs(mean - wanted).max()),
        "up_bytes": int(up),
        "down_bytes": int(down),
        "times_plain": float(up / plain),
    }


def drawn(clients: int, parameters: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.03, (clients, parameters)).astype(np.float32)


def worker(clients: int, parameters: int, lost: int, threads: int) -> None:
    """Play whenever a line comes in."""
    updates = drawn(clients, parameters)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(play(updates, lost, threads)), flush=True)


class Side:
    """A worker process."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.found: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{command} did not start; its complaint is above.")

    def measure(self) -> None:
        """Play once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        self.found.append(json.loads(self._process.stdout.readline()))

    def median(self, kind: str) -> dict[str, float]:
        """Seconds by phase."""
        return {phase: statistics.median(one[kind][phase] for one in self.found) for phase in self.found[0][kind]}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Both sides, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--lost", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--flower", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.clients, asked.parameters, asked.lost, asked.threads)
        return
    size = [f"--{name}={getattr(asked, name)}" for name in ("clients", "parameters", "lost")]
    command = [sys.executable, "-m", "benchmarks.secagg", "--worker", *size]
    if asked.flower is None:
        from benchmarks.peers import environments

        flower = Side([str(environments.python("flower")), str(PEERS / "flower_secagg.py"), *size])
    else:
        path = {**os.environ, "PYTHONPATH": str(asked.flower)}
        flower = Side([sys.executable, str(PEERS / "flower_secagg.py"), *size], path)
    sides = {
        f"fedslice, {asked.threads} threads": Side([*command, f"--threads={asked.threads}"]),
        "fedslice, 1 thread": Side([*command, "--threads=1"]),
        "Flower": flower,
    }
    for repeat in range(asked.repeats):
        for side in sides.values():
            side.measure()
        print(f"repeat {repeat + 1} of {asked.repeats}", file=sys.stderr, flush=True)
    rows = []
    for name, side in sides.items():
        side.close()
        wall, cpu = side.median("wall"), side.median("cpu")
        rows.append({"side": name, "wall": wall, "cpu": sum(cpu.values()), "error": side.found[-1]["error"]})
        for kind, seconds in (("wall", wall), ("CPU", cpu)):
            phases = ", ".join(f"{phase} {each:.2f}" for phase, each in seconds.items())
            print(f"{name:20} {sum(seconds.values()):6.2f} s {kind:4} ({phases})")
    ours, theirs = rows[1], rows[2]
    first = next(iter(sides.values())).found[-1]
    print(f"CPU of fedslice over Flower's: {ours['cpu'] / theirs['cpu']:.3f}")
    print(f"bytes up per client: {first['up_bytes']:,}, {first['times_plain']:.3f} times the plain rounded upload;")
    print(f"bytes down per client besides the model: {first['down_bytes']:,}")
    print(f"largest error of the mean: fedslice {ours['error']:.2e}, Flower {theirs['error']:.2e}")
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
