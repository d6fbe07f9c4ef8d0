"""The interface of ``slices``: what does a client hold, what comes down, what goes up, what is kept?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from fedslice.core.capabilities import Rule, once_a_round
from fedslice.core.message import Body, Fields
from fedslice.core.part import Part
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec


class Slices(Part):
    """The coordinates that a client holds and exchanges. The default: all of them, and it remembers nothing.

    Both sides know every slice of a round, each from what it has: the server from enrolment, request and upload, the
    client from its data and its memory.
    """

    place: ClassVar[str] = "slices"

    def rules(self) -> Iterable[Rule]:
        """Refuse what cannot carry this part's uploads or would write one client's memory twice in a round."""
        if "stale" in self.provides:
            yield Rule(
                "codec",
                "carries-values",
                True,
                f"slices={self.label} uploads values of parts that only the client knows, but codec={{label}} sends "
                "differences to what both sides know; use codec=dense.",
            )
        if "remembers" in self.provides:
            yield once_a_round("slices", self.label)

    # --- the client's side

    def hold(self, memory: Any, t: int, clients: Tensor) -> Slice:  # noqa: ARG002
        """Return what these clients train in round ``t``."""
        return Slice.whole(len(clients), memory.run.spec.shapes)

    def held(self, memory: Any, clients: Tensor) -> Tensor:
        """Return how many values each of these clients holds, whatever the round [clients]."""
        return self.hold(memory, 0, clients).numbers()

    def request(self, memory: Any, t: int, clients: Tensor, hold: Slice) -> Body:  # noqa: ARG002
        """Return the entries of :meth:`request_fields`: what the server needs to know of ``hold``."""
        return {}

    def came(self, memory: Any, t: int, clients: Tensor, hold: Slice) -> Slice:  # noqa: ARG002
        """Return what comes down to these clients, as :meth:`down` has it on the server."""
        return hold

    def up(
        self,
        memory: Any,  # noqa: ARG002
        t: int,  # noqa: ARG002
        clients: Tensor,  # noqa: ARG002
        hold: Slice,
        start: Values,  # noqa: ARG002
        end: Values,  # noqa: ARG002
        came: Body,  # noqa: ARG002
    ) -> tuple[Slice, Body]:
        """Return what goes up, after training, and the entries of :meth:`up_ids`."""
        return hold, {}

    # --- the server's side

    def requested(self, state: Any, t: int, clients: Tensor, request: Body) -> Slice:  # noqa: ARG002
        """Return what these clients hold in round ``t``."""
        return Slice.whole(len(clients), state.run.spec.shapes)

    def down(self, state: Any, t: int, clients: Tensor, hold: Slice) -> Slice:  # noqa: ARG002
        """Return what is sent to these clients."""
        return hold

    def sent(self, state: Any, t: int, clients: Tensor, hold: Slice, upload: Body) -> Slice:  # noqa: ARG002
        """Return what these clients have sent."""
        return hold

    def taken(self, state: Any, clients: Tensor, up: Slice, taken: Tensor) -> None:
        """Note that the uploads of those ``taken`` [clients] are part of the round."""

    # --- what both sides derive

    def request_fields(self, spec: Spec) -> Fields:  # noqa: ARG002
        """Return the fields of the request."""
        return {}

    def up_ids(self, spec: Spec, hold: Slice) -> Fields:  # noqa: ARG002
        """Return the fields, all of them ``Ids``, that name what goes up of what is held."""
        return {}

    def statistics(self, spec: Spec) -> list[str]:
        """Return the running statistics (of batch normalisation) that travel; clients keep the others to themselves."""
        return list(spec.statistics)

    def kept(self, spec: Spec) -> frozenset[str]:  # noqa: ARG002
        """Return the parameters whose values a client remembers between its rounds."""
        return frozenset()
