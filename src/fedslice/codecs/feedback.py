"""Error feedback: what compression left out is remembered and added to the next (Karimireddy et al. 2019)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from fedslice.codecs import memory as memories
from fedslice.codecs.base import Codec
from fedslice.core.capabilities import Rule, once_a_round
from fedslice.core.header import Header
from fedslice.core.memory import Memory
from fedslice.core.message import Body
from fedslice.core.part import ClientRun
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.update import Update

_ERROR = "error"


class Feedback(Codec):
    """p = Δ + e is compressed to q, which is sent; e ← p − q. Over the rounds Σ q + e = Σ Δ.

    The new e counts if the server takes the upload: a client whose update is refused has sent nothing, and its e stays.

    Args:
        error_feedback: Whether what compression left out is remembered and added to the client's next update.
    """

    error_feedback: bool = True

    @property
    def provides(self) -> frozenset[str]:
        """It remembers errors, unless it has none."""
        return frozenset({"remembers"} if self.error_feedback else ())

    def rules(self) -> Iterable[Rule]:
        """A client's memory is written once a round."""
        if self.error_feedback:
            yield once_a_round("codec", self.label)

    def client_memory(self, run: ClientRun, place: str) -> Memory:
        """Nothing was left out yet."""
        memory = Memory(run, place)
        if self.error_feedback:
            memories.check_size(run.spec, self.label, len(run.task.federation))
            memory.pair(_ERROR)
        return memory

    def encode(self, memory: Memory, head: Header, update: Update, came: Body) -> Body:  # noqa: ARG002
        """Compress the update and the errors so far."""
        part, spec, clients = update.slice, memory.run.spec, head.clients
        if not self.error_feedback:
            return self.compress(spec, part, update.values)
        values = {
            name: value + memories.recall(memory, _ERROR, clients, part, name, value)
            for name, value in update.values.items()
        }
        body = self.compress(spec, part, values)
        for name, sent in self.restore(spec, part, body).items():
            memories.remember(memory, _ERROR, clients, part, name, values[name] - sent)
        return body

    def decode(self, state: Any, head: Header, part: Slice, body: Body) -> Update:  # noqa: ARG002
        """The values that the message stands for."""
        return Update(part, part, self.restore(state.run.spec, part, body))

    @abstractmethod
    def compress(self, spec: Spec, part: Slice, values: Values) -> Body:
        """Return the message that stands for these values."""
        raise NotImplementedError

    @abstractmethod
    def restore(self, spec: Spec, part: Slice, body: Body) -> Values:
        """Return the values that a message stands for."""
        raise NotImplementedError
