"""Count sketches (Rothchild et al. 2020; FetchSGD of S4's table 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice import rng
from fedslice.codecs.base import Codec, numbers
from fedslice.codecs.missed import Missed
from fedslice.codecs.sparse import Share, step_bytes, strongest
from fedslice.core.encodings import Floats
from fedslice.core.message import Body, Fields
from fedslice.core.message import Field as MessageField
from fedslice.errors import UserError
from fedslice.messages import Step, Upload
from fedslice.parts import CHECKED, RoundEnd, World
from fedslice.slice import Line, Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe

CODE = "sketch"  # the one parameter of the space in which sketches are summed
_HASHES = 2**62  # a word of the key where other draws for noise have the round


@dataclass(config=CHECKED)
class FetchSGD(Codec):
    """Each coordinate is added, with a sign, to one of c cells in each of ``rows`` rows; r·c = share·D cells go up.

    Sketches are linear, so the server sums them. It adds the mean to its error sketch (by way of ``momentum``), takes
    the ``top`` share of coordinates by the medians of their cells as its step, and clears the cells of these
    coordinates, as the published code does. (Taking off the sketch of the step instead, as in algorithm 1, keeps the
    estimates' noise as an error, which grows without bound when D/c coordinates share a cell.) Coordinates need no ids:
    their hashes are drawn from the seed; a step may touch some that nobody sent. S4 gives neither ``momentum`` nor
    ``top``.
    """

    label = "fetchsgd"
    keeps_zeros = True  # a zero adds nothing to a sketch
    sums_codes = True

    rows: Annotated[int, Field(ge=1, le=99)] = 5
    share: Share = 0.25
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    top: Share = 0.05

    def check(self, recipe: Recipe) -> None:
        """A sketch does not say which parameters it is of: all must travel."""
        if recipe.slices.remembers:
            raise UserError(
                f"codec=fetchsgd has steps on any coordinate, but slices={recipe.slices.label} keeps some to the "
                "clients; use codec=topk."
            )

    def setup(self, world: World) -> None:
        """Draw the hashes."""
        super().setup(world)
        size = sum(shape.numel() for shape in self._shapes.values())
        self._cells = torch.Size([self.rows, math.ceil(self.share * size / self.rows)])
        row, at = np.arange(self.rows)[:, None], np.arange(size)[None]
        key = (world.seed, rng.Purpose.NOISE, _HASHES, row, at)
        column = torch.from_numpy(rng.integers(self._cells[1], *key)).to(torch.int32)
        sign = torch.from_numpy((rng.bits(*key, 1) & np.uint64(1)).astype(np.int8)) * 2 - 1
        self._column, self._sign = column.to(world.device), sign.to(world.device)
        self._error = torch.zeros(self._cells, dtype=self._dtype, device=world.device)
        self._velocity = torch.zeros_like(self._error)
        self._missed = Missed(len(world.task.federation))

    def fields(self, t: int, part: Slice) -> Fields:  # noqa: ARG002
        """The cells."""
        return {CODE: MessageField(Floats(self._dtype), shape=tuple(self._cells))}

    def encode(self, t: int, upload: Upload) -> Body:  # noqa: ARG002
        """The sketch of each client's update."""
        clients = len(upload.clients)
        code = torch.zeros(clients, *self._cells, dtype=self._dtype, device=self._error.device)
        first = torch.arange(clients, device=code.device)[:, None] * self._cells[1]
        values = torch.cat(
            [upload.layout.clear(name, upload.values[name]).reshape(clients, -1) for name in upload.layout.axes], 1
        )
        for row in range(self.rows):
            column, sign = self._on(upload.layout, self._column[row]), self._on(upload.layout, self._sign[row])
            into = torch.zeros(clients * self._cells[1], dtype=self._dtype, device=code.device)
            into.index_add_(0, (first + column).flatten(), (values * sign).flatten())
            code[:, row] = into.view(clients, -1)
        return {CODE: code}

    def decode(self, t: int, frame: Upload, body: Body) -> Upload:  # noqa: ARG002
        """The sketches, which are summed."""
        space = Slice.whole(len(frame.clients), {CODE: self._cells})
        return replace(frame, slice=space, layout=space, values={CODE: numbers(body, CODE)})

    def words(self, t: int, part: Slice, sizes: dict[str, Tensor]) -> Tensor:  # noqa: ARG002
        """One per cell."""
        return torch.full((part.clients,), float(self._cells.numel()), dtype=torch.float64)

    def lift(self, t: int, mean: Step) -> Step:  # noqa: ARG002
        """The strongest coordinates of the error sketch."""
        if CODE not in mean:
            return mean
        self._velocity = self.momentum * self._velocity + mean[CODE][1]
        self._error = self._error + self._velocity
        found = self.estimate(self._error)[None]
        taken = strongest(Line(found, None, torch.tensor([found.shape[1]], device=found.device)), self.top)
        hit = torch.zeros_like(self._error, dtype=torch.bool)
        hit.scatter_(1, self._column[:, taken[0]].long(), True)
        self._error, self._velocity = self._error.masked_fill(hit, 0), self._velocity.masked_fill(hit, 0)
        parts = found.masked_fill(~taken, 0)[0].split([shape.numel() for shape in self._shapes.values()])
        return {n: (None, p.view(s)) for (n, s), p in zip(self._shapes.items(), parts, strict=True)}

    def estimate(self, sketch: Tensor) -> Tensor:
        """Every coordinate as the median of its cells."""
        seen = (sketch.gather(1, self._column.long()) * self._sign).sort(0).values
        return (seen[(self.rows - 1) // 2] + seen[self.rows // 2]) / 2

    def observe(self, end: RoundEnd) -> None:
        """Count this round's step: the places of its coordinates, and their values."""
        self._missed.add(end, step_bytes(end.change, self._shapes, self.top, self._dtype))

    def down_bytes(self, t: int, down: Slice, itemsize: int, clients: Tensor) -> Tensor:
        """The steps that a client missed."""
        return self._missed.bytes(t, clients, super().down_bytes(t, down, itemsize, clients))

    def state_dict(self) -> Values:
        """Both sketches of the server, and who has seen which steps."""
        return {"error": self._error, "velocity": self._velocity} | self._missed.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved sketches."""
        own = self._own(state, ("error", "velocity", *Missed.kinds))
        self._error, self._velocity = own["error"], own["velocity"]
        self._missed.load_state_dict(own)

    def _on(self, layout: Slice, line: Tensor) -> Tensor:
        """What belongs to the coordinates of a layout, out of one line of all coordinates: [clients, places]."""
        parts = line.split([shape.numel() for shape in self._shapes.values()])
        model = {n: p.view(s) for (n, s), p in zip(self._shapes.items(), parts, strict=True)}
        return torch.cat([own.reshape(layout.clients, -1) for own in layout.gather(model).values()], 1)
