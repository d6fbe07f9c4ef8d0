"""The server's side of secure sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core.errors import Refused
from fedslice.core.header import Header
from fedslice.core.message import Body, Fields
from fedslice.privacy.encoding import to_elements
from fedslice.privacy.ring import Elements
from fedslice.privacy.secagg import messages
from fedslice.privacy.secagg.messages import KEY, Vector, make_setup
from fedslice.privacy.secagg.plain import Lost, plain_outcome
from fedslice.training import sums
from fedslice.training.sums import Purpose, Step

if TYPE_CHECKING:
    from fedslice.privacy.secagg.server import Server as Machine

Flags = NDArray[np.bool_]


class SecureSum:
    """One secure sum, step by step. Clients that do not answer a step are lost to the steps after it.

    Args:
        purpose: The vectors that are summed.
        t: The round.
        session: 16 bytes that are different for every sum.
        clients: The clients [size]; neighbours are told by their places among these.
        vectors: The vectors.
        scales: What each client is told of scale [size].
        layout: The layout of the round's uploads.
        masked: Whether vectors are masked; if not, the sums are the same, and so is who is lost.
    """

    def __init__(
        self,
        purpose: Purpose,
        t: int,
        session: bytes,
        clients: Tensor,
        vectors: Mapping[str, Vector],
        scales: Tensor,
        layout: int,
        masked: bool,
    ) -> None:
        self.purpose, self.step = purpose, Step.KEYS
        self.clients = clients
        self.setup = make_setup(t, session, len(clients), vectors)
        self._scales, self._layout = scales, layout
        self._place = {client: at for at, client in enumerate(clients.tolist())}
        self._live = [np.ones(self.setup.size, np.bool_)]  # who had answered all steps before each step
        self._arrived = np.zeros(self.setup.size, np.bool_)
        self._totals = {name: vector.ring.zeros(vector.length) for name, vector in vectors.items()}
        self._machine: Machine | None = None
        self._answers: Any = None  # of the machine, at the end of the last step
        if masked:
            from fedslice.privacy.secagg.server import Server as Machine  # needs an extra

            self._machine = Machine(self.setup)

    @property
    def layout(self) -> int:
        """The layout of the messages of this step."""
        return sums.place(self.purpose, self.step)

    @property
    def live(self) -> Tensor:
        """The clients that have answered all steps before this one."""
        return self.clients[torch.from_numpy(self._live[-1])]

    @property
    def survivors(self) -> Tensor:
        """The clients whose vectors are in the sum, once vectors are closed."""
        return self.clients[torch.from_numpy(self._live[3])]

    def open(self, clients: Tensor) -> tuple[Fields, Body]:
        """Return the message by which the step is opened for some clients."""
        setup, places = self.setup, [self._place[client] for client in clients.tolist()]
        degree, roster = setup.graph.degree, self._near(places, 1)
        fields = sums.down(self.step, setup.size, degree, roster)
        if self.step is Step.KEYS:
            session = torch.tensor(list(setup.session)).expand(len(places), -1)
            cohort = torch.tensor([[setup.size, place, self._layout] for place in places])
            return fields, {"sum/session": session, "sum/cohort": cohort, "sum/scale": self._scales[places][:, None]}
        if self.step is Step.REVEAL:
            return fields, {"sum/survivors": torch.from_numpy(self._live[3]).expand(len(places), -1)}
        flags = roster if self.step is Step.SHARES else self._near(places, 2)
        name, width, told = "sum/roster", 2 * KEY, "sum/present"
        if self.step is Step.VECTORS:
            name, width, told = "sum/boxes", messages.SEALED, "sum/delivered"
        found = torch.zeros(len(places), degree, width, dtype=torch.int64)
        if self._machine is not None:
            for at, place in enumerate(places):
                answer = self._answers[place]
                rows = answer.sealed if self.step is Step.VECTORS else _keys(answer)
                found[at][flags[at]] = torch.from_numpy(rows.astype(np.int64))
        return fields, {told: flags, name: found}

    def fields(self, client: int) -> Fields:
        """Return the fields of a client's answer to this step."""
        places = [self._place[client]]
        fields = dict(sums.up(self.step, self.setup.graph.degree, self._near(places, 1), self._near(places, 2)))
        if self.step is Step.VECTORS:
            fields |= sums.vector_fields(self.setup.vectors, "what it counts, under masks")
        return fields

    def take(self, head: Header, body: Body, refuse: Callable[[int, str], None]) -> Tensor:
        """Take clients' answers, and return flags of those that are of use [clients]."""
        taken = torch.zeros(len(head.clients), dtype=torch.bool)
        for at, client in enumerate(head.clients.tolist()):
            if head.declined is not None and bool(head.declined[at]):
                continue
            try:
                self._take(self._place[client], at, body)
            except Refused as refused:
                refuse(client, str(refused))
                continue
            taken[at] = True
        return taken

    def _take(self, place: int, at: int, body: Body) -> None:
        machine, step, context = self._machine, self.step, self.setup.context
        vectors = {
            name: to_elements(body[name][at], vector.ring)
            for name, vector in (self.setup.vectors.items() if step is Step.VECTORS else ())
        }
        if machine is None:
            for name, own in vectors.items():
                self._totals[name] += own
        elif step is Step.VECTORS:
            rings = {name: vector.ring for name, vector in self.setup.vectors.items()}
            machine.take_masked(messages.Masked(context, place, vectors, rings))
        else:
            said = {name: body[name][at].numpy() for name in self.fields(int(self.clients[place]))}
            if step is Step.KEYS:
                keys = said["sum/keys"].astype(np.uint8).tobytes()
                machine.take_keys(messages.Keys(context, place, keys[:KEY], keys[KEY:]))
            elif step is Step.SHARES:
                roster = self._near([place], 1)[0].numpy()
                machine.take_shares(
                    messages.Shares(
                        context,
                        place,
                        said["sum/sealed"][roster].astype(np.uint8),
                        said["sum/digests"][:, np.concatenate([[True], roster])].astype(np.uint8),
                        said["sum/seed"].astype(np.uint8).tobytes(),
                    )
                )
            else:
                near = np.concatenate([[True], self._near([place], 2)[0].numpy()])
                given = said["sum/given"].astype(np.bool_)
                shares = said["sum/shares"][given & near].astype(np.uint32)
                machine.take_revealed(messages.Revealed(context, place, given[near], shares))
        self._arrived[place] = True

    def close(self) -> None:
        """End the step, and begin the next.

        Raises:
            Aborted: If too few clients are left.
        """
        if self._machine is not None:
            close = (self._machine.close_keys, self._machine.close_shares, self._machine.close_masked)
            self._answers = self._machine.finish() if self.step is Step.REVEAL else close[self.step]()
            live = self._machine.live.copy()
        else:
            live = self._plainly()
        self._live.append(live)
        self._arrived = np.zeros_like(self._arrived)
        if self.step is not Step.REVEAL:
            self.step = Step(self.step + 1)

    def _plainly(self) -> Flags:
        """Return who goes on, where nothing is masked."""
        waves = [*self._live, self._live[-1] & self._arrived]
        gone = [frozenset(np.flatnonzero(before & ~after).tolist()) for before, after in pairwise(waves)]
        gone += [frozenset()] * (4 - len(gone))
        out = plain_outcome(self.setup, Lost(keys=gone[0], shares=gone[1], masked=gone[2], reveal=gone[3]))
        if self.step in (Step.KEYS, Step.SHARES):
            live: Flags = out.down[("keys", "shares")[self.step]] > 0
        else:
            found = out.survivors if self.step is Step.VECTORS else out.revealers
            live = np.isin(np.arange(self.setup.size), found)
        return live

    def sums(self) -> dict[str, Elements]:
        """Return the sums of the survivors' vectors, once the last step is closed."""
        if self._machine is not None:
            answers: dict[str, Elements] = self._answers
            return answers
        return {name: vector.ring.reduce(self._totals[name]) for name, vector in self.setup.vectors.items()}

    def _near(self, places: list[int], wave: int) -> Tensor:
        """Flags of the neighbours of some clients that have answered the first ``wave`` steps [clients, degree]."""
        around = np.array([self.setup.graph.neighbours(place) for place in places])
        if wave >= len(self._live):
            return torch.zeros(around.shape, dtype=torch.bool)
        return torch.from_numpy(self._live[wave][around])


def _keys(roster: messages.Roster) -> NDArray[np.uint8]:
    rows = [own + channel for own, channel in zip(roster.mask_keys, roster.channel_keys, strict=True)]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), 2 * KEY)
