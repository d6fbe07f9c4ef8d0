"""A server and a client for processes of their own: bytes in, bytes out, and state on disk.

Each has a folder for its state. The server writes before it acknowledges anything, a client before it answers, so that
either can be killed at any instant and started again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedslice import recipes
from fedslice.core import statistics
from fedslice.core.errors import Refused, UserError
from fedslice.core.header import HEADER_BYTES, Header, Kind, open_message
from fedslice.core.message import Message, pack_fields, unpack
from fedslice.core.part import Round
from fedslice.core.spec import Spec, TableGroup
from fedslice.data.federation import Federation
from fedslice.metrics import Score
from fedslice.recipe import Recipe
from fedslice.task import Loss, Task, built, table_groups
from fedslice.training import schema
from fedslice.training.devices import Devices
from fedslice.training.evaluate import LOSS, client_metrics
from fedslice.training.events import Events, Refusal
from fedslice.training.population import Population
from fedslice.training.server import Server as Side

NEW = (1 << 63) - 1  # the number of a client that has none yet
_MOST = 1 << 20  # numbers of clients: a client takes about 50 bytes times its own
GREETING_BYTES = HEADER_BYTES + 16  # with a token
_DIGEST, _KEY = 16, 32  # bytes
_SERVER_FILE, _CLIENT_FILE = "server.safetensors", "client.safetensors"

Model = nn.Module | Callable[[], nn.Module]
Tables = Mapping[str, str | Sequence[str]]


class Server(Side):
    """The server of a run, in a process of its own. It has the model and no data.

    Args:
        recipe: The method, or its name.
        model: The network, or a function that builds it, whose values training begins with.
        loss: Loss per sample; only methods that train on the server need it.
        tables: For each embedding-like parameter the features whose ids are its row numbers.
        rounds: How long the run is, if that is known.
        seed: The shared seed.
        timed: Whether clients know how fast their devices are.
        metrics: Names of what clients measure on their own test samples; theirs.
        directory: Where the state is saved after every round, and continued from.
        events: Listeners.

    Example:
        >>> server = Server("fedavg", nn.Linear(2, 1))
        >>> server.round
        0
    """

    def __init__(
        self,
        recipe: Recipe | str,
        model: Model,
        *,
        loss: Loss | None = None,
        tables: Tables | None = None,
        rounds: int | None = None,
        seed: int = 0,
        timed: bool = False,
        metrics: Sequence[str] = (LOSS,),
        directory: Path | str | None = None,
        events: Events | None = None,
    ) -> None:
        module = built(model, seed)
        initial = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
        initial |= {name: value.clone() for name, value in statistics.statistics(module).items()}
        chosen = recipes.get(recipe) if isinstance(recipe, str) else recipe
        if "pools" in chosen.select.provides:
            raise UserError(
                f"select={chosen.select.label} has all data in one place, and a server has none; use Experiment."
            )
        groups = _groups(tables or {}, module)
        spec = Spec(module, loss, groups, chosen, seed, rounds, timed=timed, metrics=tuple(metrics))
        scratch = None if directory is None else Path(directory) / "scratch"
        super().__init__(spec, initial, scratch=scratch, events=events, masked=True)
        self._file = None if directory is None else Path(directory) / _SERVER_FILE
        self._admitted = 0  # numbers that were given
        self._key = secrets.token_bytes(_KEY)
        self._facts_of: dict[int, bytes] = {}  # a digest of what each client has told
        if self._file is not None and self._file.exists():
            self.load_state_dict(load_file(self._file))

    def admit(self, data: bytes) -> int:
        """Return the number of the client that sends this greeting: the one that it had, or a new one.

        A client that has left comes as a new one.

        Raises:
            Refused: If the message is no greeting for this recipe and model.
        """
        opened = open_message(data, self.spec.fingerprint)
        if opened.head.kind is not Kind.HELLO:
            raise Refused("is no greeting")
        message = unpack(opened, {}, lambda _: schema.HELLO)
        said = opened.head.clients
        if int(said) == NEW or bool(self.enrolled.gone(said)[0]):
            if max(self.enrolled.next, self._admitted) >= _MOST:
                raise Refused(f"is of a new client, and all {_MOST:,} numbers are taken")
            self._admitted = max(self.enrolled.next, self._admitted) + 1
            self.save()
            return self._admitted - 1
        if not torch.equal(message.body["token"], self.tokens(said)):
            raise Refused(f"is from client {int(said)} and has not the token that this server gave it")
        return int(said)

    def tokens(self, clients: Tensor) -> Tensor:
        """Return what each client proves its number with when it greets again [clients, 2]."""
        codes = [hmac.digest(self._key, client.to_bytes(8, "little"), "sha256") for client in clients.tolist()]
        return torch.tensor([[int.from_bytes(code[at : at + 8], "little") >> 1 for at in (0, 8)] for code in codes])

    def read(self, data: bytes, kind: Kind, sender: int) -> Message | None:
        """Read and check a message of a client; ``None`` if it is refused, or if the client leaves."""
        try:
            if open_message(data, self.spec.fingerprint).head.kind is Kind.LEAVE:
                self.leave(self._farewell(data, sender))
                return None
        except Refused as refused:
            self.events.refused(Refusal(self.round, sender, str(refused)))
            return None
        message = super().read(data, kind, sender)
        if message is not None and kind is Kind.ENROL:
            self._facts_of[sender] = _digest(message)
        return message

    def _farewell(self, data: bytes, sender: int) -> Message:
        """The facts of a client that leaves, which must be those that it has enrolled with."""
        opened = open_message(data, self.spec.fingerprint)
        if int(opened.head.clients[0]) != sender:
            raise Refused(f"says it is from client {int(opened.head.clients[0])}")
        if not bool(self.enrolled.has(opened.head.clients)[0]):
            raise Refused("is from a client that is not enrolled")
        message = schema.read_facts(self.spec, opened)
        if self._facts_of.get(sender) != _digest(message):
            raise Refused("takes back other facts than the client has enrolled with")
        return message

    def enrol(self, message: Message) -> None:
        """Learn the facts of clients that enrol, and save them."""
        super().enrol(message)
        self.save()

    def leave(self, message: Message) -> None:
        """Forget clients that leave, for good."""
        super().leave(message)
        for client in message.head.clients.tolist():
            self._facts_of.pop(client, None)
        self.save()

    def finish(self) -> Round:
        """End the round, and save it before anybody hears of it."""
        end = super().finish()
        self.save()
        return end

    def save(self) -> None:
        """Write the state, if there is a folder for it. A round at hand is begun again after a restart, so it waits."""
        if self._file is not None and not self.playing:
            write(self._file, self.state_dict())

    def state_dict(self, facts: bool = True) -> dict[str, Tensor]:
        """Everything that a restart between two rounds needs."""
        return super().state_dict(facts) | {
            "admitted": torch.tensor(self._admitted),
            "key": _as_tensor(self._key),
            "digests.clients": torch.tensor(list(self._facts_of), dtype=torch.int64),
            "digests.told": _as_tensor(b"".join(self._facts_of.values())),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._admitted, self._key = int(state["admitted"]), state["key"].numpy().tobytes()
        told = state["digests.told"].numpy().tobytes()
        clients = state["digests.clients"].tolist()
        self._facts_of = {client: told[_DIGEST * n : _DIGEST * (n + 1)] for n, client in enumerate(clients)}
        super().load_state_dict(state)


class Client:
    """A client of a run, in a process of its own. It has its data and its memory, and of the model what it was sent.

    :meth:`serve` answers a server over a pipe. Whoever carries messages in another way sends what :meth:`hello`
    returns, and then for each message of the server what :meth:`reply` returns.

    Args:
        data: Columns by name, one of them ``label``; or a federation of one client.
        recipe: The method, or its name; the server's.
        model: The network, or a function that builds it. Its values are not used.
        loss: Loss per sample.
        tables: For each embedding-like parameter the features whose ids are its row numbers; the server's.
        seed: The client's own seed; by default the shared one. The server cannot tell its batches if it differs.
        secret: The seed of answers that hide something, such as randomized response; not negative and below 2^256. By
            default the operating system draws one, which is kept in ``directory``.
        rounds: How long the run is, if that is known.
        devices: How fast this device is (one row), for methods that ask.
        metrics: What is measured on the client's own test samples when the server asks; by default the loss.
        engine: ``auto``, ``vectorized`` or ``sequential``.
        directory: Where number and memory are saved before every answer, and continued from.
    """

    def __init__(
        self,
        data: Mapping[str, Any] | Federation,
        recipe: Recipe | str,
        model: Model,
        loss: Loss,
        *,
        tables: Tables | None = None,
        rounds: int | None = None,
        seed: int | None = None,
        secret: int | None = None,
        devices: Devices | None = None,
        metrics: Mapping[str, Score] | None = None,
        engine: str = "auto",
        directory: Path | str | None = None,
    ) -> None:
        federation = data if isinstance(data, Federation) else _alone(data)
        if len(federation) != 1:
            raise UserError(f"a client has its own samples alone, and these are of {len(federation)} clients.")
        self.recipe = recipes.get(recipe) if isinstance(recipe, str) else recipe
        self._task = Task(federation, model, loss, tables=tables or {}, metrics=metrics or {}, name="client")
        self._rounds, self._seed, self._devices, self._engine = rounds, seed, devices, engine
        self._secret = (secrets.randbits(8 * _KEY) if secret is None else secret).to_bytes(_KEY, "little")
        self._file = None if directory is None else Path(directory) / _CLIENT_FILE
        self._population: Population | None = None
        self._fingerprint = self._spec(0).fingerprint
        self._token = torch.zeros(1, 2, dtype=torch.int64)
        self.number: int | None = None
        if self._file is not None and self._file.exists():
            self._load(load_file(self._file))

    def hello(self) -> bytes:
        """Return the message with which a client begins, again after every restart."""
        number = NEW if self.number is None else self.number
        one = torch.tensor([number])
        head = Header(Kind.HELLO, 0, one, one * 0, one * 0 - 1, one * 0 - 1)
        return Message(head, schema.HELLO, {"token": self._token}).pack(0, self._fingerprint)

    def farewell(self) -> bytes:
        """Return the message with which this client leaves. It repeats its facts, so that they can be taken back."""
        message = self.population.introduce(torch.tensor([self.number]))
        leave = replace(message, head=replace(message.head, kind=Kind.LEAVE))
        return leave.pack(0, self._fingerprint)

    def serve(self, pipe: Connection) -> None:
        """Greet the server at the other end of a pipe, and answer it until it closes the pipe."""
        try:
            pipe.send_bytes(self.hello())
            while True:
                pipe.send_bytes(self.reply(pipe.recv_bytes()))
        except (EOFError, OSError):
            return

    def reply(self, data: bytes) -> bytes:
        """Return the answer to a message of the server: facts, a request, an upload after training, or scores.

        What the client remembers is on the disk before this returns.

        Raises:
            Refused: If the message cannot be what it claims to be.
        """
        head = open_message(data, self._fingerprint).head
        if head.kind is Kind.WELCOME:
            self._welcomed(data)
        elif self._population is None:
            raise Refused("comes before the server's welcome")
        elif int(head.clients[0]) != self.number:
            raise Refused(f"is for client {int(head.clients[0])}, this is client {self.number}")
        population = self.population
        message = population.read(data)
        answer = self._replies[message.head.kind](population, message)
        self._save()
        return answer.pack(0, self._fingerprint)

    def _welcomed(self, data: bytes) -> None:
        """Take the number and the shared seed that the server gives."""
        message = unpack(open_message(data, self._fingerprint), {}, lambda _: schema.WELCOME)
        number, seed = int(message.head.clients[0]), int(message.body["seed"])
        if number >= _MOST:
            raise Refused(f"gives the number {number}, expected one below {_MOST}")
        self._token = message.body["token"]
        if self._population is None or number != self.number:
            self._begin(number, seed)

    @property
    def population(self) -> Population:
        """The client as a population of one, after the server's welcome."""
        if self._population is None:
            raise RuntimeError("the client has no number yet; it has not been welcomed")
        return self._population

    def _spec(self, seed: int) -> Spec:
        groups = tuple(TableGroup(sets.features, sets.tables, sets.rows) for sets in self._task.index_sets)
        timed = self._devices is not None
        metrics = tuple(client_metrics(self._task))
        return Spec(
            self._task.module, self._task.loss, groups, self.recipe, seed, self._rounds, timed=timed, metrics=metrics
        )

    _replies: ClassVar[dict[Kind, Callable[[Population, Message], Message]]] = {
        Kind.WELCOME: lambda population, message: population.introduce(message.head.clients, message.head.round),
        Kind.INVITE: lambda population, message: population.request(message),
        Kind.DOWNLOAD: lambda population, message: population.train(message),
        Kind.EXAMINE: lambda population, message: population.examined(message),
        Kind.PREVIEW: lambda population, message: population.score(message),
        Kind.SUM: lambda population, message: population.summed(message),
    }

    def _begin(self, number: int, seed: int) -> None:
        """Become client ``number``."""
        self.number = number
        self._shared_seed = seed
        task = self._task.numbered(number)
        devices = None if self._devices is None else self._devices.numbered(number)
        self._population = Population(
            self._spec(seed),
            task,
            seed=self._seed,
            secret=int.from_bytes(self._secret, "little"),
            masked=True,
            devices=devices,
            engine=self._engine,
            chunk=1,
        )

    def _save(self) -> None:
        if self._file is not None:
            state = {"number": torch.tensor(self.number), "seed": torch.tensor(self._shared_seed), "token": self._token}
            state["secret"] = _as_tensor(self._secret)
            write(self._file, state | self.population.memories.state_dict(pending=True))

    def _load(self, state: Mapping[str, Tensor]) -> None:
        self._secret = state["secret"].numpy().tobytes()
        self._begin(int(state["number"]), int(state["seed"]))
        self._token = state["token"]
        self.population.memories.load_state_dict(state)


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors so that the file is the old one or the new one, whatever instant the process is killed at."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(save(_apart(tensors)))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without gaps, and copies of those that share memory with others, as a file has to have them."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        own = value.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        out[name] = own.clone() if place in seen else own
        seen.add(place)
    return out


def _as_tensor(data: bytes) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def _digest(facts: Message) -> bytes:
    """Return a digest of a client's facts."""
    return hashlib.sha256(b"".join(pack_fields(facts.fields, facts.body, 0)[1:])).digest()[:_DIGEST]


def _alone(data: Mapping[str, Any]) -> Federation:
    """One client's columns as a federation."""
    if "label" not in data:
        raise UserError(f"the data have the columns {', '.join(data)}, and none is named 'label'; name the target so.")
    features = {name: column for name, column in data.items() if name != "label"}
    return Federation.from_arrays(client=[0] * len(data["label"]), features=features, label=data["label"], test=0.0)


def _groups(tables: Tables, module: nn.Module) -> tuple[TableGroup, ...]:
    shapes = {name: p.shape for name, p in module.named_parameters()}
    named = {table: (f,) if isinstance(f, str) else tuple(f) for table, f in tables.items()}
    return tuple(TableGroup(features, group, shapes[group[0]][0]) for features, group in table_groups(named))
