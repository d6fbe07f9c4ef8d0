"""Streaming subspace: updates travel as coefficients in a basis that follows the global trajectory (S4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.codecs.base import Codec, numbers
from fedslice.codecs.basis import Basis
from fedslice.codecs.catchup import CatchUp
from fedslice.codecs.dense import Dense
from fedslice.codecs.lbgm import LBGM
from fedslice.codecs.quantize import Quantize
from fedslice.codecs.sign import Sign
from fedslice.codecs.topk import TopK
from fedslice.core.encodings import Floats
from fedslice.core.message import Body, Fields
from fedslice.core.message import Field as MessageField
from fedslice.errors import UserError
from fedslice.messages import Step, Upload
from fedslice.panel import Cell, Panel
from fedslice.parts import CHECKED, Count, RoundEnd, World
from fedslice.room import free_memory, gib
from fedslice.slice import Shapes, Slice, Values
from fedslice.vectors import Vectors

if TYPE_CHECKING:
    from fedslice.recipe import Recipe

CODE = "code"  # the one parameter of the space in which coefficients are summed
INNER: dict[str, type[Codec]] = {kind.label: kind for kind in (Dense, Sign, TopK, Quantize, LBGM)}


@dataclass(config=CHECKED)
class StreamingSubspace(Codec):
    """``warmup`` plain rounds, then ``rank`` coefficients per client and a full update every ``every`` rounds.

    Coefficients are linear in the update, so the server sums them and lifts the sum once: P·Σ w_i·Pᵀg_i. Full rounds
    keep the basis on the trajectory; ``decay`` (λ) lets go of its past (algorithm 2). With ``every=0`` no full round
    ever comes after the warm-up, and the basis stays as it is (F-Sub of table 4). ``inner`` is the codec by which full
    updates go up.

    Server and clients keep the same basis: rank·D numbers each. Until the end of the warm-up the server keeps warmup·D,
    in a file of the run's folder, or see :class:`Vectors`. A client that was absent is brought up to date before it
    trains, and what that takes is counted.
    """

    label = "subspace"
    sums_codes = True

    rank: Count = 50
    warmup: Count = 200
    every: Annotated[int, Field(ge=0, le=10**9)] = 5
    decay: Annotated[float, Field(ge=0, le=1)] = 1.0
    inner: Literal["dense", "sign", "topk", "quantize", "lbgm"] = "dense"

    def __post_init__(self) -> None:
        self._inner = INNER[self.inner]()

    @property
    def keeps_zeros(self) -> bool:  # type: ignore[override]
        """A zero adds nothing to a coefficient; in full rounds it is as the inner codec has it."""
        return self._inner.keeps_zeros

    def check(self, recipe: Recipe) -> None:
        """What the inner codec refuses."""
        self._inner.check(recipe)

    def setup(self, world: World) -> None:
        """Refuse what could never become a subspace; nothing is sampled yet."""
        super().setup(world)
        self._inner.setup(world)
        size = sum(shape.numel() for shape in self._shapes.values())
        if self.rank > size:
            raise UserError(f"codec=subspace: rank={self.rank} but the model has {size} parameters; give fewer.")
        if world.rounds is not None and self.warmup > world.rounds:
            raise UserError(
                f"codec=subspace: warmup={self.warmup} is longer than the run of {world.rounds} rounds, in which "
                "nothing would be projected; give a shorter warm-up or more rounds."
            )
        remedy = "give a shorter warm-up, or a codec without a subspace"
        self._sampled = Vectors("codec=subspace", size, self.warmup, world.dtype, world.scratch, remedy)
        if (need := self.rank * size * world.dtype.itemsize) > (free := free_memory()):
            raise UserError(
                f"codec=subspace: {self.rank:,} directions of {size:,} parameters take {gib(need)} where {gib(free)} "
                "of memory are free; give a smaller rank."
            )
        self._device = world.device
        self._basis: Basis | None = None
        self._absent = CatchUp(len(world.task.federation), self.warmup)
        self._residuals: list[tuple[int, float]] = []

    def full(self, t: int) -> bool:
        """Do whole updates travel in round ``t``?"""
        if t < self.warmup or self._basis is None:
            return True
        return self.every > 0 and (t - self.warmup) % self.every == 0

    def within(self, values: Values) -> Values:
        """P·Pᵀg of every client's values for the whole model, or the values where there is no basis yet."""
        if self._basis is None:
            return values
        sizes = [shape.numel() for shape in self._shapes.values()]
        rows = dict(zip(self._shapes, self._basis.columns.split(sizes), strict=True))
        first = next(iter(values.values()))
        code = first.new_zeros(len(first), self._basis.rank)
        for name, value in values.items():
            code += value.flatten(1) @ rows[name]
        return {name: (code @ rows[name].T).view_as(value) for name, value in values.items()}

    def fields(self, t: int, part: Slice) -> Fields:
        """The coefficients, or on a full round what the inner codec sends."""
        if self.full(t) or self._basis is None:
            return self._inner.fields(t, part)
        return {CODE: MessageField(Floats(self._dtype), shape=(self._basis.rank,))}

    def encode(self, t: int, upload: Upload) -> Body:
        """g̃ = Pᵀg, or on a full round g itself, as the inner codec sends it."""
        if self.full(t) or self._basis is None:
            return self._inner.encode(t, upload)
        return {CODE: self._basis.project(upload, self._shapes)}

    def decode(self, t: int, frame: Upload, body: Body) -> Upload:
        """Coefficients as they are; on a full round what the inner codec makes of it."""
        if CODE not in body:
            return self._inner.decode(t, frame, body)
        code = numbers(body, CODE)
        space = Slice.whole(len(code), {CODE: code.shape[1:]})
        return replace(frame, slice=space, layout=space, values={CODE: code})

    def words(self, t: int, part: Slice, sizes: dict[str, Tensor]) -> Tensor:
        """One per coefficient, or as the inner codec counts."""
        if CODE not in sizes:
            return self._inner.words(t, part, sizes)
        return sizes[CODE].double() / self._dtype.itemsize

    def lift(self, t: int, mean: Step) -> Step:
        """P·g̃, once for the whole cohort, with the basis that made the codes."""
        if self.full(t) or CODE not in mean:
            return self._inner.lift(t, mean)
        assert self._basis is not None
        flat = self._basis.columns @ mean[CODE][1]
        return {n: (None, v) for n, v in unflatten(flat, self._shapes).items()}

    def down_bytes(self, t: int, down: Slice, itemsize: int, clients: Tensor) -> Tensor:
        """The steps since the client last took part, or the model and its basis if they are smaller."""
        rank = 0 if self._basis is None else self._basis.rank
        return self._absent.words(t, clients, down.numbers(), rank) * itemsize

    def observe(self, end: RoundEnd) -> None:
        """Sample the trajectory, then follow it on full rounds (algorithm 1)."""
        self._inner.observe(end)
        full = self.full(end.round)
        self._absent.add(end, None if full or self._basis is None else self._basis.rank)
        if not full:
            return
        update = flatten(end.change, self._shapes)
        if end.round < self.warmup:
            self._sampled.append(update)
            if len(self._sampled) == self.warmup:
                self._basis = Basis.of(self._sampled, self.rank, self._device)
                self._sampled.clear()
        elif self._basis is not None:
            self._residuals.append((end.round + 1, self._basis.residual(update)))
            self._basis = self._basis.follow(update, self.decay, self.rank)

    def panels(self) -> list[Panel]:
        """How the trajectory's energy divides, and how much of each full update the subspace missed."""
        if self._basis is None:
            return []
        energy = self._basis.sigma.square()
        shares = (energy.cumsum(0) / energy.sum()).tolist()
        spectrum: list[dict[str, Cell]] = [
            {"direction": r, "share of energy": share} for r, share in enumerate(shares, start=1)
        ]
        missed: list[dict[str, Cell]] = [{"round": at, "share outside": share} for at, share in self._residuals]
        out = [
            Panel(
                title="Spectrum of the subspace",
                note=f"Share of the energy in the first directions, of {self._basis.rank} that are kept.",
                mark="line",
                x="direction",
                y="share of energy",
                rows=spectrum,
            )
        ]
        if missed:
            last = self._residuals[-1][1]
            note = f"Share of a full update's energy outside of the subspace before it; {last:.1%} at the last."
            out.append(
                Panel(title="What projection misses", note=note, mark="line", x="round", y="share outside", rows=missed)
            )
        return out

    def state_dict(self) -> Values:
        """The basis or the updates sampled for it so far, who has seen what, and the inner codec's own."""
        state: Values = {f"inner.{name}": value for name, value in self._inner.state_dict().items()}
        state |= {f"absent.{name}": value for name, value in self._absent.state_dict().items()}
        state["residuals"] = torch.tensor(self._residuals, dtype=torch.float64).view(-1, 2)
        if self._basis is not None:
            state |= {"basis": self._basis.columns, "sigma": self._basis.sigma}
        return state | {f"sampled.{name}": value for name, value in self._sampled.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved basis."""
        own = self._own(state, ("inner", "absent", "residuals", "basis", "sigma", "sampled"))
        for part, place in ((self._inner, "inner."), (self._absent, "absent."), (self._sampled, "sampled.")):
            part.load_state_dict({k.removeprefix(place): v for k, v in own.items() if k.startswith(place)})
        self._residuals = [(int(at), share) for at, share in own["residuals"].tolist()]
        self._basis = Basis(own["basis"], own["sigma"].cpu()) if "basis" in own else None


def flatten(change: Mapping[str, tuple[Tensor | None, Tensor]], shapes: Shapes) -> Tensor:
    """A change of the model as one vector; zeros where it says nothing."""
    like = next((values for _, values in change.values()), torch.zeros(0))
    parts = []
    for name, shape in shapes.items():
        out = like.new_zeros(shape)
        if name in change:
            rows, values = change[name]
            out = values.reshape(shape) if rows is None else out.index_add_(0, rows, values)
        parts.append(out.flatten())
    return torch.cat(parts)


def unflatten(flat: Tensor, shapes: Shapes) -> Values:
    """The inverse: parameters out of one vector, or out of the rows of a matrix."""
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {n: p.view(*s, *flat.shape[1:]) for (n, s), p in zip(shapes.items(), parts, strict=True)}
