"""Gradients projected to the streaming subspace (FLSS, table 5): every step stays inside of it, not only the update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from fedslice.core.capabilities import Rule
from fedslice.core.slice import Slice, Values
from fedslice.local.term import Term, needs_summed_gradients

if TYPE_CHECKING:
    from fedslice.training.work import Work


class Projected(Term):
    """x ← x − γ·P·Pᵀg, with the basis of ``codec=subspace``, in every round whose updates travel as coefficients.

    On full rounds, and before there is a basis, steps are plain ones: were they projected too, no update would ever
    leave span(P), and the basis could not follow the trajectory.

    Table 5 projects the update, the gradient, or both, and does not say what travels. A sum of projected gradients
    lies in span(P), so that its coefficients Pᵀ(x − X) lose nothing: with projected gradients it makes no difference
    whether the update is projected as well. Both are this method; the update alone is ``local=plain``.
    """

    label = "projected"
    follows_gradient = False  # a coordinate without a gradient moves with the directions that it belongs to

    def rules(self) -> Iterable[Rule]:
        """There must be a basis, and a client must hold all that its directions run through."""
        yield needs_summed_gradients(self.label)
        yield Rule(
            "codec",
            "basis",
            True,
            "local=projected takes its steps in the basis of codec=subspace, and codec={label} has none; use "
            "codec=subspace, or local=plain.",
        )
        yield Rule(
            "slices",
            "all",
            True,
            "local=projected moves every parameter along a direction, but slices={label} gives a client only some of "
            "them; use slices=whole.",
        )

    def correct(self, gradient: Values, parameters: Values, work: Work) -> Values:  # noqa: ARG002
        """Return P·Pᵀg, or on a full round g."""
        if "basis" not in work.came:
            return gradient
        basis = work.came["basis"]
        rows = {n: v[0] for n, v in basis.at(_one(basis.part)).items()}
        own = {n: g for n, g in gradient.items() if n in rows}
        code = sum((g.flatten(1).to(rows[n].dtype) @ rows[n].flatten(0, -2) for n, g in own.items()), torch.zeros(()))
        steps = {n: (code @ rows[n].flatten(0, -2).T).view_as(g).to(g.dtype) for n, g in own.items()}
        return gradient | steps


def _one(part: Slice) -> Slice:
    """The slice of one client; all clients have the same where everyone holds the whole model."""
    return Slice.whole(1, part.shapes, part.axes)
