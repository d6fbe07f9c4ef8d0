"""The strongest entries of each parameter, as they are (Stich et al. 2018)."""

from __future__ import annotations

from fedslice.codecs.feedback import Feedback
from fedslice.codecs.sparse import Share, entry_fields, strongest_of
from fedslice.core.entries import OnSlice, on_slice
from fedslice.core.message import Body, Fields
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec


class TopK(Feedback):
    """k = ⌈share·n⌉ entries of each parameter at full precision; the others count as zeros that were sent.

    Args:
        share: Share of each parameter's entries that go up.
    """

    label = "topk"

    share: Share = 1 / 32
    error_feedback: bool = True

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:  # noqa: ARG002
        """The places of all parameters in one line, and the entries there."""
        return entry_fields(spec, part, self.share)

    def compress(self, spec: Spec, part: Slice, values: Values) -> Body:
        """The strongest entries and their places."""
        taken = strongest_of(part, values, self.share)
        kept = {name: value.to(spec.dtype).masked_fill(~taken[name], 0) for name, value in values.items()}
        return {"places": OnSlice(part, taken), "entries": OnSlice(part, kept)}

    def restore(self, spec: Spec, part: Slice, body: Body) -> Values:  # noqa: ARG002
        """The entries at their places, zero elsewhere."""
        return {name: value.to(spec.dtypes[name]) for name, value in on_slice(body["entries"]).values.items()}
