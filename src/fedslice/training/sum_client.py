"""The clients' side of secure sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedslice.core.errors import Refused, UserError
from fedslice.core.header import Header, Kind, Opened
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Field, Message, unpack
from fedslice.core.part import ClientRun
from fedslice.privacy.draws import Draw, hidden_bits
from fedslice.privacy.encoding import to_entries
from fedslice.privacy.ring import Elements
from fedslice.privacy.secagg import messages
from fedslice.privacy.secagg.messages import KEY, Setup, Vector, make_setup
from fedslice.privacy.secagg.shares import LIMBS
from fedslice.training import sums
from fedslice.training.sums import Purpose, Step

if TYPE_CHECKING:
    from fedslice.privacy.secagg.client import Client

Vectors = Callable[[Purpose, int, int, float], Mapping[str, Vector]]  # of a purpose, a size, a layout, a scale
Tally = Callable[[int], Mapping[str, NDArray[np.int64]]]  # of a client
_REVEALED = "revealed"


@dataclass
class Member:
    """A client in one sum.

    Args:
        setup: The facts that both sides know.
        scale: Its weight as a share of the largest one, or the bound of the sum.
        layout: The layout of the round's uploads.
        roster: Flags of the neighbours that advertised keys [degree].
        delivered: Flags of those that shared their secrets [degree].
        machine: Its keys and masks, unless cryptography is left out.
        delivery: The shares that neighbours sealed for it, once they have come.
        reply: The answer of the machine to the step at hand.
        vectors: Its tallies under masks.
    """

    setup: Setup
    scale: float
    layout: int
    roster: NDArray[np.bool_]
    delivered: NDArray[np.bool_]
    machine: Client | None = None
    delivery: messages.Delivery | None = None
    reply: messages.Shares | messages.Revealed | None = None
    vectors: Mapping[str, Elements] = field(default_factory=dict)  # under masks


class SumClients:
    """All that clients know of the sums in which they take part. It lives as long as their process, and no longer.

    Secrets of a sum are never written to a disk, so a client that is started again takes no further part in it. It
    remembers of which round it has revealed shares last, and reveals none of that round again: the difference of two
    sums over almost the same clients would be somebody's vector.

    Args:
        run: The clients' side of the run.
        vectors: Return the vectors of a sum.
        masked: Whether vectors are masked; a simulation may leave cryptography out, and gets the same sums.
    """

    def __init__(self, run: ClientRun, vectors: Vectors, masked: bool) -> None:
        self.masked = masked
        self._vectors = vectors
        self._run = run
        self._seed = int(hidden_bits(run.secret, Draw.ROUNDING, 2).view(np.uint64)[0] >> np.uint64(1))
        self._memory = Memory(run, "sum")
        self._members: dict[tuple[Purpose, int], Member] = {}
        self._setup: Setup | None = None  # the last one, which many clients have in common

    def read(self, opened: Opened) -> Message:
        """Read the message that opens a step."""
        purpose, step = sums.placed(opened.head.layout)
        if step is Step.KEYS:
            return unpack(opened, {}, lambda _: sums.down(step, 0, 0, None))
        member = self._members.get((purpose, int(opened.head.clients[0])))
        if member is None:
            return Message(opened.head)  # of a sum that this process knows nothing of
        fields = sums.down(step, member.setup.size, member.setup.graph.degree, torch.from_numpy(member.roster)[None])
        return unpack(opened, {}, lambda _: fields)

    def answer(self, asked: Message, head: Header, tally: Tally) -> Message:
        """Return the clients' part of a step.

        Args:
            asked: The message that opens it.
            head: The header of the answer.
            tally: Return what a client counts, where that is what is summed.
        """
        purpose, step = sums.placed(asked.head.layout)
        clients = asked.head.clients.tolist()
        if step is Step.KEYS:
            there = self._begin(asked, purpose)
        else:
            there = [(purpose, client) in self._members and bool(asked.body) for client in clients]
            there = [known and self._hear(asked, purpose, at, tally) for at, known in enumerate(there)]
        declined = torch.tensor([not one for one in there])
        head = replace(head, kind=Kind.PART, layout=asked.head.layout, declined=declined)
        members = [self._members[purpose, client] if there[at] else None for at, client in enumerate(clients)]
        example = next((member for member in members if member is not None), None)
        if example is None:
            return Message(head)
        degree = example.setup.graph.degree
        empty = np.zeros(degree, np.bool_)
        roster = torch.from_numpy(np.stack([empty if one is None else one.roster for one in members]))
        delivered = torch.from_numpy(np.stack([empty if one is None else one.delivered for one in members]))
        fields = dict(sums.up(step, degree, roster, delivered))
        shapes = {name: each.shape for name, each in fields.items() if isinstance(each, Field)}
        made = [{} if one is None else _made(step, one) for one in members]
        body: Body = {
            name: torch.from_numpy(np.stack([own.get(name, np.zeros(shape, np.int64)) for own in made]))
            for name, shape in shapes.items()
        }
        if step is Step.VECTORS:
            vectors = example.setup.vectors
            fields |= sums.vector_fields(vectors, "what it counts, under masks")
            body |= stacked(vectors, [{} if one is None else one.vectors for one in members])
        if step is Step.REVEAL and purpose is Purpose.UPDATES:
            who = asked.head.clients[~declined]
            self._memory.keep(_REVEALED, who, torch.full((len(who), 1), asked.head.round))
        if step is Step.REVEAL:  # the sum is over for them
            for client in clients:
                self._members.pop((purpose, client), None)
        return Message(head, fields, body)

    def hear_delivery(self, asked: Message) -> None:
        """Keep the shares that come down before a round's upload."""
        purpose, _ = sums.placed(asked.head.layout)
        for at, client in enumerate(asked.head.clients.tolist()):
            if asked.body and (purpose, client) in self._members and not self._hear(asked, purpose, at, lambda _: {}):
                del self._members[purpose, client]

    def member(self, client: int) -> Member | None:
        """Return a client in the round's sum, if it can send a vector."""
        found = self._members.get((Purpose.UPDATES, client))
        return found if found is not None and found.delivery is not None else None

    def mask(self, purpose: Purpose, client: int, vectors: Mapping[str, Elements]) -> Mapping[str, Elements]:
        """Return a client's vectors under masks, or as they are if cryptography is left out."""
        member = self._members[purpose, client]
        if member.machine is None:
            return vectors
        assert member.delivery is not None
        return member.machine.mask(member.delivery, vectors).vectors

    def seal(self, member: Member, client: int, t: int, lines: Mapping[str, Tensor]) -> Mapping[str, Elements]:
        """Return a client's upload as ring elements under masks.

        Args:
            member: The client in the round's sum.
            client: Its number.
            t: The round.
            lines: The values of each field, in one line.

        Raises:
            Refused: If what the server has said before was no sum that the client could take part in.
        """
        spec, codec = self._run.spec, self._run.spec.recipe.codec
        made = {}
        for number, (name, own) in enumerate(lines.items()):
            quantizer = codec.quantizer(spec, name, member.setup.size, member.layout)
            key = (self._seed, t, client, number)
            made[name], _ = quantizer.quantize(own.cpu().numpy(), member.scale, key)
        return self.mask(Purpose.UPDATES, client, made)

    def _begin(self, asked: Message, purpose: Purpose) -> list[bool]:
        """Make the clients members of a sum, and return which of them take part."""
        head = asked.head
        last = self._memory.get(_REVEALED, head.clients)
        again = torch.zeros(len(head.clients), dtype=torch.bool)
        if last is not None and purpose is Purpose.UPDATES:
            again = last[1].cpu() & (last[0][:, 0].cpu() >= head.round)
        out = []
        for at, client in enumerate(head.clients.tolist()):
            size, own, layout = asked.body["sum/cohort"][at].tolist()
            session = bytes(asked.body["sum/session"][at].tolist())
            scale = float(asked.body["sum/scale"][at, 0])
            out.append(
                not bool(again[at]) and self._joins(purpose, head.round, client, session, size, own, layout, scale)
            )
        return out

    def _joins(
        self, purpose: Purpose, t: int, client: int, session: bytes, size: int, own: int, layout: int, scale: float
    ) -> bool:
        self._members.pop((purpose, client), None)
        if own >= size or not sums.LEAST <= size <= sums.MOST:
            return False
        setup = self._setup
        if setup is None or (setup.session, setup.round, setup.size) != (session, t, size):
            try:
                setup = make_setup(t, session, size, self._vectors(purpose, size, layout, scale))
            except UserError:  # a sum in which the client would not be safe
                return False
            self._setup = setup
        nobody = np.zeros(setup.graph.degree, np.bool_)
        member = Member(setup, scale, layout, nobody, nobody)
        if self.masked:
            from fedslice.privacy.secagg.client import Client  # needs an extra

            member.machine = Client(setup, own)
        self._members[purpose, client] = member
        return True

    def _hear(self, asked: Message, purpose: Purpose, at: int, tally: Tally) -> bool:
        """Take in what the server says to one client, and return whether the client goes on."""
        _, step = sums.placed(asked.head.layout)
        client = int(asked.head.clients[at])
        member = self._members[purpose, client]
        said = {name: value[at].numpy() for name, value in asked.body.items()}
        if step is Step.SHARES:
            member.roster = said["sum/present"].astype(np.bool_)
        elif step is Step.VECTORS:
            member.delivered = said["sum/delivered"].astype(np.bool_) & member.roster
        context, machine = member.setup.context, member.machine
        try:
            if step is Step.VECTORS:
                sealed = said["sum/boxes"][member.delivered].astype(np.uint8)
                member.delivery = messages.Delivery(context, member.delivered[member.roster], sealed)
                if purpose is Purpose.TALLIES:
                    rings = {name: vector.ring for name, vector in member.setup.vectors.items()}
                    counts = {name: own.astype(rings[name].dtype) for name, own in tally(client).items()}
                    member.vectors = self.mask(purpose, client, counts)
            elif machine is not None and step is Step.SHARES:
                rows = [row.tobytes() for row in said["sum/roster"][member.roster].astype(np.uint8)]
                own, channel = (tuple(row[first : first + KEY] for row in rows) for first in (0, KEY))
                member.reply = machine.share(messages.Roster(context, member.roster, own, channel))
            elif machine is not None:
                survivors = messages.Survivors(context, said["sum/survivors"].astype(np.bool_))
                member.reply = machine.reveal(survivors)
        except Refused:
            return False
        return True


def stacked(vectors: Mapping[str, Vector], found: Sequence[Mapping[str, Elements]]) -> Body:
    """Return clients' vectors as entries; zeros for those who have none."""
    return {
        name: to_entries(np.stack([own.get(name, vector.ring.zeros(vector.length)) for own in found]))
        for name, vector in vectors.items()
    }


def _made(step: Step, member: Member) -> dict[str, NDArray[np.int64]]:
    """A client's entries of a step: none where they would be made by the cryptography that is left out."""
    reply, machine, degree = member.reply, member.machine, member.setup.graph.degree
    if step is Step.KEYS and machine is not None:
        keys = machine.advertise()
        return {"sum/keys": np.frombuffer(keys.mask_key + keys.channel_key, np.uint8).astype(np.int64)}
    if step is Step.SHARES and isinstance(reply, messages.Shares):
        sealed = np.zeros((degree, reply.sealed.shape[1]), np.int64)
        sealed[member.roster] = reply.sealed
        kinds, _, width = reply.commitments.shape
        digests = np.zeros((kinds, 1 + degree, width), np.int64)
        digests[:, np.concatenate([[True], member.roster])] = reply.commitments
        seed = np.frombuffer(reply.seed_commitment, np.uint8).astype(np.int64)
        return {"sum/sealed": sealed, "sum/digests": digests, "sum/seed": seed}
    if step is Step.REVEAL:
        near = np.concatenate([[True], member.delivered])
        given, shares = near.copy(), np.zeros((1 + degree, LIMBS), np.int64)
        if isinstance(reply, messages.Revealed):
            given[near] = reply.present
            shares[given] = reply.shares
        return {"sum/given": given.astype(np.int64), "sum/shares": shares}
    return {}
