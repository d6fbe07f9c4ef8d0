"""Codecs whose clients are sent the steps that they have missed, in place of the model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedslice.codecs.base import Codec
from fedslice.codecs.log import NOTHING, Coded, StepForm, StepLog
from fedslice.core.entries import Maybe, OnSlice, View, merged
from fedslice.core.errors import Refused
from fedslice.core.fields import VALUES, value_fields
from fedslice.core.header import Header
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Fields, size_fields
from fedslice.core.part import Round, ServerRun, State
from fedslice.core.slice import Axes, Slice, Values
from fedslice.core.spec import Spec

STEPS = "steps"
COPY = "copy"
_ROUND = "round"  # of the model that a copy is of


class Steps(State):
    """The steps that clients may have missed.

    Args:
        run: The server's side of the run.
        form: What steps look like.
        limit: Bytes that a client is sent if it has nothing; more steps than that are of no use.

    Attributes:
        coded: The fields of this round's step, as the codec has made it, if clients can follow it by that.
    """

    saved: ClassVar[tuple[str, ...]] = ("log",)

    def __init__(self, run: ServerRun, form: StepForm, limit: int):
        super().__init__(run)
        self.log = StepLog(form, limit)
        self.coded: Body | None = None

    @property
    def plain(self) -> bool:
        """Whether the model moves by a constant times what the codec has decoded."""
        parts = self.run.spec.recipe.parts()
        return all("plain" in parts[place].provides for place in ("combine", "server"))


class CatchUp(Codec):
    """A codec whose server tells clients by how much the model has changed since they last had it.

    A client is sent the steps that it has missed, or all that it holds of the model if that takes less: when it is new,
    for example. It keeps a copy of the model to add steps to. In a simulation nobody keeps copies: a client's copy
    would equal the server's model, which is read instead, and the steps are sized.

    Where a client holds other coordinates in every round, it is sent values every time: steps would not lead to those
    that it lacks.
    """

    @property
    def provides(self) -> frozenset[str]:
        """The server's steps come down."""
        return super().provides | {"sends-steps"}

    @abstractmethod
    def form(self, spec: Spec) -> StepForm:
        """Return what steps look like."""
        raise NotImplementedError

    @abstractmethod
    def apply(self, memory: Any, down: Slice, values: Values, step: Coded) -> None:
        """Add a step, in place, to a client's values [1, ...] on what comes down to it.

        Raises:
            Refused: If it is not a step from there.
        """
        raise NotImplementedError

    # --- the server's side

    def send(self, state: Any, head: Header, model: View) -> Body:
        """Steps for whom they bring up to date at less cost, and values for all others."""
        spec = state.run.spec
        fields = value_fields(spec, model.part)
        missed = state.log.missed(self.base(state, head), model.part)
        whole = size_fields(fields, dict.fromkeys(fields, model), model.part.clients)
        short = missed.known & (missed.sizes() < whole + self.extra(state, model.part))
        return dict.fromkeys(fields, Maybe(~short, model)) | {STEPS: Maybe(short, missed)}

    def base(self, state: Any, head: Header) -> Tensor:
        """Return the rounds whose models clients have and can be brought on from by steps, -1 for none [clients]."""
        redraws = "redraws" in state.run.spec.recipe.slices.provides
        return torch.full_like(head.model_round, -1) if redraws else head.model_round

    def extra(self, state: Any, part: Slice) -> Tensor | int:  # noqa: ARG002
        """Return how many bytes besides the model a client is sent that cannot be brought up to date [clients]."""
        return 0

    def observe(self, state: Any, end: Round) -> None:
        """Append the round's step."""
        if not end.change:
            state.log.add(end.number, NOTHING, {})
        elif state.coded is not None and state.plain:
            self.append(state, end)
        else:
            self.append_whole(state, end)
        state.coded = None
        state.log.drop(state.run.enrolled.oldest())

    @abstractmethod
    def append(self, state: Any, end: Round) -> None:
        """Append a step that clients can follow by ``state.coded``."""
        raise NotImplementedError

    def append_whole(self, state: Any, end: Round) -> None:
        """Append a step that they cannot follow: all that they hold of the model takes no more."""
        state.log.clear(end.number + 1)

    # --- the client's side

    def receive(self, memory: Any, head: Header, down: Slice, body: Body) -> Body:
        """Take the values, or add the steps to the copy."""
        came = sent_values(memory.run.spec, down, body)
        if isinstance(came, View):
            return super().receive(memory, head, down, body)
        if came is not None:
            values = came.at(down)
        else:
            values = recalled(memory, COPY, head, down)
            for step in ahead(memory, head, body):
                if step.layout != NOTHING:
                    self.apply(memory, down, values, step)
        kept(memory, COPY, head, down, values)
        return body | {VALUES: OnSlice(down, values)}

    # --- what both sides derive

    def send_fields(self, spec: Spec, down: Slice, layout: int) -> Fields:  # noqa: ARG002
        """Values, or steps."""
        return {**value_fields(spec, down, optional=True), STEPS: self.form(spec).field(down)}


def travelling(spec: Spec) -> list[str]:
    """Return the parameters that are exchanged at all."""
    private = spec.recipe.slices.kept(spec)
    return [name for name in spec.shapes if name not in private]


def sent_values(spec: Spec, part: Slice, body: Body) -> View | OnSlice | None:
    """Return the model's values, if a message has them.

    Raises:
        Refused: If it has some of them alone.
    """
    fields = value_fields(spec, part)
    came = [body[name] for name in fields if name in body]
    if came and len(came) < len(fields):
        raise Refused(f"has {len(came)} of {len(fields)} fields of values")
    return merged(came) if came else None


def ahead(memory: Memory, head: Header, body: Body) -> list[Coded]:
    """Return the steps of a message that lead from a client's copy to this round's model.

    Who appears more than once in a round is sent the same steps each time, and follows them once.

    Raises:
        Refused: If steps are lacking.
    """
    steps: list[Coded] = body.get(STEPS, [])
    found = memory.get(_ROUND, head.clients)
    number = head.round - int(found[0]) if found is not None and bool(found[1]) else -1
    if not 0 <= number <= len(steps):
        raise Refused(f"has {len(steps)} steps, which do not lead from this client's copy to round {head.round}")
    return steps[len(steps) - number :]


def kept(memory: Memory, kind: str, head: Header, part: Slice, values: Values) -> None:
    """Remember this round's values on a slice, of a table the rows alone, whatever becomes of the upload."""
    clients = head.clients.to(memory.run.device)
    memory.keep(_ROUND, clients, torch.full_like(clients, head.round))
    for name, axes in part.axes.items():
        place = f"{kind}/{name}"
        if _rows_alone(axes):
            axis = axes[0]
            assert axis is not None
            memory.keep_rows(place, clients, axis.ids, axis.mask, values[name])
        else:
            memory.keep(place, clients, part.spread(name, values[name]))


def recalled(memory: Memory, kind: str, head: Header, part: Slice) -> Values:
    """Return what :func:`kept` has written, on a slice.

    Raises:
        Refused: If a client remembers nothing, or lacks rows of a table.
    """
    clients = head.clients.to(memory.run.device)
    out: Values = {}
    for name, axes in part.axes.items():
        place, one = f"{kind}/{name}", part.only([name])
        if _rows_alone(axes):
            rows, own = memory.get_rows(place, clients), axes[0]
            assert own is not None
            if rows is None or not bool((rows[0].contains(own.ids) | ~own.mask).all()):
                raise Refused(f"has steps of {name!r}, of which this client lacks rows")
            outer = Slice(part.clients, part.shapes, {name: (rows[0], *axes[1:])})
            out |= one.pick({name: rows[1]}, outer)
        else:
            whole = memory.get(place, clients)
            if whole is None or not bool(whole[1].all()):
                raise Refused(f"has steps of {name!r}, which this client does not have")
            out |= one.pick({name: whole[0]}, Slice.whole(part.clients, part.shapes, [name]))
    return out


def _rows_alone(axes: Axes) -> bool:
    return bool(axes) and axes[0] is not None and all(axis is None for axis in axes[1:])
