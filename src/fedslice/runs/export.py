"""Models of runs as files: a state dict as safetensors, or weights and program by ``torch.export``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.data.vocabulary import dumps
from fedslice.disk import writing
from fedslice.runs.checkpoint import plain, replacing
from fedslice.runs.directory import VOCABULARIES
from fedslice.runs.run import Run
from fedslice.task import Task

WEIGHTS, PROGRAM = ".safetensors", ".pt2"


def check_name(path: Path) -> None:
    """Refuse a file whose name does not say what it is to be."""
    if path.suffix not in (WEIGHTS, PROGRAM):
        raise UserError(f"{path} ends in {path.suffix!r}, expected {WEIGHTS} (weights) or {PROGRAM} (a program).")


def weights(path: Path, state: Mapping[str, Tensor], run: Run) -> None:
    """Write a state dict. Tied parameters are written under each of their names, as ``load_state_dict`` wants them.

    The header says where the model comes from, and what the ids of its tables stand for (``vocabularies``).
    """
    notes = {"format": "pt", "fedslice": f"{run.recipe} on {run.task}, seed {run.seed}, round {run.rows[-1]['round']}"}
    if run.vocabularies:
        notes["vocabularies"] = dumps(run.vocabularies)
    with writing(path), replacing(path) as fresh:
        save_file(plain(state), fresh, metadata=notes)


def program(path: Path, state: Mapping[str, Tensor], task: Task) -> None:
    """Write the network with these weights as a program for any number of samples, and sequences of any length.

    The archive has an extra file ``vocabularies.json`` if the task has vocabularies.
    """
    module = task.build(0)
    with _weights(module, state):
        made = _exported(module, task)
        try:
            with writing(path), replacing(path) as fresh:
                more = {VOCABULARIES: dumps(task.vocabularies)} if task.vocabularies else None
                torch.export.save(made, fresh, extra_files=more)
        except (RuntimeError, TypeError, ValueError) as error:
            raise _cannot(task, error) from error


@contextmanager
def _weights(module: nn.Module, state: Mapping[str, Tensor]) -> Iterator[None]:
    """A module with other weights; one that the user made has its own again afterwards."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    training = module.training
    module.load_state_dict(dict(state))
    module.eval()
    try:
        yield
    finally:
        module.load_state_dict(before)
        module.train(training)


def _exported(module: nn.Module, task: Task) -> Any:
    """The program, traced on a few samples and compared with the network on others."""
    samples = task.federation.test if len(task.federation.test) else task.federation.train
    features, _ = samples.batch(_some(len(samples), 3))
    samples_dim = torch.export.Dim("samples")
    shapes = {
        name: {0: samples_dim} | ({1: torch.export.Dim.AUTO} if f"{name}_length" in features else {})
        for name in features
    }
    try:
        made = torch.export.export(module, (), dict(features), dynamic_shapes=shapes)
        others, _ = samples.batch(_some(len(samples), 5))
        with torch.no_grad():
            same = torch.allclose(made.module()(**others), module(**others), rtol=1e-4, atol=1e-6, equal_nan=True)
    except Exception as error:  # the exporter raises whatever it meets
        raise _cannot(task, error) from error
    if not same:
        raise _cannot(task, ValueError("the program gives other outputs than the network"))
    return made


def _some(count: int, wanted: int) -> Tensor:
    """A few places, evenly; the same ones again where there are not as many."""
    return torch.linspace(0, count - 1, wanted).long()


def _cannot(task: Task, error: Exception) -> UserError:
    kind = type(task.module).__name__
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return UserError(
        f"{kind} of task {task.name!r} cannot be exported as a program ({type(error).__name__}: {first:.120}); export "
        f"its weights to a {WEIGHTS} file."
    )
