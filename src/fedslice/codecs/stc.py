"""Sparse ternary compression, up and down (Sattler et al. 2019; STC of S4's table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice import wire
from fedslice.codecs.feedback import Feedback
from fedslice.codecs.flat import flat, read_scales
from fedslice.codecs.missed import Missed
from fedslice.codecs.sparse import Share, place_bits, placed, read_places, step_bits, strongest, write_places
from fedslice.combine import Combine
from fedslice.errors import UserError
from fedslice.messages import Message, Step, Upload
from fedslice.parts import CHECKED, RoundEnd, World
from fedslice.server import ServerSGD
from fedslice.slice import Slice, Values

if TYPE_CHECKING:
    from fedslice.recipe import Recipe


@dataclass(config=CHECKED)
class STC(Feedback):
    """Of each parameter the k = ⌈share·n⌉ strongest entries go up, as the mean μ of their magnitudes and their signs.

    The server compresses its step in the same way, with a residual of its own, and that comes down: :class:`Missed`
    says how it is counted. S4 counts D/32 words for a message; at a share of 1/32 the wire takes 0.235 bits per value.
    """

    label = "stc"

    share: Share = 1 / 32

    def check(self, recipe: Recipe) -> None:
        """The step that comes down is the compressed one, so nothing may change it afterwards."""
        super().check(recipe)
        if not isinstance(recipe.server, ServerSGD) or type(recipe.combine).correct is not Combine.correct:
            raise UserError(
                f"codec=stc sends the server's step down in three values per parameter, but combine="
                f"{recipe.combine.label} with server={recipe.server.label} changes it afterwards; use combine=mean "
                "with server=sgd, or codec=topk."
            )

    def setup(self, world: World) -> None:
        """The server left nothing out yet."""
        super().setup(world)
        self._residual: Values = {}
        self._missed = Missed(len(world.task.federation))

    def compress(self, upload: Upload) -> Message:
        """Magnitudes, then places and signs."""
        part = upload.slice
        sent, scales = self._ternary(part, upload.values)
        bits, number = place_bits(part, sent, self.share)
        size = (bits + 7) // 8 + (number + 7) // 8 + scales.shape[1] * self._dtype.itemsize + part.id_bytes()
        return Message(replace(upload, values=sent), size, part.numbers().double() / 32, {"scale": scales})

    def lift(self, t: int, mean: Step) -> Step:  # noqa: ARG002
        """Compress the mean and what the server left out so far; what is left out now is kept."""
        out: Step = {}
        for name, (rows, values) in mean.items():
            whole = self._residual.get(name, values.new_zeros(self._shapes[name]))
            whole = whole + values if rows is None else whole.index_add(0, rows, values)
            part = Slice.whole(1, {name: self._shapes[name]})
            sent = self._ternary(part, {name: whole[None]})[0][name][0]
            self._residual[name] = whole - sent
            out[name] = None, sent
        return out

    def observe(self, end: RoundEnd) -> None:
        """Count the message that this round's step is."""
        bits, number = step_bits(end.change, self._shapes, self.share)
        self._missed.add(end, (bits + 7) // 8 + (number + 7) // 8 + len(end.change) * self._dtype.itemsize)

    def down_bytes(self, t: int, down: Slice, itemsize: int, clients: Tensor | None = None) -> Tensor:
        """The compressed steps that a client missed."""
        return self._missed.bytes(t, clients, super().down_bytes(t, down, itemsize, clients))

    def write(self, message: Message) -> bytes:
        """A magnitude per parameter, all places, all signs."""
        bits, entries = write_places(message.upload.values, self.share)
        places, signs = np.concatenate(bits), np.concatenate(entries) > 0
        return wire.pack_values(dict(message.codes)) + np.packbits(places).tobytes() + np.packbits(signs).tobytes()

    def read(self, client: int, part: Slice, reader: wire.Reader) -> Values:  # noqa: ARG002
        """Signs times magnitude at their places."""
        scales = read_scales(part, reader, self._dtype)
        places = read_places(part, reader, self.share)
        signs = torch.from_numpy(reader.bits(sum(map(len, places.values())), "signs")).to(self._dtype) * 2 - 1
        own = signs.split([len(at) for at in places.values()])
        return {
            name: placed(part, name, at, sign * scale)
            for (name, at), sign, scale in zip(places.items(), own, scales, strict=True)
        }

    def state_dict(self) -> Values:
        """The server's residual, and who has seen which steps."""
        return {f"residual.{name}": value for name, value in self._residual.items()} | self._missed.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved residual."""
        own = self._own(state, ("residual", *Missed.kinds))
        self._residual = {k.removeprefix("residual."): v for k, v in own.items() if k.startswith("residual.")}
        self._missed.load_state_dict(own)

    def _ternary(self, part: Slice, values: Values) -> tuple[Values, Tensor]:
        """±μ on the strongest entries of each parameter, and μ [clients, parameters]."""
        sent, scales = {}, []
        for name, value in values.items():
            line = flat(part, name, value)
            taken = strongest(line, self.share)
            mass = (line.values.abs() * taken).sum(1, dtype=torch.float64)
            scale = (mass / taken.sum(1).clamp(min=1)).to(value.dtype)
            sent[name] = (line.values.sign() * taken * scale[:, None]).view_as(value)
            scales.append(scale)
        return sent, torch.stack(scales, 1)
