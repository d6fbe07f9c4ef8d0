"""Secure aggregation: the server opens the sum of the clients' codes and sees none of them.

Practical Secure Aggregation for Privacy-Preserving Machine Learning
    Keith Bonawitz, Vladimir Ivanov, Ben Kreuter, Antonio Marcedone, H. Brendan McMahan, Sarvar Patel, Daniel Ramage,
    Aaron Segal, Karn Seth. CCS 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import pydantic
from pydantic import field_validator
from torch import Tensor

from fedslice.codecs.base import Codec
from fedslice.codecs.dense import Dense
from fedslice.core.capabilities import Rule, once_a_round
from fedslice.core.entries import View
from fedslice.core.header import Header
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Field, Fields
from fedslice.core.part import ClientRun, Positive, Round, ServerRun, State
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.update import Step, Update
from fedslice.panel import Panel
from fedslice.privacy.encoding import RingElements
from fedslice.privacy.quantize import Quantizer

_BITS = 64  # of a ring at most; the layout of a round says how many, beside that of the inner codec
_USUAL = 50  # clients, where a ring is shown before there is a cohort


class Sealed(State):
    """The inner codec's state, and the size of this round's cohort."""

    saved = ("inner",)

    def __init__(self, run: ServerRun, inner: Any):
        super().__init__(run)
        self.inner = inner
        self.size = _USUAL

    def facts_dict(self) -> Values:
        """Return the facts of the inner codec; it has none of its own."""
        return {f"inner.{name}": value for name, value in self.inner.facts_dict().items()}

    def load_facts_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved facts."""
        self.inner.load_facts_dict({name.removeprefix("inner."): value for name, value in state.items()})


class SealedMemory(Memory):
    """The inner codec's memory."""

    def __init__(self, run: ClientRun, place: str, inner: Any):
        super().__init__(run, place)
        self.inner = inner


class SecAgg(Codec):
    """Sum what an inner codec encodes, and what parts report on coordinates, without seeing any client's own.

    Each value is clipped to ``bound``, multiplied by the client's share of the largest weight, and rounded at random to
    one of ``2**bits - 1`` levels, so that its mean is exact. Clients add masks that cancel in the sum of the cohort,
    modulo a power of two that no sum reaches. A client that is lost on the way costs the round nothing as long as more
    than half of the cohort remains; else the round ends without a step.

    A vector has a place for every value of the model, and zeros where a client holds nothing. What clients request, and
    how many samples they enrol with, is no part of the sum.

    Args:
        inner: The codec whose codes are summed; its codes of a sum must be the sum of the codes.
        bound: Largest magnitude of a value of the inner codec.
        report_bound: Largest magnitude of a value that a part reports beside, such as SCAFFOLD's control variate.
        bits: Bits of one client's value; the sum of a cohort has a few more.
        simulate: Whether a simulation leaves the cryptography out. Sums, losses and bytes are the same; processes of
            their own never do.
    """

    label = "secagg"

    inner: Codec = Dense()
    bound: Positive = 1.0
    report_bound: Positive = 1.0
    bits: Annotated[int, pydantic.Field(ge=2, le=32)] = 16
    simulate: bool = True

    @field_validator("inner")
    @classmethod
    def _sums(cls, inner: Codec) -> Codec:
        if "linear" not in inner.provides:
            raise ValueError(
                f"the codes of {inner.label} cannot be summed, and codec=secagg opens nothing but a sum; give dense, "
                "fetchsgd, or subspace around dense"
            )
        return inner

    @property
    def provides(self) -> frozenset[str]:
        """Codes are summed under masks; the rest is as with the inner codec."""
        own = {"sums-codes", "sealed", "unmasked"} if self.simulate else {"sums-codes", "sealed"}
        return (self.inner.provides & {"keeps-zeros", "sends-steps", "basis"}) | own

    def rules(self) -> Iterable[Rule]:
        """Refuse what looks at single clients' uploads."""
        yield from self.inner.rules()
        yield once_a_round("codec", self.label)
        for place, capability, why in (
            ("select", "pools", "has all data in one place, where nothing is summed"),
            ("select", "squares", "looks at each client's losses"),
            ("combine", "per-sender", "asks who sent each coordinate"),
            ("combine", "needs-updates", "looks at every client's update"),
        ):
            yield Rule(
                place,
                capability,
                False,
                f"codec=secagg opens the sum of a cohort's uploads alone, but {place}={{label}} {why}; use another "
                "codec.",
            )

    def quantizer(self, spec: Spec, name: str, size: int, layout: int) -> Quantizer:
        """Return how a field of an upload is rounded: a code's in the range of codes, a report's in its own."""
        own = name in self.inner.fields(spec, Slice.whole(1, spec.shapes), layout // _BITS)
        return Quantizer(self.bound if own else self.report_bound, size, self.bits)

    def sealed(self, spec: Spec, fields: Fields, whole: Fields, layout: int) -> Fields:  # noqa: ARG002
        """Return ring elements in the place of all fields, each as long as if the whole model were sent."""
        bits = layout % _BITS + 1
        out: dict[str, Field] = {}
        for name in fields:
            each = whole[name]
            assert isinstance(each, Field)
            out[name] = Field(RingElements(bits), shape=(int(each.counts(1)[0]),), about=f"{each.about}, under masks")
        return out

    def gathered(self, state: Sealed, size: int) -> None:
        """Note the size of a round's cohort."""
        state.size = size

    # --- the server's side

    def server_state(self, run: ServerRun) -> Sealed:
        """The inner codec's."""
        return Sealed(run, self.inner.server_state(run))

    def enrol(self, state: Sealed, clients: Tensor, facts: Body) -> None:
        """For the inner codec."""
        self.inner.enrol(state.inner, clients, facts)

    def leave(self, state: Sealed, clients: Tensor, facts: Body) -> None:
        """For the inner codec."""
        self.inner.leave(state.inner, clients, facts)

    def forget(self, state: Sealed, clients: Tensor) -> None:
        """For the inner codec."""
        self.inner.forget(state.inner, clients)

    def layout(self, state: Sealed, t: int) -> int:
        """Return 64 times the inner layout, and one less than the bits of the ring."""
        ring = Quantizer(self.bound, state.size, self.bits).ring
        return self.inner.layout(state.inner, t) * _BITS + ring.bits - 1

    def send(self, state: Sealed, head: Header, model: View) -> Body:
        """As the inner codec does."""
        return self.inner.send(state.inner, _inner(head), model)

    def decode(self, state: Sealed, head: Header, part: Slice, body: Body) -> Update:
        """Return the update that a sum stands for, which has the form of one client's message."""
        return self.inner.decode(state.inner, _inner(head), part, body)

    def expand(self, state: Sealed, t: int, mean: Step) -> Step:
        """As the inner codec does."""
        return self.inner.expand(state.inner, t, mean)

    def observe(self, state: Sealed, end: Round) -> None:
        """For the inner codec."""
        self.inner.observe(state.inner, end)

    def panels(self, state: Sealed) -> list[Panel]:
        """Those of the inner codec."""
        return self.inner.panels(state.inner)

    # --- the client's side

    def client_memory(self, run: ClientRun, place: str) -> SealedMemory:
        """The inner codec's."""
        return SealedMemory(run, place, self.inner.client_memory(run, f"{place}.inner"))

    def introduce(self, memory: SealedMemory, clients: Tensor) -> Body:
        """For the inner codec."""
        return self.inner.introduce(memory.inner, clients)

    def receive(self, memory: SealedMemory, head: Header, down: Slice, body: Body) -> Body:
        """As the inner codec does."""
        return self.inner.receive(memory.inner, _inner(head), down, body)

    def encode(self, memory: SealedMemory, head: Header, update: Update, came: Body) -> Body:
        """Return the codes before they are rounded and masked."""
        return self.inner.encode(memory.inner, _inner(head), update, came)

    # --- what both sides derive

    def facts(self, spec: Spec) -> Fields:
        """Those of the inner codec."""
        return self.inner.facts(spec)

    def layouts(self, spec: Spec) -> Iterable[int]:
        """Those of the inner codec, in the ring of a cohort of usual size."""
        bits = Quantizer(self.bound, _USUAL, self.bits).ring.bits
        return [layout * _BITS + bits - 1 for layout in self.inner.layouts(spec)]

    def send_fields(self, spec: Spec, down: Slice, layout: int) -> Fields:
        """Those of the inner codec."""
        return self.inner.send_fields(spec, down, layout // _BITS)

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:
        """Return the fields of the codes before they are rounded and masked."""
        return self.inner.fields(spec, part, layout // _BITS)


def _inner(head: Header) -> Header:
    """The header as the inner codec knows it."""
    return replace(head, layout=head.layout // _BITS)
