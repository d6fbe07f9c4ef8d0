"""The strongest entries of each parameter, as they are (Stich et al. 2018)."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from fedslice.codecs.base import entries
from fedslice.codecs.feedback import Feedback
from fedslice.codecs.sparse import Share, strongest_of
from fedslice.core.encodings import Floats, Places
from fedslice.core.message import Body, Field, Fields, OnSlice
from fedslice.parts import CHECKED
from fedslice.slice import Slice, Values


@dataclass(config=CHECKED)
class TopK(Feedback):
    """k = ⌈share·n⌉ entries of each parameter at full precision; the others count as zeros that were sent."""

    label = "topk"

    share: Share = 1 / 32
    error_feedback: bool = True

    def fields(self, t: int, part: Slice) -> Fields:  # noqa: ARG002
        """The places of all parameters in one line, and the entries there."""
        return {
            "places": Field(Places(self.share), on=part),
            "entries": Field(Floats(self._dtype), on=part, where=lambda body: body["places"]),
        }

    def compress(self, part: Slice, values: Values) -> Body:
        """The strongest entries and their places."""
        taken = strongest_of(part, values, self.share)
        kept = {name: value.masked_fill(~taken[name], 0) for name, value in values.items()}
        return {"places": OnSlice(part, taken), "entries": OnSlice(part, kept)}

    def restore(self, part: Slice, body: Body) -> Values:  # noqa: ARG002
        """The entries at their places, zero elsewhere."""
        return entries(body, "entries").values
