"""Simulated devices: how long a client's round takes (FedDD, equations 7 to 12), on hardware drawn or listed.

Bytes say what a method exchanges; with a device's speed and rates they become seconds, in which methods that make the
slowest client wait less can be compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedslice.core import rng
from fedslice.core.errors import UserError, unknown
from fedslice.datasets import lines, packed

Vector = NDArray[np.float64]

PRESETS: dict[str, dict[str, tuple[float, float]]] = {
    # FedDD, table 4
    "feddd": {"speed": (1e9, 1e10), "cycles": (1e6, 1e7), "uplink": (1e3, 5e3), "downlink": (4e4, 2e5)},
    # FedDD, equations 8 and 10. The paper gives no numbers: those of the radio are ours, with rates as in table 4.
    "feddd-radio": {
        "speed": (1e9, 1e10),
        "cycles": (1e6, 1e7),
        "gain": (3e-12, 1.55e-11),  # h_n: received by sent power, the same up and down
        "power": (0.1, 0.2),  # p_n^u: W
        "up_bandwidth": (500, 1_000),  # B_n^u: Hz
        "down_bandwidth": (4_400, 17_200),  # B_n^d: Hz
        "server_power": (20, 20),  # p_server^d: W
        "noise": (1e-13, 1e-13),  # N_0: W
    },
}
"""Ranges from which each client's device is drawn, uniformly.

Those with a ``gain`` describe a radio channel, from which ``capacity`` makes both rates.
"""

MAX_BYTES = 1 << 28
"""Limit of a file of devices, enough for two million clients."""


@dataclass(frozen=True, eq=False)
class Devices:
    """The device of every client, by its number."""

    speed: Vector
    """f_n: cycles per second."""
    cycles: Vector
    """c_n: cycles per sample."""
    uplink: Vector
    """r_n^u: bits per second."""
    downlink: Vector
    """r_n^d: bits per second."""

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.shape != (len(self.speed),):
                raise UserError(f"{name} has shape {values.shape}; give one number for each of {len(self)} clients.")
            wrong = np.flatnonzero(~((values > 0) & np.isfinite(values)))
            if len(wrong):
                raise UserError(f"{name}[{wrong[0]}]={values[wrong[0]]}; give a positive, finite number.")
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.speed)

    @classmethod
    def drawn(cls, clients: int, seed: int, preset: str = "feddd") -> Devices:
        """Devices from a preset's ranges; a client's does not depend on how many others there are."""
        if preset not in PRESETS:
            raise unknown("preset of devices", preset, PRESETS)
        drawn = {}
        for number, (name, (low, high)) in enumerate(PRESETS[preset].items()):
            drawn[name] = low + (high - low) * rng.uniform(seed, rng.Purpose.DEVICES, number, np.arange(clients))
        if "gain" in drawn:
            drawn["uplink"] = capacity(drawn["up_bandwidth"], drawn["power"], drawn["gain"], drawn["noise"])
            drawn["downlink"] = capacity(drawn["down_bandwidth"], drawn["server_power"], drawn["gain"], drawn["noise"])
        return cls(**{name: drawn[name] for name in _COLUMNS})

    @classmethod
    def read(cls, path: Path, clients: int) -> Devices:
        """Devices from a CSV with the columns client, speed, cycles, uplink, downlink, a line for each client."""
        place, raw = packed.load(path, MAX_BYTES)
        header, *rows = (
            [field.strip(b' "') for field in line.rstrip(b"\r").split(b",")]
            for line in raw.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n").split(b"\n")
        )
        names = [field.decode("latin-1") for field in header]
        if sorted(names) != sorted(("client", *_COLUMNS)):
            expected = f"the columns client, {', '.join(_COLUMNS)} in any order"
            raise lines.bad_line(place, 1, f"the header is {lines.show(b','.join(header))}", expected)
        table = np.empty((clients, len(_COLUMNS)))
        seen: dict[int, int] = {}
        for number, row in enumerate(rows, start=2):
            if len(row) != len(names):
                found = lines.columns_found(row, b",".join(row))
                raise lines.bad_line(place, number, found, f"{len(names)} separated by ','")
            texts = dict(zip(names, row, strict=True))
            client = _client(place, number, texts["client"], clients)
            if client in seen:
                found = f"client {client} is there already in line {seen[client]}"
                raise lines.bad_line(place, number, found, "every client once")
            seen[client] = number
            table[client] = [_number(place, number, name, texts[name]) for name in _COLUMNS]
        missing = next((client for client in range(clients) if client not in seen), None)
        if missing is not None:
            found, expected = f"the file ends without client {missing}", f"all clients from 0 to {clients - 1}"
            raise lines.bad_line(place, len(rows) + 1, found, expected)
        return cls(*table.T.copy())

    def numbered(self, number: int) -> Devices:
        """Return these of one client, under another number than 0."""
        return Devices(**{name: np.resize(getattr(self, name), number + 1) for name in _COLUMNS})

    @property
    def digest(self) -> str:
        """Return a digest that tells these devices from others."""
        return hashlib.sha256(b"".join(getattr(self, name).tobytes() for name in _COLUMNS)).hexdigest()[:12]

    def seconds(self, clients: ArrayLike, samples: ArrayLike, up_bytes: ArrayLike, down_bytes: ArrayLike) -> Vector:
        """Return t_d + t_cmp + t_u of the given clients; a round lasts as long as the longest of them (equation 12).

        ``samples`` are all that a client processes in the round: E·m_n for E passes, where FedDD writes b_n for one.
        The parts add up: with no samples it is the time of communication, with no bytes that of training.
        """
        who = np.asarray(clients)
        training = self.cycles[who] * np.asarray(samples) / self.speed[who]
        found: Vector = (
            8 * np.asarray(down_bytes) / self.downlink[who] + training + 8 * np.asarray(up_bytes) / self.uplink[who]
        )
        return found


_COLUMNS = tuple(field.name for field in fields(Devices))


def capacity(bandwidth: Vector, power: Vector, gain: Vector, noise: Vector) -> Vector:
    """r = B·log2(1 + p·h/N_0), in bits per second, of a channel of B Hz (FedDD, equations 8 and 10).

    The power p and the noise N_0 have the same unit, and the gain h has none.
    """
    found: Vector = bandwidth * np.log2(1 + power * gain / noise)
    return found


def devices(text: str, clients: int, seed: int) -> Devices:
    """Return the devices that ``text`` names: a preset, or a CSV."""
    if text in PRESETS:
        return Devices.drawn(clients, seed, text)
    if text.lower().endswith(".csv"):
        return Devices.read(Path(text), clients)
    raise unknown("devices", text, [*PRESETS, "FILE.csv"])


def _client(place: str, line: int, text: bytes, clients: int) -> int:
    client = lines.whole(text, range(clients))
    if client is None:
        expected = f"a whole number from 0 to {clients - 1}, as there are {clients} clients"
        raise lines.bad_line(place, line, f"the client is {lines.show(text)}", expected)
    return client


def _number(place: str, line: int, name: str, text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not 0 < value < np.inf:
        raise lines.bad_line(place, line, f"the {name} is {lines.show(text)}", "a positive, finite number")
    return value
