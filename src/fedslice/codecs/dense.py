"""Values as they are."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedslice.codecs.base import Codec
from fedslice.core.entries import merged
from fedslice.core.fields import value_fields, value_names
from fedslice.core.header import Header
from fedslice.core.message import Body, Fields
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec
from fedslice.core.update import Update


class Dense(Codec):
    """Send every value at its parameter's own precision."""

    label = "dense"

    @property
    def provides(self) -> frozenset[str]:
        """Every value arrives as it was sent."""
        return frozenset({"keeps-zeros", "exact", "carries-values", "linear"})

    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:  # noqa: ARG002
        """The values, of one precision after the other."""
        stale = "stale" in spec.recipe.slices.provides
        about = "values after its training" if stale else "how its training changed each value"
        return value_fields(spec, part, about=about)

    def encode(self, memory: Any, head: Header, update: Update, came: Body) -> Body:  # noqa: ARG002
        """The update itself: its values are laid out on all coordinates only where they are packed."""
        return dict.fromkeys(value_names(memory.run.spec, update.slice), update)

    def decode(self, state: Any, head: Header, part: Slice, body: Body) -> Update:  # noqa: ARG002
        """The values of all fields."""
        found = [body[name] for name in value_names(state.run.spec, part)]
        if isinstance(found[0], Update):
            return found[0]
        values = merged(found).at(part)
        return Update(part, part, {name: values[name] for name in part.axes})

    def words(self, spec: Spec, part: Slice, sizes: dict[str, Tensor]) -> Tensor:  # type: ignore[override] # noqa: ARG002
        """One per value."""
        return part.numbers().double()
