"""Two models in one round: the one that travels, and a client's own beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedslice.core.capabilities import Rule, once_a_round
from fedslice.core.entries import per_client
from fedslice.core.memory import Memory
from fedslice.core.message import Body
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.local.term import Step, Term

if TYPE_CHECKING:
    from fedslice.training.work import Work

OWN = "own"  # the memory of a client's own model


class OwnModel(Term):
    """A client trains v beside w, in the same steps and on the same batches; v is remembered and never sent.

    At first v is the initial model. Gradients are clipped for each model alone, so that w goes its way as if v were
    not there.
    """

    follows_gradient = False  # a row of v that no batch names may follow w, and w is not what it was a round ago

    def rules(self) -> Iterable[Rule]:
        """Refuse slices with which there is no one model for both, and cohorts that would write one memory twice."""
        yield from super().rules()
        for capability in ("remembers", "narrows"):
            yield Rule(
                "slices",
                capability,
                False,
                f"local={self.label} gives every client a whole model of its own beside the one that travels, but with "
                "slices={label} clients have layers of their own already; use slices=whole or slices=feature-rows.",
            )
        yield once_a_round("local", self.label)

    def initial(self, spec: Spec) -> frozenset[str]:
        """All parameters: where v begins."""
        return frozenset(spec.shapes)

    def constants(self, memory: Memory, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:  # noqa: ARG002
        """Return v as it is before the steps."""
        own: Values = came["first"].at(layout)
        for name, first in own.items():
            if (found := _remembered(memory, name, clients, layout)) is not None:
                own[name] = torch.where(found[1], found[0], first)
        return own

    def extra_parameters(self, work: Work) -> Values:
        """Return v, to be trained."""
        return self.labelled(work.constants)

    def labelled(self, values: Values) -> Values:
        """Return values by parameter under the names that v's have in training."""
        return {f"{self.label}/{name}": value for name, value in values.items()}

    def own(self, values: Values) -> Values:
        """Return v under the names that parameters have in the network."""
        prefix = f"{self.label}/"
        return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}

    def loss(self, step: Step, work: Work) -> Tensor:  # noqa: ARG002
        """Return the loss of v on the same batch."""
        return step.mean_loss(self.own(step.extra))

    def update_memory(self, work: Work, end: Values) -> None:
        """Remember v; of a table the client's own rows, where it does not hold them all."""
        for name, value in self.own(end).items():
            key, axis = f"{OWN}/{name}", work.layout.axes[name][0]
            if axis is None:
                work.memory.put(key, work.clients, value)
            else:
                work.memory.put_rows(key, work.clients, axis.ids, axis.mask, value)

    def personal(self, memory: Memory, clients: Tensor, layout: Slice, start: Values, came: Body) -> Values:
        """Return v, where the client holds it."""
        hold = memory.run.spec.recipe.slices.hold(memory.run.parts["slices"], 0, clients)
        own = self.constants(memory, clients, layout, layout, came)
        return {n: torch.where(hold.inside(layout, n).to(w.device), own[n], w) for n, w in start.items()}

    def tuning(self) -> tuple[Term, ...]:
        """Return nothing: by plain steps the client's own model alone is fitted."""
        return ()


def _remembered(memory: Memory, name: str, clients: Tensor, layout: Slice) -> tuple[Tensor, Tensor] | None:
    """Return a parameter of v on the layout, and where v is known (broadcasts); ``None`` if nobody's is."""
    found, part = memory.get(f"{OWN}/{name}", clients), layout.only([name])
    if found is not None:
        whole = Slice.whole(len(clients), layout.shapes, [name])
        last = part.pick({name: found[0]}, whole)[name]
        return last, per_client(found[1], last)
    rows = memory.get_rows(f"{OWN}/{name}", clients)
    if rows is None or not rows[1].shape[1]:
        return None
    own = part.replace({name: rows[0]})
    all_rows = layout.axes[name][0] is None
    last = own.spread(name, rows[1]) if all_rows else part.pick({name: rows[1]}, own)[name]
    return last, own.inside(part, name).to(last.device)
