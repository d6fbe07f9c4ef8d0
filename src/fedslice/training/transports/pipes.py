"""Messages over pipes: every client is a process of its own."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from os import read, set_blocking, write

import torch
from torch import Tensor

from fedslice.core.errors import Refused
from fedslice.core.message import Message
from fedslice.select.base import Cohort
from fedslice.training.parties import GREETING_BYTES, Server
from fedslice.training.rounds import Phase, Stage, enrol
from fedslice.training.server import Server as Side

_LENGTH = struct.Struct("!i")  # stands before each message, as :class:`multiprocessing.connection.Connection` has it
_AT_ONCE = 1 << 16


class Pipes:
    """The server's ends of pipes to clients, each with a :meth:`fedslice.Client.serve` at the other.

    Nothing that a client does holds up the round for longer than ``timeout``: it may be silent, stop in the middle of a
    message, or send what was not asked for. A message that announces more than ``limit`` bytes closes its pipe before
    any memory is taken.

    Args:
        timeout: Seconds to wait for the replies of a phase.
        limit: Bytes of the longest message that a client may send.
    """

    def __init__(self, timeout: float = 60.0, limit: int = 1 << 28) -> None:
        self.timeout = timeout
        self.limit = limit
        self._lines: dict[int, _Line] = {}

    @property
    def connected(self) -> set[int]:
        """The numbers of the clients that have a pipe."""
        return set(self._lines)

    def connect(self, server: Server, pipe: Connection) -> int:
        """Admit the client at the other end of a pipe, enrol it if it is new, and return its number.

        Raises:
            Refused: If it does not greet in time, or with another recipe or model.
        """
        return self.gather(server, [pipe])[0]

    def gather(self, server: Server, pipes: Iterable[Connection]) -> list[int]:
        """Admit the clients at the other ends of several pipes, enrol the new ones together, and return all numbers.

        Clients that tell something in a sum alone have to enrol together.

        Raises:
            Refused: If one of them does not greet in time, or with another recipe or model.
        """
        numbers = []
        for pipe in pipes:
            line = _Line(pipe, GREETING_BYTES)
            greeting = next((data for data in _heard({0: line}, self.timeout) if data), None)
            if greeting is None:
                raise Refused("has sent no greeting in time")
            numbers.append(server.admit(greeting[1]))
            line.limit = self.limit
            self._lines[numbers[-1]] = line
        clients = torch.tensor(numbers).unique()
        fresh = clients[~server.enrolled.has(clients)]
        if len(fresh):
            enrol(server, self, fresh)
            server.save()
        return numbers

    def chunks(self, stage: Stage, cohort: Cohort) -> Iterator[Cohort]:  # noqa: ARG002
        """Return all clients at once: they compute at the same time."""
        yield cohort

    def exchange(self, server: Side, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
        """Send to all that are connected, and return what arrives in time and is accepted."""
        awaited: dict[int, int] = {}
        for down in downs:
            for place, client in enumerate(down.head.clients.tolist()):
                line = self._lines.get(client)
                if line is not None and line.send(down.pack(place, server.spec.fingerprint), self.timeout):
                    awaited[client] = awaited.get(client, 0) + 1
        lines = {client: self._lines[client] for client in awaited}
        for client, data in _heard(lines, self.timeout):
            up = server.read(data, phase.kind, client)
            if up is None:
                continue
            yield up
            awaited[client] -= 1
            if not awaited[client]:
                del lines[client]
        for client in [client for client, line in self._lines.items() if line.closed]:
            del self._lines[client]

    def close(self) -> None:
        """Close all pipes: the clients' :meth:`fedslice.Client.serve` ends."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def settle(self, clients: Tensor, taken: Tensor) -> None:
        """Do nothing: the next message to a client says what was taken."""


class _Line:
    """A pipe that is read and written without waiting for the other side longer than is said."""

    def __init__(self, pipe: Connection, limit: int):
        self.pipe = pipe
        self.limit = limit
        self.closed = False
        self._buffer = bytearray()
        set_blocking(pipe.fileno(), False)

    def send(self, data: bytes, timeout: float) -> bool:
        """Return whether a message could be sent in time; the pipe is closed if not, as it may be sent in part."""
        left, deadline = memoryview(_LENGTH.pack(len(data)) + data), time.monotonic() + timeout
        while left and time.monotonic() < deadline:
            try:
                left = left[write(self.pipe.fileno(), left[:_AT_ONCE]) :]
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                break
        if left:
            self.close()
        return not left

    def receive(self) -> Iterator[bytes]:
        """Read what there is, and return the messages that are complete."""
        try:
            data = read(self.pipe.fileno(), _AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if not 0 <= length <= self.limit:
                self.close()
                return
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            yield bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]

    def close(self) -> None:
        """Hear nothing of it any more."""
        self.closed = True
        self._buffer.clear()
        with suppress(OSError):
            self.pipe.close()


def _heard(lines: dict[int, _Line], timeout: float) -> Iterator[tuple[int, bytes]]:
    """Messages as they arrive, until no line is left or the time is over. The caller takes lines out."""
    deadline = time.monotonic() + timeout
    while True:
        for client in [client for client, line in lines.items() if line.closed]:
            del lines[client]
        left = deadline - time.monotonic()
        if not lines or left <= 0:
            return
        ready = set(map(id, wait([line.pipe for line in lines.values()], left)))
        for client, line in list(lines.items()):
            if id(line.pipe) in ready:
                for data in line.receive():
                    if client in lines:
                        yield client, data
