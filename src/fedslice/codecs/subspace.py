"""Streaming subspace of FLSS: updates travel as coefficients in a basis that follows the global trajectory.

Federated Learning in Streaming Subspace (FLSS): algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn.functional import pad

from fedslice.codecs.base import Codec
from fedslice.codecs.basis import Basis, mixed, project, with_directions
from fedslice.codecs.catchup import COPY, STEPS, CatchUp, Steps, ahead, kept, recalled, sent_values
from fedslice.codecs.dense import Dense
from fedslice.codecs.log import NOTHING, Coded, StepForm
from fedslice.core.capabilities import Rule
from fedslice.core.encodings import Floats
from fedslice.core.entries import Maybe, OnSlice, View, as_tensor
from fedslice.core.errors import Refused, UserError
from fedslice.core.fields import VALUES, named, value_fields
from fedslice.core.header import Header
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Fields
from fedslice.core.message import Field as MessageField
from fedslice.core.part import ClientRun, Round, ServerRun
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.update import RowDelta, Step, Update, flatten, split
from fedslice.core.vectors import Vectors
from fedslice.panel import Cell, Panel
from fedslice.room import free_memory, gib

CODE = "coefficients"  # the field, and the one parameter of the space in which coefficients are summed
BASIS, MIX = "basis", "mix"
_WHOLE = 1  # the layout of a step that is values; above, twice the rank: coefficients; one more: values and a new basis


class Subspace(Steps):
    """The basis, or the updates sampled for it so far, the inner codec's state, and past steps.

    Args:
        run: The server's side of the run.
        form: What steps look like.
        rank: Directions of the basis.
        sampled: Where the updates of the warm-up are collected.
        inner: The inner codec's state.

    Attributes:
        space: ``columns`` and ``sigma`` of the basis; empty until the end of the warm-up.
        residuals: For full rounds the number of rounds done, and the share of the update outside of the subspace.
    """

    saved = (*Steps.saved, "space", "residuals", "sampled", "inner")
    learned = ("inner",)

    def __init__(self, run: ServerRun, form: StepForm, rank: int, sampled: Vectors, inner: Any):
        super().__init__(run, form, run.spec.model_bytes * (rank + 1))
        self.space: dict[str, Tensor] = {}
        self.residuals = torch.zeros(0, 2, dtype=torch.float64)
        self.sampled = sampled
        self.inner = inner
        self._version = 0

    @property
    def basis(self) -> Basis | None:
        """The basis, if there is one."""
        return Basis(self.space["columns"], self.space["sigma"].cpu()) if self.space else None

    @basis.setter
    def basis(self, new: Basis | None) -> None:
        self.space = {} if new is None else {"columns": new.columns, "sigma": new.sigma}
        self._version += 1

    def view(self, part: Slice, basis: Basis) -> View:
        """Return the rows of the basis on a slice of the model."""
        version = self._version
        rows = basis.rows(self.run.spec.shapes)
        return View(rows, with_directions(part, basis.rank), fresh=lambda: self._version == version)

    def facts_dict(self) -> Values:
        """Return the facts of the inner codec; it has none of its own."""
        return {f"inner.{name}": value for name, value in self.inner.facts_dict().items()}

    def load_facts_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved facts."""
        self.inner.load_facts_dict({name.removeprefix("inner."): value for name, value in state.items()})


class SubspaceMemory(Memory):
    """The inner codec's memory, beside a copy of the model and the rows of the basis."""

    def __init__(self, run: ClientRun, place: str, inner: Any):
        super().__init__(run, place)
        self.inner = inner


class StreamingSubspace(CatchUp):
    """Send ``rank`` coefficients per client after ``warmup`` plain rounds, and a full update every ``every`` rounds.

    Coefficients are linear in the update, so the server sums them and expands the sum once: P·Σ w_i·Pᵀg_i. Full rounds
    keep the basis P on the trajectory.

    Server and clients have the same basis, rank·D numbers on the server and a client's own rows on a client. It follows
    a full update g by a product from the right, P_new = [P, g]·M, so the server sends M, (R + 1)·R numbers, and every
    client computes its rows. A client without a basis is sent the model and its rows of the basis; any other the steps
    that it has missed. Until the end of the warm-up the server keeps warmup·D numbers, in a file of the run's folder,
    or see :class:`~fedslice.core.vectors.Vectors`; afterwards the full steps since every client was last taken, rank·D
    numbers at most.

    Args:
        rank: Directions of the basis, R.
        warmup (rounds): Rounds whose updates are sampled for the first basis, L.
        every (rounds): A full round comes every so many rounds after the warm-up; 0 for none, and the basis stays as it
            is (F-Sub of table 4).
        decay: λ, the factor by which the past loses weight in every full round.
        inner: The codec by which full updates go up.
    """

    label = "subspace"

    rank: Annotated[int, Field(ge=1, le=2**15 - 2)] = 50
    warmup: Annotated[int, Field(ge=1, le=10**9)] = 200
    every: Annotated[int, Field(ge=0, le=10**9)] = 5
    decay: Annotated[float, Field(ge=0, le=1)] = 1.0
    inner: Codec = Dense()

    @field_validator("inner")
    @classmethod
    def _sends_updates(cls, inner: Codec) -> Codec:
        if "sends-steps" in inner.provides:
            raise ValueError(
                f"{inner.label} sends the server's steps down, as codec=subspace does itself; give a codec for uploads "
                "alone, such as sign"
            )
        return inner

    @property
    def provides(self) -> frozenset[str]:
        """A zero adds nothing to a coefficient, and coefficients are summed; in full rounds as the inner codec does."""
        return (
            super().provides | {"sums-codes", "basis"} | (self.inner.provides & {"keeps-zeros", "remembers", "linear"})
        )

    def rules(self) -> Iterable[Rule]:
        """Return the rules of the inner codec."""
        yield from self.inner.rules()

    def is_full(self, state: Subspace, t: int) -> bool:
        """Return whether whole updates travel in round ``t``."""
        if t < self.warmup or not state.space:
            return True
        return self.every > 0 and (t - self.warmup) % self.every == 0

    # --- the server's side

    def server_state(self, run: ServerRun) -> Subspace:
        """Refuse what could never become a subspace; nothing is sampled yet."""
        spec = run.spec
        if self.rank > spec.size:
            raise UserError(f"codec=subspace: rank={self.rank} but the model has {spec.size} parameters; give fewer.")
        if spec.rounds is not None and self.warmup > spec.rounds:
            raise UserError(
                f"codec=subspace: warmup={self.warmup} is longer than the run of {spec.rounds} rounds, in which "
                "nothing would be projected; give a shorter warm-up or more rounds."
            )
        remedy = "give a shorter warm-up, or a codec without a subspace"
        sampled = Vectors("codec=subspace", spec.size, self.warmup, spec.dtype, run.scratch, remedy)
        if (need := self.rank * spec.size * spec.dtype.itemsize) > (free := free_memory()):
            raise UserError(
                f"codec=subspace: {self.rank:,} directions of {spec.size:,} parameters take {gib(need)} where "
                f"{gib(free)} of memory are free; give a smaller rank."
            )
        return Subspace(run, self.form(spec), self.rank, sampled, self.inner.server_state(run))

    def enrol(self, state: Subspace, clients: Tensor, facts: Body) -> None:
        """For the inner codec."""
        self.inner.enrol(state.inner, clients, facts)

    def leave(self, state: Subspace, clients: Tensor, facts: Body) -> None:
        """For the inner codec."""
        self.inner.leave(state.inner, clients, facts)

    def forget(self, state: Subspace, clients: Tensor) -> None:
        """For the inner codec."""
        self.inner.forget(state.inner, clients)

    def layout(self, state: Subspace, t: int) -> int:
        """Return twice the rank of the basis, and one more if coefficients travel."""
        basis = state.basis
        return 2 * (0 if basis is None else basis.rank) + (not self.is_full(state, t))

    def send(self, state: Subspace, head: Header, model: View) -> Body:
        """Steps, or the model and the basis for whom has none."""
        body, basis = super().send(state, head, model), state.basis
        if basis is None:
            return body
        return body | {BASIS: Maybe(~body[STEPS].present, state.view(model.part, basis))}

    def base(self, state: Subspace, head: Header) -> Tensor:
        """Return the round of the model; clients that had one before there was a basis have no basis."""
        rounds = super().base(state, head)
        return rounds.masked_fill(rounds < self.warmup, -1) if state.space else rounds

    def extra(self, state: Subspace, part: Slice) -> Tensor | int:
        """The client's rows of the basis."""
        basis = state.basis
        return 0 if basis is None else part.numbers() * basis.rank * state.run.spec.dtype.itemsize

    def decode(self, state: Subspace, head: Header, part: Slice, body: Body) -> Update:
        """Coefficients as they are, which are summed; on a full round what the inner codec makes of it."""
        if CODE not in body:
            return self.inner.decode(state.inner, head, part, body)
        code = as_tensor(body[CODE])
        space = Slice.whole(len(code), {CODE: code.shape[1:]})
        return Update(space, space, {CODE: code.to(state.run.device)})

    def taken(self, state: Subspace, head: Header, update: Update, taken: Tensor) -> None:
        """For the inner codec."""
        if not head.layout & 1:
            self.inner.taken(state.inner, head, update, taken)

    def expand(self, state: Subspace, t: int, mean: Step) -> Step:
        """P·g̃, once for the whole cohort, with the basis that made the codes."""
        if self.is_full(state, t):
            return self.inner.expand(state.inner, t, mean)
        if CODE not in mean:
            return mean
        basis, code = state.basis, mean[CODE].values
        assert basis is not None
        state.coded = {CODE: code}
        parts = split(basis.columns @ code.to(basis.columns.dtype), state.run.spec.shapes)
        dtypes = state.run.spec.dtypes
        return {name: RowDelta(None, value.to(dtypes[name])) for name, value in parts.items()}

    def observe(self, state: Subspace, end: Round) -> None:
        """Sample the trajectory, then follow it on full rounds (algorithm 1)."""
        self.inner.observe(state.inner, end)
        super().observe(state, end)
        if end.number < self.warmup and len(state.sampled) < self.warmup and not state.space:
            state.sampled.append(flatten(end.change, state.run.spec.shapes))
            if len(state.sampled) == self.warmup:
                state.basis = Basis.of(state.sampled, self.rank, state.run.device)
                state.sampled.clear()

    def append(self, state: Subspace, end: Round) -> None:
        """Coefficients, times the server's rate."""
        assert state.coded is not None
        rate = state.run.spec.recipe.server.rate
        assert rate is not None
        code = rate * state.coded[CODE]
        state.log.add(end.number, 2 * len(code), {CODE: code[None].to(state.run.spec.dtype)})

    def append_whole(self, state: Subspace, end: Round) -> None:
        """Values; on a full round, which the basis follows, M with them."""
        basis = state.basis
        if basis is None:
            super().append_whole(state, end)
            return
        spec = state.run.spec
        update = flatten(end.change, spec.shapes)
        whole = {name: value.clone() for name, value in split(update, spec.shapes).items()}
        if not self.is_full(state, end.number):
            state.log.add(end.number, _WHOLE, {}, whole)
            return
        entry = torch.tensor([[end.number + 1, basis.residual(update)]], dtype=torch.float64)
        state.residuals = torch.cat([state.residuals, entry])
        before = basis.rank
        state.basis, mix = basis.follow(update, self.decay, self.rank)
        if mix is None:
            state.log.add(end.number, _WHOLE, {}, whole)
            return
        padded = mix.new_zeros(1, *self._mix(before))
        padded[0, :, : mix.shape[1]] = mix
        state.log.add(end.number, 2 * before + 1, {MIX: padded}, whole)

    def panels(self, state: Subspace) -> list[Panel]:
        """Return panels of the trajectory's energy and of the part of each full update that the subspace missed."""
        basis = state.basis
        if basis is None:
            return []
        energy = basis.sigma.square()
        shares = (energy.cumsum(0) / energy.sum()).tolist()
        spectrum: list[dict[str, Cell]] = [
            {"direction": r, "share of energy": share} for r, share in enumerate(shares, start=1)
        ]
        missed: list[dict[str, Cell]] = [
            {"round": int(at), "share outside": share} for at, share in state.residuals.tolist()
        ]
        out = [
            Panel(
                title="Spectrum of the subspace",
                note=f"Share of the energy in the first directions, of {basis.rank} that are kept.",
                mark="line",
                x="direction",
                y="share of energy",
                rows=spectrum,
            )
        ]
        if missed:
            last = float(state.residuals[-1, 1])
            note = f"Share of a full update's energy outside of the subspace before it; {last:.1%} at the last."
            out.append(
                Panel(title="What projection misses", note=note, mark="line", x="round", y="share outside", rows=missed)
            )
        return out

    # --- the client's side

    def client_memory(self, run: ClientRun, place: str) -> SubspaceMemory:
        """Nothing has come down yet."""
        return SubspaceMemory(run, place, self.inner.client_memory(run, f"{place}.inner"))

    def introduce(self, memory: SubspaceMemory, clients: Tensor) -> Body:
        """For the inner codec."""
        return self.inner.introduce(memory.inner, clients)

    def receive(self, memory: Any, head: Header, down: Slice, body: Body) -> Body:
        """Take model and basis as they come, or lead both from what is kept by the steps.

        ``basis`` is among what came down only if coefficients travel in this round.
        """
        body = self._received(memory, head, down, body)
        if not head.layout & 1:
            body.pop(BASIS, None)
        return body

    def _received(self, memory: SubspaceMemory, head: Header, down: Slice, body: Body) -> Body:
        came = sent_values(memory.run.spec, down, body)
        if head.layout < 2 or isinstance(came, View):
            return super().receive(memory, head, down, body)
        rank, all_directions = head.layout >> 1, with_directions(down, self.rank)
        directions = with_directions(down, rank)
        if (came is None) == (BASIS in body):
            raise Refused("has a basis and no values, or values and no basis")
        if came is not None:
            values, rows = came.at(down), body[BASIS].at(directions)
        else:
            values, rows = recalled(memory, COPY, head, down), recalled(memory, BASIS, head, all_directions)
            for step in ahead(memory, head, body):
                rows = self._follow(values, rows, down, step)
            rows = {name: value[..., :rank] for name, value in rows.items()}
        kept(memory, COPY, head, down, values)
        padded = {name: pad(value, (0, self.rank - value.shape[-1])) for name, value in rows.items()}
        kept(memory, BASIS, head, all_directions, padded)
        return body | {VALUES: OnSlice(down, values), BASIS: OnSlice(directions, rows)}

    def apply(self, memory: Any, down: Slice, values: Values, step: Coded) -> None:  # noqa: ARG002
        """Refuse steps before there is a basis: the server sends values then."""
        raise Refused(f"has a step of layout {step.layout} before the end of the warm-up")

    @staticmethod
    def _follow(values: Values, rows: Values, down: Slice, step: Coded) -> Values:
        """Add a step to values in place, and return the rows of the basis after it."""
        if step.layout == NOTHING:
            return rows
        rank = step.layout >> 1
        if CODE in step.body:
            code = as_tensor(step.body[CODE])[0]
            for name, value in values.items():
                value.add_((rows[name][..., :rank] @ code.to(rows[name].dtype)).to(value.dtype))
            return rows
        change = named(step.body, VALUES).at(down)
        for name, value in values.items():
            value.add_(change[name])
        if MIX not in step.body:
            return rows
        mix = as_tensor(step.body[MIX])[0]
        out: Values = {}
        for name, own in rows.items():
            flat = mixed(own[..., :rank].reshape(-1, rank), change[name].reshape(-1).to(own.dtype), mix)
            out[name] = flat.view(*own.shape[:-1], mix.shape[1])
        return out

    def encode(self, memory: SubspaceMemory, head: Header, update: Update, came: Body) -> Body:
        """g̃ = Pᵀg, or on a full round g itself, as the inner codec sends it."""
        if not head.layout & 1:
            return self.inner.encode(memory.inner, head, update, came)
        return {CODE: project(came[BASIS], update, head.layout >> 1, memory.run.spec.dtype)}

    # --- what both sides derive

    def facts(self, spec: Spec) -> Fields:
        """Those of the inner codec."""
        return self.inner.facts(spec)

    def layouts(self, spec: Spec) -> Iterable[int]:  # noqa: ARG002
        """Before there is a basis, and with one of all directions: on full rounds, and on others."""
        return (0, 2 * self.rank, 2 * self.rank + 1)

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:
        """The coefficients, or on a full round what the inner codec sends."""
        if layout & 1:
            return {CODE: _coefficients(spec, layout >> 1)}
        return self.inner.fields(spec, part, 0)

    def send_fields(self, spec: Spec, down: Slice, layout: int) -> Fields:
        """Values or steps; with values the basis, if there is one."""
        if layout >> 1 > self.rank:
            raise Refused(f"speaks of {layout >> 1} directions, expected at most {self.rank}")
        fields = super().send_fields(spec, down, layout)
        if layout < 2:
            return fields
        directions = with_directions(down, layout >> 1)
        rows = MessageField(Floats(spec.dtype), on=directions, optional=True, about="its rows of the basis")
        return {**fields, BASIS: rows}

    def form(self, spec: Spec) -> StepForm:
        """Steps are coefficients, or values and the matrix by which the basis follows them."""

        def shared(layout: int) -> Fields:
            rank = layout >> 1
            if rank > self.rank:
                raise Refused(f"has a step of rank {rank}, expected at most {self.rank}")
            if layout == _WHOLE:
                return {}
            if layout & 1:
                return {MIX: MessageField(Floats(torch.float64), shape=self._mix(rank), about="how the basis moves")}
            return {CODE: _coefficients(spec, rank)}

        def held(layout: int, part: Slice) -> Fields:
            return value_fields(spec, part) if layout & 1 else {}

        return StepForm(shared, held)

    def _mix(self, rank: int) -> tuple[int, int]:
        """The shape in which M travels: columns of zeros stand where the basis has fewer directions than it may."""
        return rank + 1, min(rank + 1, self.rank)

    def words(self, spec: Spec, part: Slice, sizes: Mapping[str, Tensor]) -> Tensor:
        """One per coefficient, or as the inner codec counts."""
        if CODE not in sizes:
            return self.inner.words(spec, part, sizes)
        return sizes[CODE].double() / spec.dtype.itemsize


def _coefficients(spec: Spec, rank: int) -> MessageField:
    return MessageField(Floats(spec.dtype), shape=(rank,), about="coefficients of an update in the basis")
