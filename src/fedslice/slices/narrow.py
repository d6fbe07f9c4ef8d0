"""Narrow models: a client holds the first outputs and the first inputs of each layer (S3, tables 3 and 6)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import BeforeValidator, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.channels import Layer, Prefixes, layers, network, prefixes, same_when_narrow
from fedslice.errors import UserError, shown
from fedslice.models.images import widths as sub_model
from fedslice.parts import CHECKED, World
from fedslice.slice import Axis, Slice
from fedslice.slices.base import Slices
from fedslice.task import Task, evaluating

# S3's heterogeneous settings: five sub-models of one network, whose outputs tables 3 and 6 list.
SETS = {f"s3-{kind}": ",".join("-".join(map(str, sub_model(kind, n)[:-1])) for n in range(1, 6)) for kind in ("a", "b")}
_WHOLE = 1.0


@dataclass(config=CHECKED)
class Narrow(Slices):
    """What all slices by width share: clients hold networks of different ``widths``, in turn.

    Client n has number n of the list, over and over. A width is the share of each layer's outputs that is held
    (``0.5``), or the number of outputs of each layer (``32-64-100``); widths are separated by commas. ``s3-a`` and
    ``s3-b`` are the sets of S3's tables 3 and 6.
    """

    narrows: ClassVar[bool] = True

    widths: Annotated[str, BeforeValidator(str)] = "1"

    @field_validator("widths")
    @classmethod
    def _read(cls, text: str) -> str:
        _parse(text)
        return text

    def setup(self, world: World) -> None:
        """Read the network, unless every client holds all of it."""
        super().setup(world)
        wanted = _parse(self.widths)
        plain = all(width == _WHOLE for width in wanted)
        try:
            self._layers: dict[str, Layer] = (layers if plain else network)(world.task.module, self._shapes)
        except UserError as error:
            raise UserError(f"slices={self.label}: {error}") from None
        held = [prefixes(self._layers, width) for width in wanted]
        if not plain:
            for text, one in zip(_texts(self.widths), held, strict=True):
                _try(world.task, text, one)
        self._counts = {name: torch.tensor([one[name] for one in held]) for name in held[0]}  # [widths, dimensions]

    def held(self) -> Tensor:
        """By each client's own width."""
        return self._slice(self._width(torch.arange(self._population))).numbers()

    def hold(self, t: int, clients: Tensor) -> Slice:  # noqa: ARG002
        """The first outputs and inputs of every layer."""
        return self._slice(self._width(clients))

    def coverage(self, layer: Layer) -> Tensor:
        """CR(k) of equation 21: the share of clients that hold channel k."""
        outputs = self._counts[layer.parameters[0]][self._width(torch.arange(self._population)), 0]
        return (torch.arange(layer.outputs) < outputs[:, None]).double().mean(0)

    def _width(self, clients: Tensor) -> Tensor:
        """The number of each client's width."""
        return clients % len(next(iter(self._counts.values())))

    def _slice(self, which: Tensor) -> Slice:
        out = Slice.whole(len(which), self._shapes)
        known: dict[tuple[int, tuple[int, ...]], Axis | None] = {}  # layers that share positions name them once
        for name, counts in self._counts.items():
            mine = counts.to(which.device)[which]
            axes: list[Axis | None] = list(out.axes[name])
            for dim, column in enumerate(mine.unbind(1)):
                key = (self._shapes[name][dim], tuple(counts[:, dim].tolist()))
                if key not in known:
                    known[key] = _first(column, self._shapes[name][dim])
                axes[dim] = known[key]
            out.axes[name] = tuple(axes)
        return out


def _first(counts: Tensor, extent: int) -> Axis | None:
    """The first positions, so many for each client; ``None`` if they are all."""
    if bool((counts == extent).all()):
        return None
    return Axis(counts, partial(_places, counts), first=torch.ones_like(counts, dtype=torch.bool))


def _places(counts: Tensor) -> Tensor:
    places = torch.arange(int(counts.max()), device=counts.device)
    return torch.minimum(places, counts[:, None] - 1)


def _texts(widths: str) -> list[str]:
    return [word.strip() for word in SETS.get(widths, widths).split(",")]


def _parse(widths: str) -> list[float | list[int]]:
    """Shares as floats, outputs as lists of whole numbers."""
    out: list[float | list[int]] = []
    for word in _texts(widths):
        try:
            if "-" not in word and 0 < float(word) <= 1:
                out.append(float(word))
                continue
            outputs = [int(part) for part in word.split("-")]
        except ValueError:
            outputs = []
        if not outputs or min(outputs) < 1:
            raise ValueError(
                f"{shown(word)} is no width; give shares above 0 up to 1 (1,0.5), outputs of each layer (32-64,16-32), "
                f"or one of {', '.join(SETS)}"
            )
        out.append(outputs)
    return out


def _try(task: Task, width: str, held: Prefixes) -> None:
    """Compare the narrow network with the whole one whose other channels are zero, on a few samples."""
    train = task.federation.train
    features, _ = train.batch(torch.arange(min(2, len(train)), device=train.offsets.device))
    chance = torch.Generator().manual_seed(0)  # a network may begin with zeros, which would hide a difference
    whole = {
        name: 0.1 * torch.randn(shape, generator=chance).to(train.offsets.device) for name, shape in task.shapes.items()
    }
    with torch.no_grad(), evaluating(task.module):
        fine = same_when_narrow(lambda values: task.forward(values, features), whole, held)
    if not fine:
        raise UserError(
            f"{type(task.module).__name__} cannot be narrowed to widths={width}: it then fails or gives another result "
            "than with the other channels at zero; its forward must take sizes from its input, as x.flatten(1) does."
        )
