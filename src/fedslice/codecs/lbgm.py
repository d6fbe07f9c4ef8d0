"""Look-back gradients: a multiple of what was sent before (LBGM, as FLSS's table 8 has it)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedslice.codecs import memory as memories
from fedslice.codecs.base import Codec
from fedslice.core.capabilities import Rule, once_a_round
from fedslice.core.encodings import Bits, Floats
from fedslice.core.entries import OnSlice, as_tensor, on_slice, per_client
from fedslice.core.header import Header
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Fields
from fedslice.core.message import Field as MessageField
from fedslice.core.part import ClientRun, ServerRun, State
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.store import Store
from fedslice.core.update import Update

_SENT = "sent"


class LookBacks(State):
    """The values that every client last sent in full.

    Attributes:
        store: The look-backs.
        close: Which parameters of the chunk that was decoded last came as factors, by parameter [clients].
    """

    saved = ("store",)

    def __init__(self, run: ServerRun):
        super().__init__(run)
        self.store = Store(None, run.device)
        self.close: dict[str, Tensor] = {}


class LBGM(Codec):
    """A parameter's update g goes up as ρ = ⟨g, ℓ⟩/‖ℓ‖² if it is close to the one ℓ that last went up in full.

    Close means sin²(g, ℓ) ≤ delta; the server then takes ρ·ℓ. Otherwise g goes up and becomes ℓ. The look-back is by
    parameter, as in the published code (the paper's algorithm takes the model as one vector). Client and server
    remember it each for itself, so a simulation remembers two models per client.

    Args:
        delta: Largest sin² of the angle to the look-back at which one number is sent, δ; 0 is FedAvg.
    """

    label = "lbgm"

    delta: Annotated[float, Field(ge=0, le=1)] = 0.05

    @property
    def provides(self) -> frozenset[str]:
        """It remembers look-backs."""
        return frozenset({"remembers"})

    def rules(self) -> Iterable[Rule]:
        """A client's memory is written once a round."""
        yield once_a_round("codec", self.label)

    def client_memory(self, run: ClientRun, place: str) -> Memory:
        """Nothing was sent yet. In a simulation the server's half lies in the same machine."""
        memories.check_size(run.spec, self.label, len(run.task.federation), copies=2)
        memory = Memory(run, place)
        memory.pair(_SENT)
        return memory

    def server_state(self, run: ServerRun) -> LookBacks:
        """Nothing has arrived yet."""
        return LookBacks(run)

    def enrol(self, state: LookBacks, clients: Tensor, facts: Body) -> None:  # noqa: ARG002
        """Refuse more clients than can be remembered."""
        memories.check_size(state.run.spec, self.label, state.run.enrolled.count)

    def forget(self, state: LookBacks, clients: Tensor) -> None:
        """Forget what these clients have sent; their next updates must come in full."""
        state.store.forget(_SENT, clients)

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:  # noqa: ARG002
        """A flag per parameter, and then a factor or the values."""

        def close(body: Body) -> Tensor:
            return as_tensor(body["close"]).bool()

        def full(body: Body) -> OnSlice:
            flags = {}
            for name, flag in zip(part.axes, (~close(body)).unbind(1), strict=True):
                size = part.sizes(name)
                flags[name] = flag.view(-1, *[1] * len(size)).expand(-1, *size)
            return OnSlice(part, flags)

        return {
            "close": MessageField(Bits(), shape=(len(part.axes),), about="which parameters' updates are like the last"),
            "factor": MessageField(
                Floats(spec.dtype), shape=(len(part.axes),), where=close, about="a factor for each that is"
            ),
            "values": MessageField(Floats(spec.dtype), on=part, where=full, about="the updates of all others"),
        }

    def encode(self, memory: Memory, head: Header, update: Update, came: Body) -> Body:  # noqa: ARG002
        """Compare every parameter with what was last sent in full."""
        part, clients, dtype = update.slice, head.clients, memory.run.spec.dtype
        factors, flags = [], []
        for name, value in update.values.items():
            back = memories.recall(memory, _SENT, clients, part, name, value)
            inner, energy, length = (
                part.sums(name, one.double() * other.double())
                for one, other in ((value, back), (value, value), (back, back))
            )
            factor = inner / torch.where(length > 0, length, 1)
            close = (length > 0) & (energy - factor * inner <= self.delta * energy)  # sin²·‖g‖² on the left
            memories.remember(memory, _SENT, clients, part, name, value, ~close)
            factors.append(factor.to(dtype))
            flags.append(close)
        none = torch.zeros(update.clients, 0)
        return {
            "close": torch.stack(flags, 1) if flags else none.bool(),
            "factor": torch.stack(factors, 1) if factors else none.to(dtype),
            "values": OnSlice(part, {name: value.to(dtype) for name, value in update.values.items()}),
        }

    def decode(self, state: LookBacks, head: Header, part: Slice, body: Body) -> Update:
        """Factors times what the client sent before, or the values.

        A factor from a client that never sent values decodes to NaN, which the server refuses: it costs that client
        the round, and nobody else.
        """
        spec = state.run.spec
        flags, factors = (as_tensor(body[name]).unbind(1) for name in ("close", "factor"))
        values: Values = {}
        state.close = {}
        for (name, sent), flag, factor in zip(on_slice(body["values"]).values.items(), flags, factors, strict=True):
            close = flag.bool().to(sent.device)
            back = memories.recall(state.store, _SENT, head.clients, part, name, sent)
            never = close & ~back.flatten(1).any(1)
            multiple = per_client(factor.to(sent.device).masked_fill(never, torch.nan), sent) * back
            values[name] = torch.where(per_client(close, sent), multiple, sent).to(spec.dtypes[name])
            state.close[name] = close
        return Update(part, part, values)

    def taken(self, state: LookBacks, head: Header, update: Update, taken: Tensor) -> None:
        """Remember what arrived in full."""
        for name, close in state.close.items():
            which = taken.to(close.device) & ~close
            value = update.values[name]
            memories.remember(state.store, _SENT, head.clients, update.slice, name, value, which)
        state.close = {}

    def words(self, spec: Spec, part: Slice, sizes: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """One per factor or value."""
        return (sizes["factor"] + sizes["values"]).double() / spec.dtype.itemsize
