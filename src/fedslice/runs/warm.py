"""A model to start from: a state dict, or a safetensors file, checked against the task by name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedslice.core.errors import UserError, shown
from fedslice.core.slice import Values
from fedslice.disk import open_regular, reason
from fedslice.runs.weights import Layout
from fedslice.task import Task


def read(given: Any, task: Task) -> Values:
    """Return values of all trained parameters of a task, in their own types.

    Args:
        given: A state dict of the task's module, or the path of a safetensors file with one. Names of tied parameters
            and of what is not trained may be in it; of the latter the values must be the module's.
        task: The task.
    """
    layout = Layout.of(task)
    if isinstance(given, Mapping):
        return _checked("warm_start", given, layout, task)
    if not isinstance(given, str | Path):
        raise UserError(f"warm_start={shown(given)}: expected a state dict or the path of a safetensors file.")
    whose = f"warm_start {given}"
    try:
        open_regular(Path(given)).close()
        with safe_open(given, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            _check_names(whose, shapes, layout, task)  # before anything is read: sizes are the file's own claim
            found = {name: file.get_tensor(name).clone() for name in shapes}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{whose} cannot be read ({reason(error)}); give a safetensors file.") from error
    return _checked(whose, found, layout, task)


def _checked(whose: str, found: Mapping[Any, Any], layout: Layout, task: Task) -> Values:
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UserError(f"{whose}: {shown(name)} is {shown(value)}, expected a tensor by the name of a parameter.")
    _check_names(whose, {name: tuple(value.shape) for name, value in found.items()}, layout, task)
    for name, kept in layout.fixed.items():
        if name in found and not torch.equal(found[name].to(kept), kept):
            raise UserError(
                f"{whose} has other values for {name!r}, which is not trained, than the model; set them in the model."
            )
    values = {}
    for name, dtype in task.dtypes.items():
        value = found[name].detach().cpu().to(dtype).clone()
        if not bool(value.isfinite().all()):
            raise UserError(f"{whose}: {name!r} contains NaN or infinity; give a model that has not diverged.")
        values[name] = value
    return values


def _check_names(whose: str, shapes: Mapping[str, tuple[int, ...]], layout: Layout, task: Task) -> None:
    """Every trained parameter is there, everything that is there has a place, and shapes agree."""
    wanted = {name: tuple(shape) for name, shape in task.shapes.items()}
    for name in wanted:
        if name not in shapes:
            raise UserError(f"{whose} has no {name!r}, which {type(task.module).__name__} trains; give all of it.")
    known = wanted | {name: wanted[own] for name, own in layout.tied.items()}
    known |= {name: tuple(value.shape) for name, value in layout.fixed.items()}
    for name, shape in shapes.items():
        if name not in known:
            raise UserError(f"{whose} has {name!r}, which {type(task.module).__name__} does not; leave it out.")
        if shape != known[name]:
            raise UserError(f"{whose}: {name!r} has shape {shape}, expected {known[name]}.")
