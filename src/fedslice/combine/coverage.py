"""The mean over those who sent a coordinate (S3, equation 4; the submodel averaging that S0 departs from)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from fedslice.combine.base import Combine
from fedslice.errors import UserError
from fedslice.parts import CHECKED

if TYPE_CHECKING:
    from fedslice.recipe import Recipe


@dataclass(config=CHECKED)
class Coverage(Combine):
    """W = Σ w_i·W_i·M_i / Σ w_i·M_i per coordinate; where nobody sent, the old value stays."""

    label = "coverage"
    per_holder = True

    weights: Literal["samples", "uniform"] = "samples"

    def check(self, recipe: Recipe) -> None:
        """A sum of codes no longer says who sent which coordinate."""
        if recipe.codec.sums_codes:
            raise UserError(
                f"combine=coverage divides each coordinate by its senders, which codec={recipe.codec.label} no longer "
                "shows once codes are summed; use combine=mean or codec=dense."
            )
