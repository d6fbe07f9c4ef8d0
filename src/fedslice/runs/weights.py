"""A model as a plain state dict: what was trained, under all its names, and what was not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypedDict

from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.runs import checkpoint
from fedslice.settings import first_problem
from fedslice.task import Task


class _Content(TypedDict):
    names: list[str]
    tied: dict[str, str]


_CONTENT = TypeAdapter(_Content)


@dataclass(frozen=True)
class Layout:
    """The entries of a module's state dict.

    Args:
        names: All entries in their order.
        tied: Further names of parameters that go by several.
        fixed: Buffers and frozen parameters, which a run does not train.
    """

    names: tuple[str, ...]
    tied: dict[str, str]
    fixed: Values

    @classmethod
    def of(cls, task: Task) -> Layout:
        """The layout of a task's module."""
        trained = {id(p): name for name, p in task.module.named_parameters() if p.requires_grad}
        tied: dict[str, str] = {}
        fixed: Values = {}
        state = task.module.state_dict(keep_vars=True)
        for name, value in state.items():
            own = trained.get(id(value))
            if own is None:
                fixed[name] = value.detach()
            elif own != name:
                tied[name] = own
        return cls(tuple(state), tied, fixed)

    @classmethod
    def read(cls, path: Path) -> Layout:
        """The layout that a run keeps in its directory."""
        fixed, meta = checkpoint.load(path)
        try:
            content = _CONTENT.validate_python(meta)
        except ValidationError as error:
            raise UserError(f"{path}: {first_problem(error)}; restore it from a copy.") from None
        return cls(tuple(content["names"]), content["tied"], fixed)

    def write(self, path: Path) -> None:
        """Keep it in a run directory."""
        checkpoint.save(path, self.fixed, json.loads(json.dumps({"names": self.names, "tied": self.tied})))

    def state_dict(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict of a module whose trained parameters have these values."""
        values = {**self.fixed, **trained}
        for name in self.names:
            if self.tied.get(name, name) not in values:
                raise UserError(f"the model has no values for {name!r}; its files belong to different runs.")
        return {name: values[self.tied.get(name, name)] for name in self.names}
