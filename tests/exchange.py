"""Uploads as tests look at them: encoded on a codec's client half, decoded on its server half, whole or in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedslice.codecs import Codec
from fedslice.codecs.basis import with_directions
from fedslice.codecs.catchup import COPY, STEPS, recalled
from fedslice.codecs.subspace import BASIS
from fedslice.core.header import Header, Kind, open_message
from fedslice.core.memory import ClientMemories
from fedslice.core.message import Body, Message, unpack
from fedslice.core.part import ClientRun, ServerRun
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.store import Store
from fedslice.core.update import Update
from fedslice.recipe import Recipe
from fedslice.training.enrolled import Enrolled
from fedslice.training.events import Listener, Refusal, Taken
from fedslice.training.experiment import Experiment
from toys import MLP

Shapes = Mapping[str, torch.Size]


class Sent:
    """The uploads of a chunk of clients: their sizes, and the updates that the server makes of them.

    Args:
        spec: What both sides know.
        state: The server's state of the codec.
        message: The uploads.
        part: The coordinates that they are about.
        update: What the server took them for when they arrived.
    """

    def __init__(self, spec: Spec, state: Any, message: Message, part: Slice, update: Update):
        self.spec, self.state, self.message, self.part, self.update = spec, state, message, part, update
        self.fields = spec.recipe.codec.fields(spec, part, message.head.layout)

    @property
    def t(self) -> int:
        return self.message.head.round

    @property
    def clients(self) -> list[int]:
        return self.message.head.clients.tolist()

    @property
    def body(self) -> Body:
        return self.message.body

    @property
    def bytes(self) -> Tensor:
        """Bytes of each client's body."""
        return sum(self.message.sizes().values(), torch.zeros(self.message.clients, dtype=torch.int64))

    @property
    def words(self) -> Tensor:
        sizes = {name: size for name, size in self.message.sizes().items() if name in self.fields}
        return self.spec.recipe.codec.words(self.spec, self.part, sizes)

    def pack(self, place: int) -> bytes:
        """One client's message."""
        return self.message.pack(place, self.spec.fingerprint)

    def payload(self, place: int) -> bytes:
        """The body of one client's message."""
        return bytes(open_message(self.pack(place), self.spec.fingerprint).payload)

    def unpacked(self, place: int) -> Message:
        """One client's message, read from bytes; its slice must be known without it."""
        return unpack(open_message(self.pack(place), self.spec.fingerprint), {}, lambda _: self._declared(place))

    def decoded(self, place: int) -> Update:
        """What the server makes of one client's message with what it remembers now."""
        message, one = self.unpacked(place), self.part.one(place)
        return self.spec.recipe.codec.decode(self.state, message.head, one, message.body)

    def _declared(self, place: int) -> Mapping[str, Any]:
        one, layout = self.part.one(place), self.message.head.layout
        codec = self.spec.recipe.codec.fields(self.spec, one, layout)
        return {**codec, **{n: f for part in self.spec.recipe for n, f in part.up_fields(self.spec, one).items()}}


def heard(experiment: Experiment) -> list[Sent]:
    """Every chunk's uploads that the server decodes, from now on."""
    listener = _Heard(experiment)
    experiment.events.add(listener)
    return listener.sent


class _Heard(Listener):
    def __init__(self, experiment: Experiment):
        self._server = experiment.server
        self.sent: list[Sent] = []

    def taken(self, event: Taken) -> None:
        server = self._server
        self.sent.append(Sent(server.spec, server.states["codec"], event.message, event.part, event.update))


class Waiting(Listener):
    """A round of an experiment in which clients have asked, or trained, and the server has read nothing yet.

    Args:
        experiment: The experiment; all clients of the round are in one chunk.
    """

    def __init__(self, experiment: Experiment):
        self.server, self.population = experiment.server, experiment.population
        self.server.events.add(self)
        self._refused: list[Refusal] = []
        self._kind = Kind.REQUEST
        self.messages = self.population.request(self.server.invitation(self.server.invite()))

    def train(self) -> Waiting:
        """Answer the requests, and train the clients."""
        self.download = self.server.answer(self.messages)
        self._kind, self.messages = Kind.UPLOAD, self.population.train(self.download)
        return self

    def data(self, place: int) -> bytes:
        """What a client has sent."""
        return self.messages.pack(place, self.server.spec.fingerprint)

    def read(self, place: int, data: bytes) -> Message | None:
        """What the server reads if a client sends this."""
        return self.server.read(data, self._kind, int(self.messages.head.clients[place]))

    def refusal(self, place: int, data: bytes) -> str | None:
        """Why the server does not read it, if it does not."""
        self._refused.clear()
        message = self.read(place, data)
        assert (message is None) == bool(self._refused)
        return None if message is not None else self._refused[0].reason

    def refused(self, event: Refusal) -> None:
        self._refused.append(event)


class Copies(Listener):
    """What clients have kept of what came down, beside what the server has: the largest differences from now on.

    Args:
        experiment: An experiment whose messages become bytes: otherwise clients keep nothing.

    Attributes:
        model: Between the copies and the model.
        basis: Between the rows of the basis, if there is one.
        steps: How many steps each client was sent that was sent steps.
        sent_whole: How often clients were sent the model.
        ranks: How many directions there were.
    """

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        self.model = self.basis = 0.0
        self.steps: list[int] = []
        self.sent_whole = 0
        self.ranks: set[int] = set()
        experiment.events.add(self)

    def answered(self, message: Message) -> None:
        entries = message.body[STEPS]
        self.steps += entries.entries.numbers[entries.present].tolist()
        self.sent_whole += int((~entries.present).sum())

    def taken(self, event: Taken) -> None:
        one, head = self._experiment, event.message.head
        slices, memories = one.recipe.slices, one.population.parts
        hold = slices.hold(memories["slices"], head.round, head.clients)
        down = slices.came(memories["slices"], head.round, head.clients, hold)
        copy = recalled(memories["codec"], COPY, head, down)
        self.model = max(self.model, _apart(copy, down.gather(one.model)))
        basis = getattr(one.server.states["codec"], "basis", None)
        if basis is None:
            return
        self.ranks.add(basis.rank)
        rows = recalled(memories["codec"], BASIS, head, with_directions(down, one.recipe.codec.rank))  # type: ignore[attr-defined]
        own = {name: value[..., : basis.rank] for name, value in rows.items()}
        theirs = with_directions(down, basis.rank).gather(basis.rows(one.spec.shapes))
        self.basis = max(self.basis, _apart(own, theirs))


def _apart(one: Values, other: Values) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one if one[name].numel())


class Halves:
    """Both halves of a codec, for clients without data that are sent nothing.

    Args:
        codec: The codec.
        shapes: The model's parameters; by default those of :class:`~toys.MLP`.
        seed: The seed of both sides.
        dtype: The type of the model's values.
        clients: How many clients there are.
    """

    def __init__(
        self,
        codec: Codec,
        shapes: Shapes | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        clients: int = 6,
    ):
        module = MLP().to(dtype) if shapes is None else sheet(shapes, dtype)
        self.codec = codec
        self.spec = Spec(module, None, (), Recipe(codec=codec), seed)
        enrolled = Enrolled()
        enrolled.add(torch.arange(clients), {})
        self.memories = ClientMemories(Store(clients), clients)
        task: Any = SimpleNamespace(federation=range(clients))
        self.server_run = ServerRun(self.spec, enrolled, torch.device("cpu"))
        self.client_run = ClientRun(self.spec, task, self.memories, seed, torch.device("cpu"))
        self.state: Any = codec.server_state(self.server_run)
        self.memory: Any = codec.client_memory(self.client_run, "codec")

    @property
    def shapes(self) -> Shapes:
        return self.spec.shapes

    def send(self, t: int, update: Update, clients: Tensor | None = None, taken: Tensor | None = None) -> Sent:
        """Encode the updates of a chunk, decode them, and tell both sides whose upload is part of the round.

        What arrives in bytes must be what arrives in memory.
        """
        who = torch.arange(update.clients) if clients is None else clients
        keep = torch.ones(update.clients, dtype=torch.bool) if taken is None else taken
        enrolled = self.server_run.enrolled
        rounds = enrolled.upload_round(who)
        layout = self.codec.layout(self.state, t)
        head = Header(Kind.UPLOAD, t, who, torch.zeros_like(who), torch.full_like(who, t), rounds, layout)
        body = self.codec.encode(self.memory, head, update, {})
        self.memories.end_round(t, who)
        part = update.slice
        message = Message(head, self.codec.fields(self.spec, part, layout), body)
        decoded = self.codec.decode(self.state, head, part, body)
        out = Sent(self.spec, self.state, message, part, decoded)
        assert_arrives(out)
        self.codec.taken(self.state, head, self.codec.decode(self.state, head, part, body), keep)
        enrolled.took(who[keep], t)
        self.memories.settle(who, enrolled.upload_round(who))
        return out

    def values(self, t: int, values: Values, part: Slice | None = None) -> Values:
        """What arrives of values that the first clients send."""
        return self.send(t, whole(values, part)).update.values

    def remembered(self, kind: str, name: str, clients: Tensor) -> Tensor:
        """What clients remember of a parameter [clients, ...]."""
        found = self.memory.get(f"{kind}/{name}", clients)
        assert found is not None
        return found[0]


def whole(values: Values, part: Slice | None = None) -> Update:
    """Updates of values that sit on a slice, by default on whole parameters of just their size."""
    clients = len(next(iter(values.values())))
    where = part or Slice.whole(clients, {n: v.shape[1:] for n, v in values.items()})
    return Update(where, where, values)


def assert_arrives(sent: Sent) -> None:
    """Every client's message is as long as counted, and decodes to the bit to what it decodes to in memory."""
    for place in range(len(sent.clients)):
        assert len(sent.payload(place)) == int(sent.bytes[place])
        assert len(sent.pack(place)) == int(sent.bytes[place] + sent.message.framing()[place])
        arrived = sent.decoded(place)
        on = sent.update.slice
        one, other = sent.update.one(place, on), arrived.one(0, arrived.slice)
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=0, atol=0, equal_nan=True)


def sheet(shapes: Shapes, dtype: torch.dtype) -> nn.Module:
    """A module with parameters of these names and shapes, and nothing to compute."""
    root = nn.Module()
    for name, shape in shapes.items():
        *path, last = name.split(".")
        place = root
        for step in path:
            if not hasattr(place, step):
                place.add_module(step, nn.Module())
            place = cast(nn.Module, getattr(place, step))
        place.register_parameter(last, nn.Parameter(torch.zeros(shape, dtype=dtype)))
    return root
