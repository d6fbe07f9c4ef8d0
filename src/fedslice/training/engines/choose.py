"""The choice of engine, chunk and threads: a short calibration that counts instead of timing.

Timing would let the noise of a machine pick the engine, and two runs of one command could then differ in the last
bits. One step is run, of one client alone and of a few together, and its operations, floating-point work and memory
are counted; the same task and recipe always get the same answer on machines with the same number of threads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fedslice.core.errors import unknown
from fedslice.local.base import Local
from fedslice.task import Task
from fedslice.training.engines.base import Engine
from fedslice.training.engines.scope import noise
from fedslice.training.engines.sequential import Sequential
from fedslice.training.engines.vectorized import NotVectorizableError, Vectorized
from fedslice.training.engines.workers import Workers, twin
from fedslice.training.work import Work

ENGINES: dict[str, type[Vectorized] | type[Sequential]] = {"vectorized": Vectorized, "sequential": Sequential}

# Vectorising spares each client the fixed price of its operations, but for those that vmap runs client by client. In
# exchange a convolution whose weights differ by client runs as a grouped one, which takes a tenth to a third longer, or
# twice as long as one that finds the channels of a pixel side by side. Measured on small image networks, one thread:
# vectorising wins up to threefold below these numbers, the engines tie around them, sequential wins by a third to two
# thirds above. Besides, values, gradients and steps of several clients do not stay in a cache where those of one do.
# Measured on perceptrons, batches of 10 to 128: vectorising wins up to fourfold below 150,000 weights, sequential by up
# to a half of the time from 270,000 on. And some operations move more memory for several clients than for one, such as
# a product for which vmap repeats the weights, or the images of all clients side by side for a grouped convolution.
# Measured on encoders of transformers, batches of 5 and 32: vectorising wins up to sixfold at 16 units, the engines tie
# at 64, sequential wins up to twofold at 128.
_OPERATION_SECONDS = 10e-6
_CONVOLUTION = 10  # operations: its kernel is prepared again for each call
_LOOPED = 1.25  # operations: that vmap takes a client's values out for it, and puts them back
_BYTES_PER_SECOND = 2e9
_MOVED_BYTES_PER_SECOND = 1e10
_FLOPS_PER_SECOND = 2e10
_GROUPED_SLOWDOWN = 0.1
_GROUPED_SLOWDOWN_CHANNELS_LAST = 1.0
_PARALLEL_FLOPS = 2e7  # a step with less matrix work than this runs faster, and far steadier, on one thread
_CHUNK_BYTES = 64 << 20  # what a chunk's values and activations may take: more falls out of the caches
_MEMORY_BYTES = 1 << 30  # the same for a model whose main layer divides a chunk by itself (fedslice.nn.LSTM)


class Choice(NamedTuple):
    """An engine, the number of clients it takes at once, the threads it uses, and why.

    ``threads`` share out the operations of an evaluation, ``round_threads`` those of a round: one if the engine has
    several workers. ``forced`` is true if the model left no choice.
    """

    engine: Engine
    chunk: int
    threads: int
    reason: str
    forced: bool = False
    round_threads: int = 1


def choose(name: str, chunk: int | None, task: Task, local: Local, work: Work, cohort: int) -> Choice:
    """The engine by name, or by counting on ``work``, a few clients of a cohort of this size."""
    if name != "auto" and name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    cpu = work.label.device.type == "cpu"
    with noise(work.label.device, 0):
        before = torch.default_generator.get_state()
        alone = _count(Sequential, task, local, work, 1)  # a mistake in the user's model shows here, in plain PyTorch
        noisy = not torch.equal(before, torch.default_generator.get_state())
        kind, reason, forced, cost = _kind(name, alone, task, local, work)
        most = torch.get_num_threads() if cpu and _copies(task, local, work) else 1
    fits = max(1, int((_MEMORY_BYTES if _shares_out(task) else _CHUNK_BYTES) // cost.bytes))
    together = 1 if kind is Sequential else min(chunk or fits, cohort)
    if min(most, cohort, chunk or int(_MEMORY_BYTES // cost.bytes)) < 2:
        workers = 1
        threads = 1 if together * cost.flops < _PARALLEL_FLOPS else torch.get_num_threads()
    else:
        workers = threads = most if together * cost.seconds > cost.operations * _OPERATION_SECONDS else 1
    size = chunk or _even(cohort, fits, workers)
    engine = kind(Workers(workers, noisy))
    return Choice(engine, size, threads, reason, forced, round_threads=1 if workers > 1 else threads)


def _even(cohort: int, most: int, workers: int) -> int:
    """Chunks of about one size, about as large as ``most`` at most, that all workers share alike."""
    chunks = -(-cohort // max(1, most // workers * workers))
    return -(-cohort // (chunks * workers)) * workers


def _shares_out(task: Task) -> bool:
    """Whether a layer of the model divides a chunk of clients by itself, so that its values stay in the cache."""
    return any(getattr(layer, "keeps_to_the_cache", False) for layer in task.module.modules())


def _copies(task: Task, local: Local, work: Work) -> bool:
    """Whether a copy of the network computes the same; a layer may, say, hold a function that calls the original's."""
    step, ends = work.part(slice(1)).first(1), []
    try:
        for each in (task, twin(task)):
            with noise(work.label.device, 0):
                ends.append(Sequential().train(each, local, step).end)
    except (TypeError, RuntimeError, NotImplementedError):
        return False
    return all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def _kind(
    name: str, alone: _Cost, task: Task, local: Local, work: Work
) -> tuple[type[Vectorized] | type[Sequential], str, bool, _Cost]:
    """The engine, why, whether the model left no choice, and what a client's step takes on it."""
    if name == "sequential":
        return Sequential, "by name", False, alone
    spared = alone.operations * _OPERATION_SECONDS
    lost = {
        "convolutions outweigh": alone.grouped / _FLOPS_PER_SECOND,
        "the way of many weights to the memory outweighs": 0.0
        if _shares_out(task)
        else alone.values / _BYTES_PER_SECOND,
    }
    if name == "vectorized" or sum(lost.values()) <= spared:
        try:
            two, four = (_count(Vectorized, task, local, work, clients) for clients in (2, 4))
        except NotVectorizableError as error:
            if name == "vectorized":
                raise
            return Sequential, f"vmap cannot carry this model ({error.reason})", True, alone
        together = alone._replace(traffic=two.traffic / 2, bytes=two.bytes / 2)
        if name == "vectorized":
            return Vectorized, "by name", False, together
        lost["operations that vmap runs client by client outweigh"] = (
            (four.operations - two.operations) / 2 * _LOOPED * _OPERATION_SECONDS
        )
        moved = (together.traffic - alone.traffic) / _MOVED_BYTES_PER_SECOND
        lost["the memory that vectorised operations move outweighs"] = max(0.0, moved)
        if sum(lost.values()) <= spared:
            return Vectorized, "many small operations", False, together
    return Sequential, f"{max(lost, key=lambda what: lost[what])} what vectorising spares", False, alone


class _Cost(NamedTuple):
    """The cost of a step."""

    operations: int
    flops: int
    grouped: float  # floating-point work that convolutions would take besides if they were grouped
    traffic: float  # bytes that operations other than convolutions read and write
    values: int  # bytes of what is trained, its gradient and its step
    bytes: float  # the same with what is kept for the gradient

    @property
    def seconds(self) -> float:
        """Return about how long the kernels take, beside the fixed price of operations."""
        return self.flops / _FLOPS_PER_SECOND + self.traffic / _MOVED_BYTES_PER_SECOND


class _Counter(TorchDispatchMode):
    """Counts the kernels that are called, their floating-point work and the bytes they read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.flops = 0
        self.grouped = 0.0
        self.traffic = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No compiler runs here, and to tell it to stand aside would load it first, which takes a second or two."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.operations += _CONVOLUTION if "convolution" in name else 1
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            flops = formula(*args, **(kwargs or {}), out_val=out)
            self.flops += flops
            if "convolution" in name:
                self.grouped += flops * _slowdown(args[0])
                return out
        if not func.is_view and name != "_unsafe_view":
            self.traffic += sum(_size(each) for each in tree_leaves((args, kwargs, out)) if isinstance(each, Tensor))
        return out


def _slowdown(image: Tensor) -> float:
    """Return how much longer a grouped convolution takes than one of this layout, as a share."""
    side_by_side = image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
    return _GROUPED_SLOWDOWN_CHANNELS_LAST if side_by_side else _GROUPED_SLOWDOWN


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _count(kind: type[Vectorized] | type[Sequential], task: Task, local: Local, work: Work, clients: int) -> _Cost:
    """Return the cost of a step of this many clients; where there are fewer, they take part more than once."""
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += _size(tensor)
        return tensor

    some = work.part(torch.arange(clients) % len(work.clients)).first(1)
    with (
        warnings.catch_warnings(action="ignore"),  # among them that vmap lacks an operation, which is counted here
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        _Counter() as counter,
    ):
        kind().train(task, local, some)
    values = 3 * sum(_size(value) for value in some.start.values())
    return _Cost(counter.operations, counter.flops, counter.grouped, counter.traffic, values, values + kept)
