"""Which engine, and how many clients at once: a short calibration that counts instead of timing.

Timing would let the noise of a machine pick the engine, and two runs of one command could then differ in the last
bits. One step of one client is run and its operations, floating-point work and memory are counted; the same task and
recipe always get the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedslice.engines.base import Engine
from fedslice.engines.sequential import Sequential
from fedslice.engines.vectorized import NotVectorizableError, Vectorized
from fedslice.errors import unknown
from fedslice.local.sgd import SGD
from fedslice.task import Task
from fedslice.work import Work

ENGINES: dict[str, type[Engine]] = {"vectorized": Vectorized, "sequential": Sequential}

# Vectorising spares each client the fixed price of its operations. In exchange a convolution whose weights differ by
# client runs as a grouped one, which takes a tenth to a third longer, or twice as long as one that finds the channels
# of a pixel side by side. Measured on small image networks, one thread: vectorising wins up to threefold below these
# numbers, the engines tie around them, sequential wins by a third to two thirds above. Besides, values, gradients and
# steps of several clients do not stay in a cache where those of one do. Measured on perceptrons, batches of 10 to 128:
# vectorising wins up to fourfold below 150,000 weights, sequential by up to a half of the time from 270,000 on.
_OPERATION_SECONDS = 10e-6
_BYTES_PER_SECOND = 2e9
_FLOPS_PER_SECOND = 2e10
_GROUPED_SLOWDOWN = 0.1
_GROUPED_SLOWDOWN_CHANNELS_LAST = 1.0
_PARALLEL_FLOPS = 2e7  # a step with less matrix work than this runs faster, and far steadier, on one thread
_CHUNK_BYTES = 64 << 20  # what a chunk's values and activations may take: more falls out of the caches
_MEMORY_BYTES = 1 << 30  # the same for a model whose main layer divides a chunk by itself (fedslice.nn.LSTM)


class Choice(NamedTuple):
    """An engine, the number of clients it takes at once, the threads it uses, and why.

    ``forced`` is true if the model left no choice.
    """

    engine: Engine
    chunk: int
    threads: int
    reason: str
    forced: bool = False


def choose(name: str, chunk: int | None, task: Task, local: SGD, work: Work, cohort: int) -> Choice:
    """The engine by name, or by counting on ``work``, a few clients of a cohort of this size."""
    if name != "auto" and name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    one = work.part(slice(1)).first(1)
    cost = _count(task, local, one)  # a mistake in the user's model shows here, in plain PyTorch
    shares_out = any(getattr(layer, "keeps_to_the_cache", False) for layer in task.module.modules())
    room = _MEMORY_BYTES if shares_out else _CHUNK_BYTES
    size = chunk or _even(cohort, max(1, int(room // cost.bytes)))
    spilled = 0 if shares_out else cost.values
    kind, reason, forced = _kind(name, cost, spilled, task, local, work)
    together = cost.flops * (1 if kind is Sequential else size)
    threads = 1 if together < _PARALLEL_FLOPS else torch.get_num_threads()
    return Choice(kind(), size, threads, reason, forced)


def _even(cohort: int, most: int) -> int:
    """Chunks of about one size, none larger than ``most``."""
    return -(-cohort // -(-cohort // most))


def _kind(name: str, cost: _Cost, spilled: int, task: Task, local: SGD, work: Work) -> tuple[type[Engine], str, bool]:
    if name != "auto":
        return ENGINES[name], "by name", False
    saved = cost.operations * _OPERATION_SECONDS
    grouped, fetched = cost.grouped / _FLOPS_PER_SECOND, spilled / _BYTES_PER_SECOND
    if grouped + fetched > saved:
        what = "convolutions outweigh" if grouped > fetched else "the way of many weights to the memory outweighs"
        return Sequential, f"{what} what vectorising spares", False
    try:
        Vectorized().train(task, local, work.first(1))
    except NotVectorizableError as error:
        return Sequential, f"vmap cannot carry this model ({error.reason})", True
    return Vectorized, "many small operations", False


class _Cost(NamedTuple):
    operations: int
    flops: int
    grouped: float  # floating-point work that convolutions would take besides if they were grouped
    values: int  # bytes of what is trained, its gradient and its step
    bytes: int


class _Counter(TorchDispatchMode):
    """Counts the kernels that are called and their floating-point work."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.flops = 0
        self.grouped = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No compiler runs here, and to tell it to stand aside would load it first, which takes a second or two."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            flops = formula(*args, **(kwargs or {}), out_val=out)
            self.flops += flops
            if "convolution" in func.overloadpacket.__name__:
                self.grouped += flops * _slowdown(args[0])
        return out


def _slowdown(image: Tensor) -> float:
    """How much longer a grouped convolution takes than one of this layout, as a share."""
    side_by_side = image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
    return _GROUPED_SLOWDOWN_CHANNELS_LAST if side_by_side else _GROUPED_SLOWDOWN


def _count(task: Task, local: SGD, work: Work) -> _Cost:
    """Operations, floating-point work and bytes of one client's step."""
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with _Counter() as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        Sequential().train(task, local, work)
    values = 3 * sum(v.numel() * v.element_size() for v in work.start.values())
    return _Cost(counter.operations, counter.flops, counter.grouped, values, values + kept)
