"""Named capabilities of parts, and the only place where they are compared.

======== ======================= ======================================================================================
place    capability              meaning
======== ======================= ======================================================================================
select   repeats                 a client may be drawn twice in one round
select   pools                   all data lie in one place; nothing travels
select   squares                 clients report the mean squared loss of the samples that they train on
slices   all                     clients hold and exchange the whole model
slices   sends-all               all that a client holds goes up
slices   remembers               clients keep values of the model between their rounds
slices   stale                   clients start from values on what they upload that the server does not know
slices   narrows                 layers have fewer outputs and inputs with one client than with another
slices   redraws                 a client holds other coordinates in every round
slices   nothing                 nothing is exchanged
local    follows-gradient        the end of a coordinate whose gradient is zero is known without training
local    uniform-drift           that end is the start less an amount per client times a direction that the server knows
local    sums-gradients          an update is a sum of gradients times factors that are the same for all coordinates
local    plain-steps             a step is its gradient times the learning rate
local    accumulates             clients add up their updates and count on a server that does
codec    keeps-zeros             a zero arrives as zero
codec    exact                   every value arrives as it was
codec    carries-values          it can send values as well as differences
codec    sums-codes              codes are summed, and only the sum is decoded
codec    linear                  the codes of a sum are the sum of the codes
codec    sealed                  codes are masked before they go up, and only their sum is opened
codec    unmasked                a simulation leaves these masks out
codec    sends-steps             the server's steps come down in place of its model
codec    basis                   clients know an orthonormal basis of the updates
codec    remembers               a memory per client, written once a round
combine  per-sender              each coordinate is divided by the weight of those who sent it
combine  needs-updates           it looks at every client's update, and not at their sum
combine  plain                   the step is the mean of the updates, unchanged
server   plain                   the model moves by the step times a constant
server   adds-drift              the clients' mean drift is added to the model
======== ======================= ======================================================================================

A capability that a part does not declare, it does not have: every optimisation is off for such a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedslice.core.errors import UserError

if TYPE_CHECKING:
    from fedslice.core.part import Part


@dataclass(frozen=True)
class Rule:
    """A capability that the part in some place must have, or must not.

    Args:
        place: The place in the recipe.
        capability: Its name.
        wanted: Whether the part must have it.
        sentence: Why, and what to do. ``{label}`` stands for the name of the part that breaks the rule, and a place in
            braces, as ``{server}``, for that of the part in it.
    """

    place: str
    capability: str
    wanted: bool
    sentence: str

    def told(self, labels: Mapping[str, str]) -> str:
        """Return the sentence with names of parts by place; where there is none, it says "…"."""
        known = {"label": labels[self.place]} if self.place in labels else {}
        return self.sentence.format_map(_Labels({**labels, **known}))


def check(parts: Mapping[str, Part]) -> None:
    """Refuse parts that cannot go together, by name.

    Raises:
        UserError: With the sentence of the first rule that is broken.
    """
    for _, rule in broken(parts):
        raise UserError(rule.told({place: part.label for place, part in parts.items()}))


def broken(parts: Mapping[str, Part]) -> Iterator[tuple[str, Rule]]:
    """Yield each rule that is broken, with the place of the part that sets it; ``parts`` may leave out places."""
    for place, part in parts.items():
        for rule in part.rules():
            if rule.place in parts and (rule.capability in parts[rule.place].provides) != rule.wanted:
                yield place, rule


def once_a_round(place: str, label: str) -> Rule:
    """Return the rule of a part that writes a client's memory once a round."""
    return Rule(
        "select",
        "repeats",
        False,
        f"{place}={label} keeps a memory per client, and select={{label}} with replacement may draw a client twice in "
        "one round; draw without replacement.",
    )


class _Labels(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "…"
