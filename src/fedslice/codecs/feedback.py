"""Error feedback: what a message leaves out is remembered and added to the next (Karimireddy et al. 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedslice.codecs.base import Codec
from fedslice.codecs.memory import Memory
from fedslice.messages import Message, Upload
from fedslice.parts import World

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

    def encode(self, t: int, upload: Upload) -> Message:  # noqa: ARG002
        """Compress the update and the errors so far."""
        if not self.error_feedback:
            return self.compress(upload)
        clients, part, taken = upload.clients, upload.slice, upload.weights > 0
        values = {n: v + self._errors.recall(clients, part, n, v) for n, v in upload.values.items()}
        message = self.compress(replace(upload, values=values))
        for name, sent in message.upload.values.items():
            self._errors.keep(clients, part, name, values[name] - sent, taken)
        return message

    def compress(self, upload: Upload) -> Message:
        """What is sent of these values."""
        raise NotImplementedError
