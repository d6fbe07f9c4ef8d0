"""The last Linear layer of a network: what enters it are its features, what leaves it are the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.core.slice import Shapes, Values

if TYPE_CHECKING:
    from fedslice.task import Task


class Structure(Protocol):
    """A network and the shapes of its trained parameters, as a task has them, and a spec."""

    @property
    def module(self) -> nn.Module:
        """The network."""
        ...

    @property
    def shapes(self) -> Shapes:
        """Shape of every trainable parameter."""
        ...


class Head(NamedTuple):
    """A trained Linear layer: its name, its inputs and its outputs."""

    name: str
    features: int
    classes: int

    def parameters(self, network: Structure) -> list[str]:
        """Return the names of its weight and, if it is trained, of its bias."""
        return [key for key in (f"{self.name}.weight", f"{self.name}.bias") if key in network.shapes]


def head(network: Structure, method: str = "the local method") -> Head:
    """Return the last Linear layer in the order of the module; ``method`` names in an error what needs it."""
    shapes = network.shapes
    found = [
        name
        for name, part in network.module.named_modules()
        if isinstance(part, nn.Linear) and f"{name}.weight" in shapes
    ]
    if not found:
        raise UserError(
            f"{type(network.module).__name__} has no Linear layer of its own that is trained, and {method} needs the "
            "features that enter the last one; choose another model, or local=plain."
        )
    classes, features = shapes[f"{found[-1]}.weight"]
    return Head(found[-1], features, classes)


def class_head(task: Task, least: int, method: str) -> Head:
    """Return the last Linear layer of a task whose labels are the numbers of its outputs, at least so many."""
    last = head(task, method)
    if task.several:
        raise UserError(
            f"{method} needs one output per class, and {type(task.module).__name__} returns several tensors; return "
            "the classes alone, or use local=plain."
        )
    label = task.federation.train.label
    whole = not label.is_floating_point() and label.dim() == 1
    if not whole or int(label.min()) < 0 or int(label.max()) >= last.classes or last.classes < least:
        if whole:
            kind = f"whole numbers from {int(label.min())} to {int(label.max())}"
        else:
            kind = f"{label.dtype} {list(label.shape[1:])}".removeprefix("torch.").removesuffix(" []") + " numbers"
        raise UserError(
            f"{method} needs labels that are class numbers, and an output of the last Linear layer for each of at "
            f"least {least} classes, but task {task.name!r} has {kind} as labels and {last.name!r} has "
            f"{last.classes} outputs; choose another task, or local=plain."
        )
    return last


def with_head_inputs(task: Task, layer: str, parameters: Values, features: dict[str, Tensor]) -> tuple[Any, Tensor]:
    """Return one client's output for a batch, and what entered the named layer on the way to it."""
    seen: list[Tensor] = []
    handle = task.module.get_submodule(layer).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        output = task.forward(parameters, features)
    finally:
        handle.remove()
    if not seen:
        raise UserError(
            f"{type(task.module).__name__} never calls its last Linear layer {layer!r}, so that it shows no features; "
            "call the layer in forward, or use local=plain."
        )
    return output, seen[-1]
