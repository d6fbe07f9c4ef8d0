"""Count sketches.

FetchSGD: Communication-Efficient Federated Learning with Sketching
    Daniel Rothchild, Ashwinee Panda, Enayat Ullah, Nikita Ivkin, Ion Stoica, Vladimir Braverman, Joseph Gonzalez,
    Raman Arora. ICML 2020.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedslice.codecs.catchup import CatchUp, Steps
from fedslice.codecs.log import Coded, StepForm
from fedslice.codecs.sparse import Share, entry_fields, strongest
from fedslice.core import rng
from fedslice.core.capabilities import Rule
from fedslice.core.encodings import Floats
from fedslice.core.entries import OnSlice, as_tensor, on_slice
from fedslice.core.errors import Refused
from fedslice.core.header import Header
from fedslice.core.message import Body, Fields
from fedslice.core.message import Field as MessageField
from fedslice.core.part import Round, ServerRun
from fedslice.core.slice import Line, Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.update import RowDelta, Step, Update, flatten, split

CODE = "sketch"  # the field, and the one parameter of the space in which sketches are summed
_HASHES = 2**62  # a word of the key where other draws for noise have the round
_SPARSE = 1  # the layout of a step


class Hashes:
    """The cell and the sign of every coordinate in each row of a sketch, drawn from the shared seed.

    Args:
        spec: What both sides know.
        rows: Rows of the sketch.
        cells: Cells of a row.
    """

    def __init__(self, spec: Spec, rows: int, cells: int):
        row, at = np.arange(rows)[:, None], np.arange(spec.size)[None]
        key = (spec.seed, rng.Purpose.NOISE, _HASHES, row, at)
        self.cells = torch.Size([rows, cells])
        self.column = torch.from_numpy(rng.integers(cells, *key)).to(torch.int32)
        self.sign = torch.from_numpy((rng.bits(*key, 1) & np.uint64(1)).astype(np.int8)) * 2 - 1
        self._shapes = spec.shapes

    def on(self, layout: Slice, line: Tensor) -> Tensor:
        """Return what belongs to the coordinates of a layout, out of one line of all coordinates [clients, places]."""
        model = split(line, self._shapes)
        return torch.cat([own.reshape(layout.clients, -1) for own in layout.gather(model).values()], 1)

    def sketch(self, layout: Slice, values: Values) -> Tensor:
        """Return the sketches of values on a layout [clients, rows, cells]."""
        clients, (rows, cells) = layout.clients, self.cells
        line = torch.cat([layout.clear(name, values[name]).reshape(clients, -1) for name in layout.axes], 1)
        out = torch.zeros(clients, rows, cells, dtype=line.dtype, device=line.device)
        first = torch.arange(clients)[:, None] * cells
        for row in range(rows):
            column, sign = (self.on(layout, each[row]).to(line.device) for each in (self.column, self.sign))
            into = torch.zeros(clients * cells, dtype=line.dtype, device=line.device)
            into.index_add_(0, (first.to(line.device) + column).flatten(), (line * sign).flatten())
            out[:, row] = into.view(clients, -1)
        return out

    def estimate(self, sketch: Tensor) -> Tensor:
        """Return every coordinate as the median of its cells."""
        column, sign = self.column.to(sketch.device), self.sign.to(sketch.device)
        seen = (sketch.gather(1, column.long()) * sign).sort(0).values
        rows = len(seen)
        return (seen[(rows - 1) // 2] + seen[rows // 2]) / 2


class Sketches(Steps):
    """The server's error sketch and its velocity, and its past steps."""

    saved = (*Steps.saved, "error", "velocity")

    def __init__(self, run: ServerRun, form: StepForm, limit: int, cells: torch.Size):
        super().__init__(run, form, limit)
        self.error = torch.zeros(cells, dtype=run.spec.dtype, device=run.device)
        self.velocity = torch.zeros_like(self.error)


class FetchSGD(CatchUp):
    """A count sketch of the update: each coordinate adds, with a sign, to a cell of each of ``rows`` rows.

    The rows have c cells each, and r·c = share·D cells go up.

    Sketches are linear, so the server sums them. It adds the mean to its error sketch (by way of ``momentum``), takes
    the ``top`` share of coordinates by the medians of their cells as its step, and clears the cells of these
    coordinates, as the published code does. (Taking off the sketch of the step instead, as in algorithm 1, keeps the
    estimates' noise as an error, which grows without bound when D/c coordinates share a cell.) Coordinates need no ids:
    their hashes are drawn from the shared seed; a step may touch some that nobody sent. FLSS's paper gives neither
    ``momentum`` nor ``top``.

    Args:
        rows: Rows of the sketch: a coordinate's estimate is the median of so many cells.
        share: Cells of the sketch, as a share of the model's values.
        momentum: Factor of the momentum sketch on the server, ρ.
        top: Share of the coordinates that the server's step moves.
    """

    label = "fetchsgd"

    rows: Annotated[int, Field(ge=1, le=99)] = 5
    share: Share = 0.25
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    top: Share = 0.05

    @property
    def provides(self) -> frozenset[str]:
        """A zero adds nothing to a sketch, and sketches are summed."""
        return super().provides | {"keeps-zeros", "sums-codes", "linear"}

    def rules(self) -> Iterable[Rule]:
        """A sketch does not say which parameters it is of: all must travel."""
        yield Rule(
            "slices",
            "remembers",
            False,
            "codec=fetchsgd has steps on any coordinate, but slices={label} keeps some to the clients; use codec=topk.",
        )

    def hashes(self, spec: Spec) -> Hashes:
        """Return the hashes of all coordinates."""
        cells = math.ceil(self.share * spec.size / self.rows)
        return spec.once((FetchSGD, self.rows, cells), lambda: Hashes(spec, self.rows, cells))

    def server_state(self, run: ServerRun) -> Sketches:
        """Nothing has arrived yet."""
        return Sketches(run, self.form(run.spec), run.spec.model_bytes, self.hashes(run.spec).cells)

    def form(self, spec: Spec) -> StepForm:
        """Places and entries."""

        def shared(layout: int) -> Fields:
            if layout != _SPARSE:
                raise Refused(f"has a step of the unknown layout {layout}")
            return entry_fields(spec, Slice.whole(1, spec.shapes), self.top)

        return StepForm(shared)

    def apply(self, memory: Any, down: Slice, values: Values, step: Coded) -> None:  # noqa: ARG002
        """Add the entries at their places."""
        entries = on_slice(step.body["entries"])
        found = down.pick(entries.values, entries.part)
        for name, value in values.items():
            value.add_(found[name].to(value.dtype))

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:  # noqa: ARG002
        """The cells."""
        cells = tuple(self.hashes(spec).cells)
        return {CODE: MessageField(Floats(spec.dtype), shape=cells, about="a count sketch of its update")}

    def encode(self, memory: Any, head: Header, update: Update, came: Body) -> Body:  # noqa: ARG002
        """The sketch of each client's update."""
        spec = memory.run.spec
        values = {name: value.to(spec.dtype) for name, value in update.values.items()}
        return {CODE: self.hashes(spec).sketch(update.layout, values)}

    def decode(self, state: Sketches, head: Header, part: Slice, body: Body) -> Update:  # noqa: ARG002
        """The sketches, which are summed."""
        code = as_tensor(body[CODE])
        space = Slice.whole(len(code), {CODE: code.shape[1:]})
        return Update(space, space, {CODE: code.to(state.run.device)})

    def words(self, spec: Spec, part: Slice, sizes: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """One per cell."""
        return torch.full((part.clients,), float(self.hashes(spec).cells.numel()), dtype=torch.float64)

    def expand(self, state: Sketches, t: int, mean: Step) -> Step:  # noqa: ARG002
        """The strongest coordinates of the error sketch."""
        if CODE not in mean:
            return mean
        spec = state.run.spec
        hashes = self.hashes(spec)
        state.velocity = self.momentum * state.velocity + mean[CODE].values
        state.error = state.error + state.velocity
        found = hashes.estimate(state.error)[None]
        taken = strongest(Line(found, None, torch.tensor([found.shape[1]], device=found.device)), self.top)
        hit = torch.zeros_like(state.error, dtype=torch.bool)
        hit.scatter_(1, hashes.column.to(hit.device)[:, taken[0]].long(), True)
        state.error, state.velocity = state.error.masked_fill(hit, 0), state.velocity.masked_fill(hit, 0)
        step = split(found.masked_fill(~taken, 0)[0], spec.shapes)
        state.coded = {"places": split(taken[0], spec.shapes)}
        return {name: RowDelta(None, value.to(spec.dtypes[name])) for name, value in step.items()}

    def append(self, state: Sketches, end: Round) -> None:
        """The strongest coordinates, times the server's rate."""
        spec = state.run.spec
        assert state.coded is not None
        part = Slice.whole(1, spec.shapes)
        places = {name: flags[None] for name, flags in state.coded["places"].items()}
        change = split(flatten(end.change, spec.shapes), spec.shapes)
        entries = {name: value[None] for name, value in change.items()}
        state.log.add(end.number, _SPARSE, {"places": OnSlice(part, places), "entries": OnSlice(part, entries)})
