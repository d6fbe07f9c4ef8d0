"""Networks of different widths: each is the first outputs and the first inputs of every layer of the whole one."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fedslice.core.errors import shown
from fedslice.core.slice import Axis, Shapes, Slice
from fedslice.models.images import widths as sub_model
from fedslice.network.graph import Layer, layers, network, prefixes

# FedDD's heterogeneous settings: five sub-models of one network, whose outputs its tables 3 and 6 list.
SETS = {
    f"feddd-{kind}": ",".join("-".join(map(str, sub_model(kind, n)[:-1])) for n in range(1, 6)) for kind in ("a", "b")
}
_WHOLE = 1.0
_MOST = 256  # widths: the number of one takes a byte


class Networks:
    """Parts of the whole network that narrower ones hold.

    Args:
        module: The whole network.
        shapes: The shapes of its trained parameters.
        widths: Widths separated by commas; see :func:`parse`.

    Raises:
        UserError: If the network has no layer with channels, or cannot be narrowed to these widths.
    """

    def __init__(self, module: nn.Module, shapes: Shapes, widths: str):
        wanted = parse(widths)
        self.shapes = shapes
        self.whole = all(width == _WHOLE for width in wanted)  # every one of them is the whole network
        self.layers: dict[str, Layer] = (layers if self.whole else network)(module, shapes)
        self.held = [prefixes(self.layers, width) for width in wanted]
        self.counts = {name: torch.tensor([one[name] for one in self.held]) for name in self.held[0]}
        self.differ = any(bool((counts != counts[0]).any()) for counts in self.counts.values())

    def __len__(self) -> int:
        return len(self.held)

    def slice(self, which: Tensor) -> Slice:
        """Return what clients hold that have networks of these numbers [clients]."""
        out = Slice.whole(len(which), self.shapes)
        known: dict[tuple[int, tuple[int, ...]], Axis | None] = {}  # layers that share positions name them once
        for name, counts in self.counts.items():
            mine = counts.to(which.device)[which]
            axes: list[Axis | None] = list(out.axes[name])
            for dim, column in enumerate(mine.unbind(1)):
                key = (self.shapes[name][dim], tuple(counts[:, dim].tolist()))
                if key not in known:
                    known[key] = _first(column, self.shapes[name][dim])
                axes[dim] = known[key]
            out.axes[name] = tuple(axes)
        return out

    def sizes(self) -> Tensor:
        """Return how many values each network has [networks]."""
        return self.slice(torch.arange(len(self))).numbers()

    def within(self) -> Tensor:
        """Return which networks lie within which: [own, other]."""
        outputs = torch.stack([counts[:, 0] for counts in self.counts.values()], 1)
        return (outputs[None] <= outputs[:, None]).all(2)

    def coverage(self, layer: Layer, clients: Tensor) -> Tensor:
        """Return CR(k), the share of clients that hold channel k [outputs], of so many per network [networks]."""
        outputs = self.counts[layer.parameters[0]][:, 0]
        holds = (torch.arange(layer.outputs) < outputs[:, None]).double()
        return clients.double() @ holds / clients.sum().clamp(min=1)

    @property
    def last(self) -> Layer:
        """The layer whose outputs are the network's."""
        return next(layer for layer in self.layers.values() if layer.last)


def parse(widths: str) -> list[float | list[int]]:
    """Return widths from text: shares of each layer's outputs as floats, numbers of outputs as lists.

    Raises:
        ValueError: If the text names no widths, or too many.
    """
    words = texts(widths)
    if len(words) > _MOST:
        raise ValueError(f"widths are {len(words)}; give at most {_MOST}")
    return [_width(word) for word in words]


def texts(widths: str) -> list[str]:
    """Return each width's own text."""
    return [word.strip() for word in SETS.get(widths, widths).split(",")]


def _width(word: str) -> float | list[int]:
    try:
        if "-" not in word and 0 < float(word) <= 1:
            return float(word)
        outputs = [int(part) for part in word.split("-")]
    except ValueError:
        outputs = []
    if not outputs or min(outputs) < 1:
        raise ValueError(
            f"{shown(word)} is no width; give shares above 0 up to 1 (1,0.5), outputs of each layer (32-64,16-32), "
            f"or one of {', '.join(SETS)}"
        )
    return outputs


def _first(counts: Tensor, extent: int) -> Axis | None:
    """The first positions, so many for each client; ``None`` if they are all."""
    if bool((counts == extent).all()):
        return None
    return Axis(counts, partial(_places, counts), first=torch.ones_like(counts, dtype=torch.bool))


def _places(counts: Tensor) -> Tensor:
    places = torch.arange(int(counts.max()), device=counts.device)
    return torch.minimum(places, counts[:, None] - 1)
