"""Sparse ternary compression, up and down (Sattler et al. 2019; STC of S4's table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.codecs.base import entries, numbers, signed
from fedslice.codecs.feedback import Feedback
from fedslice.codecs.missed import Missed
from fedslice.codecs.sparse import Share, step_bytes, strongest_of
from fedslice.combine import Combine
from fedslice.core.encodings import Bits, Places
from fedslice.core.message import Body, Field, Fields, OnSlice
from fedslice.errors import UserError
from fedslice.messages import Step
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

    def fields(self, t: int, part: Slice) -> Fields:  # noqa: ARG002
        """A magnitude per parameter, the places of all parameters in one line, and a sign for each: is it positive?"""
        return {
            "scale": self.scales(part),
            "places": Field(Places(self.share), on=part),
            "sign": Field(Bits(), on=part, where=lambda body: body["places"]),
        }

    def compress(self, part: Slice, values: Values) -> Body:
        """±μ on the strongest entries of each parameter."""
        taken = strongest_of(part, values, self.share)
        scales = [values[name].new_zeros(part.clients, 0) for name in list(values)[:1]]
        for name, value in values.items():
            mass = (value.abs() * taken[name]).flatten(1).sum(1, dtype=torch.float64)
            number = taken[name].flatten(1).sum(1).clamp(min=1)
            scales.append((mass / number).to(value.dtype)[:, None])
        signs = {name: value > 0 for name, value in values.items()}
        return {"scale": torch.cat(scales, 1), "places": OnSlice(part, taken), "sign": OnSlice(part, signs)}

    def restore(self, part: Slice, body: Body) -> Values:  # noqa: ARG002
        """Signs times magnitude at their places."""
        scales, taken = numbers(body, "scale").unbind(1), entries(body, "places").values
        out: Values = {}
        for (name, sign), scale in zip(entries(body, "sign").values.items(), scales, strict=True):
            out[name] = signed(sign, scale).masked_fill(~taken[name], 0)
        return out

    def words(self, t: int, part: Slice, sizes: dict[str, Tensor]) -> Tensor:  # noqa: ARG002
        """A bit per value, as FLSS's paper counts."""
        return part.numbers().double() / 32

    def lift(self, t: int, mean: Step) -> Step:  # noqa: ARG002
        """Compress the mean and what the server left out so far; what is left out now is kept."""
        out: Step = {}
        for name, (rows, values) in mean.items():
            whole = self._residual.get(name, values.new_zeros(self._shapes[name]))
            whole = whole + values if rows is None else whole.index_add(0, rows, values)
            part = Slice.whole(1, {name: self._shapes[name]})
            sent = self.restore(part, self.compress(part, {name: whole[None]}))[name][0]
            self._residual[name] = whole - sent
            out[name] = None, sent
        return out

    def observe(self, end: RoundEnd) -> None:
        """Count the message that this round's step is."""
        size = step_bytes(end.change, self._shapes, self.share, None)
        self._missed.add(end, size + len(end.change) * self._dtype.itemsize)

    def down_bytes(self, t: int, down: Slice, itemsize: int, clients: Tensor) -> Tensor:
        """The compressed steps that a client missed."""
        return self._missed.bytes(t, clients, super().down_bytes(t, down, itemsize, clients))

    def state_dict(self) -> Values:
        """The server's residual, and who has seen which steps."""
        return {f"residual.{name}": value for name, value in self._residual.items()} | self._missed.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved residual."""
        own = self._own(state, ("residual", *Missed.kinds))
        self._residual = {k.removeprefix("residual."): v for k, v in own.items() if k.startswith("residual.")}
        self._missed.load_state_dict(own)
