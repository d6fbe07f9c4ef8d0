"""The stages of secure sums, as the server goes through them."""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedslice.core.errors import Refused
from fedslice.core.header import Kind
from fedslice.core.message import Message, unpack
from fedslice.privacy.ring import Elements
from fedslice.privacy.secagg.messages import Aborted
from fedslice.select.base import Cohort
from fedslice.training import schema, sums
from fedslice.training.events import Refusal
from fedslice.training.rounds import SEALED_EXCHANGE, SUM, Stage
from fedslice.training.sum_server import SecureSum
from fedslice.training.sums import LEAST, Purpose

if TYPE_CHECKING:
    from fedslice.core.header import Opened
    from fedslice.training.server import Server

NOBODY = -1  # the sender of what is nobody's fault

Stages = Generator[tuple[Stage, Cohort]]


class Sums:
    """The secure sums of a server, one at a time.

    Args:
        server: The server.
        masked: Whether vectors are masked; if not, the sums are the same.
    """

    def __init__(self, server: Server, masked: bool) -> None:
        self._server, self._masked = server, masked
        self._open: SecureSum | None = None

    def open(self, cohort: Cohort) -> Message:
        """Return the messages that open a step of the sum at hand for some clients."""
        server, own = self._server, self._now
        head = server.head(Kind.SUM, cohort.clients, cohort.draws, own.layout)
        message = Message(head, *own.open(cohort.clients))
        server.awaited.ask(head.clients, head.draws)
        server.events.summed(message)
        return message

    def take(self, answer: Message) -> None:
        """Take clients' answers to a step."""
        server, head = self._server, answer.head
        self._now.take(head, answer.body, lambda client, why: server.events.refused(Refusal(server.round, client, why)))
        server.awaited.arrived(head.clients, head.draws)
        server.events.summed(answer)

    def read(self, opened: Opened) -> Message:
        """Read a client's answer to a step."""
        if self._open is None or opened.head.layout != self._open.layout:
            raise Refused("belongs to a step of a secure sum that is not open")
        client = int(opened.head.clients[0])
        if not bool((self._open.live == client).any()):
            raise Refused("is from a client that takes no part in the secure sum")
        return unpack(opened, {}, lambda _: self._now.fields(client))

    def tallies(self) -> Stages:
        """Yield the stages by which the server learns the sum of what newcomers count, if some part asks for it."""
        server, spec = self._server, self._server.spec
        for name, part in spec.recipe.parts().items():
            lengths = part.tallies(spec)
            if not lengths:
                continue
            state = server.states[name]
            clients = part.uncounted(state)
            if len(clients) < LEAST:
                return
            most = part.tally_bound(state, clients)
            scales = torch.full((len(clients),), float(most), dtype=torch.float64)
            vectors = sums.tally_vectors(lengths, most)
            self._open = SecureSum(
                Purpose.TALLIES, server.round, self._session(Purpose.TALLIES, clients), clients, vectors, scales, 0,
                self._masked,
            )  # fmt: skip
            found = yield from self._played((SUM, SUM, SUM, SUM))
            if found is not None:
                part.learn_sums(state, *found)
            return

    def updates(self, cohort: Cohort) -> Stages:
        """Yield the stages of a round whose uploads are summed, and open the sum."""
        server, spec, t = self._server, self._server.spec, self._server.round
        clients = cohort.clients
        if len(clients) < LEAST:
            why = f"secure aggregation of round {t} has {len(clients)} clients, {LEAST} are needed"
            server.events.refused(Refusal(t, NOBODY, why))
            return
        codec, state = spec.recipe.codec, server.states["codec"]
        codec.gathered(state, len(clients))
        layout = codec.layout(state, t)
        weights = spec.recipe.combine.weigh(server.states["combine"], clients)
        most = max(float(weights.max()), 1e-300)
        vectors = sums.update_vectors(spec, len(clients), layout)
        self._open = SecureSum(
            Purpose.UPDATES, t, self._session(Purpose.UPDATES, clients), clients, vectors, weights / most, layout,
            self._masked,
        )  # fmt: skip
        found = yield from self._played((SUM, SUM, SEALED_EXCHANGE, SUM))
        if found is None:
            return
        taken, totals = found
        values = {
            name: codec.quantizer(spec, name, len(clients), layout).value(total) * most
            for name, total in totals.items()
        }
        weight = float(weights[torch.isin(clients, taken)].sum())
        server.opened(taken, weight, sums.opened(schema.plain(spec, schema.whole(spec), layout), values), layout)

    @property
    def sealed(self) -> bool:
        """Whether the uploads of the round at hand are summed under masks."""
        return self._open is not None and self._open.purpose is Purpose.UPDATES

    def receive(self, upload: Message) -> Tensor:
        """Take masked uploads, and return flags of those that are of use [clients]."""
        server = self._server
        return self._now.take(
            upload.head, upload.body, lambda client, why: server.events.refused(Refusal(server.round, client, why))
        )

    def _played(self, stages: tuple[Stage, ...]) -> Generator[
        tuple[Stage, Cohort], None, tuple[Tensor, Mapping[str, Elements]] | None
    ]:  # fmt: skip
        """Go through the steps of the sum at hand, and return whose vectors are in it, and the sums."""
        own = self._now
        try:
            for stage in stages:
                yield stage, Cohort(own.live, torch.zeros_like(own.live))
                own.close()
        except Aborted as aborted:
            self._server.events.refused(Refusal(self._server.round, NOBODY, str(aborted)))
            return None
        finally:
            self._open = None
        return own.survivors, own.sums()

    @property
    def _now(self) -> SecureSum:
        if self._open is None:
            raise RuntimeError("no secure sum is open")
        return self._open

    def _session(self, purpose: Purpose, clients: Tensor) -> bytes:
        """Return 16 bytes that no sum has had before; in a simulation always the same ones for the same sum."""
        if self._masked:
            return secrets.token_bytes(sums.SESSION)
        key = struct.pack("<qqqq", self._server.spec.seed, purpose, self._server.round, int(clients.sum()))
        return hashlib.sha256(key).digest()[: sums.SESSION]
