"""Flower's own SecAgg+ functions on one cohort, as its workflow calls them; `benchmarks/secagg.py` starts this.

Messages stay arrays in memory: what is timed is the arithmetic and the cryptography, and neither Flower's records nor
its grid.
"""

import argparse
import importlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

# The package has a function of the module's name.
mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
CLIP, LEVELS, MODULUS, WEIGHT = 0.1, 1 << 16, 1 << 32, 1000.0


class Clock:
    """CPU and wall seconds by phase."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.wall: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall


def play(updates: np.ndarray, lost: int, clock: Clock) -> np.ndarray:
    """One secure sum over all pairs; the first clients are lost after they shared their secrets."""
    size = len(updates)
    threshold = size // 2 + 1
    everyone, dead = list(range(size)), list(range(lost))
    states = [mod.SecAggPlusState() for _ in everyone]
    setup = {
        Key.SAMPLE_NUMBER: size,
        Key.SHARE_NUMBER: size,
        Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: CLIP,
        Key.TARGET_RANGE: LEVELS,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: WEIGHT,
    }
    with clock.phase("keys"):
        keys = {}
        for node, state in enumerate(states):
            state.nid = node
            found = mod._setup(state, setup)
            keys[node] = (found[Key.PUBLIC_KEY_1], found[Key.PUBLIC_KEY_2])
    with clock.phase("shares"):
        sources: list[list[int]] = [[] for _ in everyone]
        texts: list[list[bytes]] = [[] for _ in everyone]
        for node, state in enumerate(states):
            found = mod._share_keys(state, {str(other): key for other, key in keys.items()})
            for to, text in zip(found[Key.DESTINATION_LIST], found[Key.CIPHERTEXT_LIST], strict=True):
                sources[to].append(node)
                texts[to].append(text)
    alive = everyone[lost:]
    with clock.phase("masked"):
        total = None
        for node in alive:
            got = {Key.CIPHERTEXT_LIST: texts[node], Key.SOURCE_LIST: sources[node]}
            parameters = ndarrays_to_parameters([updates[node]])
            found = mod._collect_masked_vectors(states[node], got, int(WEIGHT), parameters)
            vector = [bytes_to_ndarray(part) for part in found[Key.MASKED_PARAMETERS]]
            total = vector if total is None else parameters_addition(total, vector)
        total = parameters_mod(total, MODULUS)
    with clock.phase("reveal"):
        shares: dict[int, list[bytes]] = {node: [] for node in everyone}
        for node in alive:
            asked = {Key.ACTIVE_NODE_ID_LIST: alive, Key.DEAD_NODE_ID_LIST: dead}
            found = mod._unmask(states[node], asked)
            for owner, share in zip(found[Key.NODE_ID_LIST], found[Key.SHARE_LIST], strict=True):
                shares[owner].append(share)
        for node, given in shares.items():
            secret = combine_shares(given)
            if node in alive:
                mask = pseudo_rand_gen(secret, MODULUS, get_parameters_shape(total))
                total = parameters_subtraction(total, mask)
                continue
            for other in everyone:
                if other == node:
                    continue
                key = generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(keys[other][0]))
                mask = pseudo_rand_gen(key, MODULUS, get_parameters_shape(total))
                total = (parameters_addition if node > other else parameters_subtraction)(total, mask)
        total = parameters_mod(total, MODULUS)
        factor, values = factor_extract(total)
        mean = dequantize(values, CLIP, LEVELS)[0] - (len(alive) - 1) * CLIP
    return mean * (LEVELS / factor)


def main() -> None:
    """Play whenever a line comes in."""
    parser = argparse.ArgumentParser()
    for name in ("clients", "parameters", "lost"):
        parser.add_argument(f"--{name}", type=int)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    updates = np.random.default_rng(0).normal(0, 0.03, (asked.clients, asked.parameters)).astype(np.float32)
    wanted = np.clip(updates[asked.lost :], -CLIP, CLIP).mean(0)
    print("ready", flush=True)
    for _ in sys.stdin:
        clock = Clock()
        mean = play(updates, asked.lost, clock)
        error = float(np.abs(mean - wanted).max())
        print(json.dumps({"cpu": clock.cpu, "wall": clock.wall, "error": error}), flush=True)


if __name__ == "__main__":
    main()
