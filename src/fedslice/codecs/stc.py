"""Sparse ternary compression, up and down.

Robust and Communication-Efficient Federated Learning from Non-IID Data
    Felix Sattler, Simon Wiedemann, Klaus-Robert Müller, Wojciech Samek. IEEE TNNLS 2019. STC of FLSS's table 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedslice.codecs.base import scales, signed
from fedslice.codecs.catchup import CatchUp, Steps, travelling
from fedslice.codecs.feedback import Feedback
from fedslice.codecs.log import Coded, StepForm
from fedslice.codecs.sparse import Share, strongest_of
from fedslice.core.capabilities import Rule
from fedslice.core.encodings import Bits, Places
from fedslice.core.entries import OnSlice, as_tensor, on_slice
from fedslice.core.errors import Refused
from fedslice.core.message import Body, Field, Fields
from fedslice.core.part import Round, ServerRun
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.update import RowDelta, Step

_TERNARY = 1  # the layout of a step


class Residual(Steps):
    """The residual of the server's compression, and its past steps."""

    saved = (*Steps.saved, "residual")

    def __init__(self, run: ServerRun, form: StepForm, limit: int):
        super().__init__(run, form, limit)
        self.residual: dict[str, Tensor] = {}


class STC(CatchUp, Feedback):
    """Send the k = ⌈share·n⌉ strongest entries of each parameter, as the mean μ of their magnitudes and their signs.

    The server compresses its step in the same way, with a residual of its own, and clients are sent the steps that they
    have missed. FLSS's paper counts D/32 words for a message; at a share of 1/32 the wire takes 0.235 bits per value.

    Args:
        share: Share of each parameter's entries that go up and come down.
    """

    label = "stc"

    share: Share = 1 / 32
    error_feedback: bool = True

    def rules(self) -> Iterable[Rule]:
        """The step that comes down is the compressed one, so nothing may change it afterwards."""
        yield from super().rules()
        for place in ("combine", "server"):
            yield Rule(
                place,
                "plain",
                True,
                "codec=stc sends the server's step down in three values per parameter, but combine={combine} with "
                "server={server} changes it afterwards; use combine=mean with server=sgd, or codec=topk.",
            )

    def server_state(self, run: ServerRun) -> Residual:
        """Nothing is left out yet."""
        return Residual(run, self.form(run.spec), run.spec.model_bytes)

    def form(self, spec: Spec) -> StepForm:
        """Steps look like uploads of the whole model."""

        def shared(layout: int) -> Fields:
            if layout != _TERNARY:
                raise Refused(f"has a step of the unknown layout {layout}")
            return self.fields(spec, _whole(spec), 0)

        return StepForm(shared)

    def apply(self, memory: Any, down: Slice, values: Values, step: Coded) -> None:
        """Add ±μ at its places."""
        spec = memory.run.spec
        whole = _whole(spec)
        found = down.pick(self.restore(spec, whole, step.body), whole)
        for name, value in values.items():
            value.add_(found[name])

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:  # noqa: ARG002
        """A magnitude per parameter, the places of all parameters in one line, and a sign for each: is it positive?"""
        return {
            "scale": scales(spec, part),
            "places": Field(Places(self.share), on=part, about="where the strongest entries are"),
            "sign": Field(Bits(), on=part, where=lambda body: body["places"], about="their signs"),
        }

    def compress(self, spec: Spec, part: Slice, values: Values) -> Body:
        """±μ on the strongest entries of each parameter."""
        taken = strongest_of(part, values, self.share)
        found = [torch.zeros(part.clients, 0, dtype=spec.dtype)]
        for name, value in values.items():
            mass = (value.abs() * taken[name]).flatten(1).sum(1, dtype=torch.float64)
            number = taken[name].flatten(1).sum(1).clamp(min=1)
            found.append((mass / number).to(spec.dtype)[:, None].cpu())
        signs = {name: value > 0 for name, value in values.items()}
        return {"scale": torch.cat(found, 1), "places": OnSlice(part, taken), "sign": OnSlice(part, signs)}

    def restore(self, spec: Spec, part: Slice, body: Body) -> Values:  # noqa: ARG002
        """Signs times magnitude at their places."""
        found, taken = as_tensor(body["scale"]).unbind(1), on_slice(body["places"]).values
        out: Values = {}
        for (name, sign), scale in zip(on_slice(body["sign"]).values.items(), found, strict=True):
            value = signed(sign, scale.to(sign.device)).to(spec.dtypes[name])
            out[name] = value.masked_fill(~taken[name].bool(), 0)
        return out

    def words(self, spec: Spec, part: Slice, sizes: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """A bit per value, as FLSS's paper counts."""
        return part.numbers().double() / 32

    def expand(self, state: Residual, t: int, mean: Step) -> Step:  # noqa: ARG002
        """Compress the mean and what the server left out so far; what is left out now is kept."""
        spec = state.run.spec
        whole: Values = {}
        for name, delta in mean.items():
            total = state.residual.get(name, delta.values.new_zeros(spec.shapes[name])).clone()
            delta.add_to(total)
            whole[name] = total[None]
        part = Slice.whole(1, spec.shapes, whole)
        body = self.compress(spec, part, whole)
        out: Step = {}
        for name, sent in self.restore(spec, part, body).items():
            state.residual[name] = (whole[name] - sent)[0]
            out[name] = RowDelta(None, sent[0])
        state.coded = body
        return out

    def append(self, state: Residual, end: Round) -> None:
        """The step as it was compressed, of all parameters, times the server's rate."""
        spec, body = state.run.spec, state.coded
        assert body is not None
        part = _whole(spec)
        scale = torch.zeros(1, len(part.axes), dtype=spec.dtype)
        places: Values = {}
        signs: Values = {}
        for number, name in enumerate(part.axes):
            absent = torch.zeros(1, *spec.shapes[name], dtype=torch.bool)
            places[name] = on_slice(body["places"]).values.get(name, absent)
            signs[name] = on_slice(body["sign"]).values.get(name, absent)
            if name in end.change:
                scale[0, number] = end.change[name].values.abs().max()
        coded = {"scale": scale, "places": OnSlice(part, places), "sign": OnSlice(part, signs)}
        state.log.add(end.number, _TERNARY, coded)


def _whole(spec: Spec) -> Slice:
    """All that travels, of one client."""
    return Slice.whole(1, spec.shapes, travelling(spec))
