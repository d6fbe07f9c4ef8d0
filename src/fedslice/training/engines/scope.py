"""Settings of PyTorch that hold for a while and are put back afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run on this many threads."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def noise(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators that layers such as dropout draw from.

    On the CPU its generator alone is seeded: ``torch.manual_seed`` would also note a call for every absent accelerator.
    """
    if device.type == "cpu":
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)
        return
    with torch.random.fork_rng(devices=[device], device_type=device.type):
        torch.manual_seed(seed)
        yield
