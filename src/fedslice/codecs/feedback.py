"""Error feedback: what compression left out is remembered and added to the next (Karimireddy et al. 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedslice.codecs.base import Codec
from fedslice.codecs.memory import Memory
from fedslice.core.message import Body
from fedslice.messages import Upload
from fedslice.parts import World
from fedslice.slice import Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe


class Feedback(Codec):
    """p = Δ + e is compressed to q, which is sent; e ← p − q. Over the rounds Σ q + e = Σ Δ.

    A client whose update was refused sent nothing that counts: its e stays.
    """

    error_feedback: bool = True

    def check(self, recipe: Recipe) -> None:
        """A client's memory is written once a round."""
        if self.error_feedback:
            self._once_a_round("codec", recipe)

    def setup(self, world: World) -> None:
        """Nothing was left out yet."""
        super().setup(world)
        if self.error_feedback:
            self._errors = Memory(self, "error", world)

    def encode(self, t: int, upload: Upload) -> Body:  # noqa: ARG002
        """Compress the update and the errors so far."""
        clients, part, taken = upload.clients, upload.slice, upload.weights > 0
        if not self.error_feedback:
            return self.compress(part, upload.values)
        values = {n: v + self._errors.recall(clients, part, n, v) for n, v in upload.values.items()}
        body = self.compress(part, values)
        for name, sent in self.restore(part, body).items():
            self._errors.keep(clients, part, name, values[name] - sent, taken)
        return body

    def decode(self, t: int, frame: Upload, body: Body) -> Upload:  # noqa: ARG002
        """The values that the message stands for."""
        return replace(frame, values=self.restore(frame.slice, body))

    def compress(self, part: Slice, values: Values) -> Body:
        """The message that stands for these values."""
        raise NotImplementedError

    def restore(self, part: Slice, body: Body) -> Values:
        """The values that a message stands for."""
        raise NotImplementedError
