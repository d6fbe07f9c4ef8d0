"""Simulated devices: seconds of a round by hand (FedDD, equations 7, 9, 11 and 12), draws, and CSV files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedslice.core.errors import UserError
from fedslice.training.devices import PRESETS, Devices, capacity, devices

COLUMNS = ("speed", "cycles", "uplink", "downlink")
HEADER = "client,speed,cycles,uplink,downlink"
ROWS = ("0,1e9,2e6,1000,40000", "1,2e9,3e6,2000,50000", "2,4e9,1e6,4000,80000")


def write(folder: Path, *lines: str, end: str = "\n") -> Path:
    path = folder / "devices.csv"
    path.write_bytes(("".join(line + end for line in lines)).encode())
    return path


def test_seconds_by_hand() -> None:
    """Client 0: 5,000 bytes down at 40,000 bit/s, 500 samples of 2 Mcycles at 1 GHz, 250 bytes up at 1,000 bit/s."""
    some = Devices(np.array([1e9, 2e9]), np.array([2e6, 3e6]), np.array([1e3, 2e3]), np.array([4e4, 5e4]))
    assert some.seconds([0], [500], [250], [5_000]).tolist() == [1 + 1 + 2]
    found = some.seconds(torch.tensor([1, 0, 1]), torch.tensor([1000, 0, 0]), [0, 250, 0], 5_000)
    assert found.tolist() == pytest.approx([0.8 + 1.5, 1 + 2, 0.8])


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_parts_of_a_round_add_up(clients: int, seed: int, samples: int, up: int, down: int) -> None:
    some = Devices.drawn(clients, seed)
    who = np.arange(clients)
    whole = some.seconds(who, samples, up, down)
    parts = some.seconds(who, samples, 0, 0) + some.seconds(who, 0, up, 0) + some.seconds(who, 0, 0, down)
    np.testing.assert_allclose(whole, parts, rtol=1e-14)


def test_draws_fill_table_4_evenly() -> None:
    """Means of 20,000 uniform numbers stay within six standard errors; columns are not correlated."""
    count = 20_000
    some = Devices.drawn(count, seed=3)
    ranges = {"speed": (1e9, 1e10), "cycles": (1e6, 1e7), "uplink": (1e3, 5e3), "downlink": (4e4, 2e5)}
    for name, (low, high) in ranges.items():
        values = getattr(some, name)
        assert values.dtype == np.float64
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 6 * (high - low) / np.sqrt(12 * count)
    correlation = np.corrcoef([getattr(some, name) for name in COLUMNS])
    assert abs(correlation - np.eye(4)).max() < 6 / np.sqrt(count)


def test_the_rate_of_a_channel_by_hand() -> None:
    """Equations 8 and 10: B·log2(1 + p·h/N_0) = 500·log2(1 + 0.1·3e-12/1e-13) = 1,000 and 1,000·log2(32) = 5,000."""
    found = capacity(np.array([500.0, 1e3]), np.array([0.1, 0.2]), np.array([3e-12, 1.55e-11]), np.array([1e-13] * 2))
    assert found.tolist() == pytest.approx([1_000, 5_000])


def test_radio_devices_have_rates_within_table_4_that_rise_together() -> None:
    """h_n is in both rates, so a client with a good channel is quick both ways; speeds are drawn as without a radio."""
    radio, plain = Devices.drawn(20_000, seed=3, preset="feddd-radio"), devices("feddd", 20_000, 3)
    for name in ("uplink", "downlink"):
        low, high = PRESETS["feddd"][name]
        values = getattr(radio, name)
        assert low <= values.min() < values.max() <= high
        assert values.max() - values.min() > 0.9 * (high - low)
    assert np.corrcoef(radio.uplink, radio.downlink)[0, 1] > 0.1
    assert np.array_equal(radio.speed, plain.speed)
    assert np.array_equal(radio.cycles, plain.cycles)
    assert devices("feddd-radio", 20_000, 3).digest == radio.digest


def test_a_clients_device_depends_on_seed_and_number_only() -> None:
    few, many, other = Devices.drawn(5, seed=1), Devices.drawn(50, seed=1), Devices.drawn(5, seed=2)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:5])
        assert (getattr(few, name) != getattr(other, name)).all()


def test_a_file_in_any_order(tmp_path: Path) -> None:
    some = Devices.read(write(tmp_path, HEADER, *ROWS), 3)
    assert [getattr(some, name).tolist() for name in COLUMNS] == [
        [1e9, 2e9, 4e9],
        [2e6, 3e6, 1e6],
        [1e3, 2e3, 4e3],
        [4e4, 5e4, 8e4],
    ]
    turned = [",".join(reversed(line.split(","))) for line in (HEADER, ROWS[2], ROWS[0], ROWS[1])]
    turned[0] = "\ufeff" + ",".join(f'"{name}"' for name in turned[0].split(","))  # as spreadsheets write it
    again = Devices.read(write(tmp_path, *turned, end="\r\n"), 3)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(again, name), getattr(some, name))


@pytest.mark.parametrize(
    ("lines", "line", "saying"),
    [
        ((HEADER.replace(",cycles", ""), *ROWS), 1, "the header is 'client,speed,uplink,downlink'"),
        ((HEADER.replace("cycles", "speed"), *ROWS), 1, "the columns client, speed, cycles, uplink, downlink"),
        ((HEADER, ROWS[0], "1,2e9,3e6", ROWS[2]), 3, "3 columns found in '1,2e9,3e6', expected 5"),
        ((HEADER, *ROWS, "", "0,1,1,1,1"), 5, "1 column found in ''"),
        ((HEADER, ROWS[0], ROWS[1]), 3, "the file ends without client 2, expected all clients from 0 to 2"),
        ((HEADER,), 1, "the file ends without client 0"),
        ((HEADER, *ROWS, "1,1,1,1,1"), 5, "client 1 is there already in line 3"),
        ((HEADER, *ROWS, "3,1,1,1,1"), 5, "the client is '3', expected a whole number from 0 to 2"),
        ((HEADER, "-1,1,1,1,1"), 2, "the client is '-1'"),
        ((HEADER, "0.0,1,1,1,1"), 2, "the client is '0.0'"),
        ((HEADER, "0,0,1,1,1"), 2, "the speed is '0', expected a positive, finite number"),
        ((HEADER, ROWS[0], "1,1,-2e6,1,1"), 3, "the cycles is '-2e6'"),
        ((HEADER, "0,1,1,inf,1"), 2, "the uplink is 'inf'"),
        ((HEADER, "0,1,1,1e999,1"), 2, "the uplink is '1e999'"),
        ((HEADER, "0,1,1,1,nan"), 2, "the downlink is 'nan'"),
        ((HEADER, "0,1,1,1,fast"), 2, "the downlink is 'fast'"),
        ((HEADER, "0,1,1,1,"), 2, "the downlink is ''"),
    ],
)
def test_a_bad_file_is_told_by_line(tmp_path: Path, lines: tuple[str, ...], line: int, saying: str) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(UserError) as error:
        Devices.read(path, 3)
    assert str(error.value).startswith(f"{path}, line {line}: ")
    assert saying in str(error.value)
    assert str(error.value).count("\n") == 0


def test_a_missing_or_empty_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv cannot be read \(No such file or directory\)"):
        devices(str(tmp_path / "none.csv"), 3, seed=0)
    with pytest.raises(UserError, match=r"devices\.csv is empty"):
        Devices.read(write(tmp_path), 3)


def test_a_text_names_a_preset_or_a_file(tmp_path: Path) -> None:
    np.testing.assert_array_equal(devices("feddd", 4, seed=7).uplink, Devices.drawn(4, 7).uplink)
    assert devices(str(write(tmp_path, HEADER, *ROWS)), 3, seed=7).uplink.tolist() == [1e3, 2e3, 4e3]
    with pytest.raises(UserError, match="unknown devices 'feddb'; did you mean 'feddd'"):
        devices("feddb", 4, seed=0)
    with pytest.raises(UserError, match=r"unknown devices 'xyz'; choose one of: FILE\.csv, feddd"):
        devices("xyz", 4, seed=0)
    with pytest.raises(UserError, match="unknown preset of devices 'testbed'"):
        Devices.drawn(4, 0, "testbed")


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_impossible_devices_are_refused_by_name(name: str, value: float) -> None:
    numbers = {column: np.array([1.0, 2.0]) for column in COLUMNS}
    with pytest.raises(UserError, match=rf"^{name}\[1\]={value}; give a positive, finite number\.$"):
        Devices(**numbers | {name: np.array([1.0, value])})
    with pytest.raises(UserError, match=r"has shape \(3,\)|for each of 3 clients"):
        Devices(**numbers | {name: np.ones(3)})


def test_every_preset_gives_every_column() -> None:
    for preset in PRESETS:
        some = Devices.drawn(2, 0, preset)
        assert {getattr(some, name).shape for name in COLUMNS} == {(2,)}
