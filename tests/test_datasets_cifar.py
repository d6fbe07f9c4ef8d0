"""CIFAR-10 in both layouts; the python one is a pickle, of which nothing is ever run."""

import io
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedslice.core.errors import UserError
from fedslice.datasets import cifar, pickled
from layouts import one_sentence

NAMES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def some(number: int, samples: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (samples, 3072), np.uint8), rng.integers(0, 10, samples).astype(np.uint8)


def binary(pixels: np.ndarray, label: np.ndarray) -> bytes:
    return np.concatenate([label[:, None], pixels], 1).tobytes()


def python_2(pixels: np.ndarray, label: np.ndarray, core: str = "numpy.core", by_columns: bool = False) -> bytes:
    """The instructions that Python 2 and its NumPy wrote into the official files."""

    def short(text: str) -> bytes:
        return b"U" + bytes([len(text)]) + text.encode()

    def name(module: str, attribute: str) -> bytes:
        return f"c{module}\n{attribute}\n".encode()

    def put(at: int) -> bytes:
        return b"q" + bytes([at])

    raw = pixels.tobytes("F" if by_columns else "C")
    array = name(f"{core}.multiarray", "_reconstruct") + put(2) + name("numpy", "ndarray") + put(3)
    array += b"K\x00\x85" + put(4) + short("b") + put(5) + b"\x87" + put(6) + b"R" + put(7)
    kind = name("numpy", "dtype") + put(9) + short("u1") + put(10) + b"K\x00K\x01\x87" + put(11) + b"R" + put(12)
    kind += b"(K\x03" + short("|") + put(13) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t" + put(14) + b"b"
    shape = b"M" + struct.pack("<H", len(pixels)) + b"M" + struct.pack("<H", pixels.shape[1]) + b"\x86" + put(8)
    array += b"(K\x01" + shape + kind + (b"\x88" if by_columns else b"\x89")
    array += b"T" + struct.pack("<I", len(raw)) + raw + put(15) + b"t" + put(16) + b"b"
    labels = b"]" + put(18) + b"(" + b"".join(b"K" + bytes([one]) for one in label.tolist()) + b"e"
    files = b"]" + put(20) + b"(" + short("leptodactylus_s_000004.png") + b"r" + struct.pack("<I", 300)
    files += b"h\x05j" + struct.pack("<I", 300) + b"e"
    items = short("data") + put(1) + array + short("labels") + put(17) + labels
    items += short("batch_label") + put(19) + short("training batch 1 of 5") + short("filenames") + files
    return b"\x80\x02}" + put(0) + b"(" + items + b"u."


def write(folder: Path, kind: str, taken: Callable[[np.ndarray, np.ndarray], bytes]) -> Path:
    place = folder / f"cifar-10-batches-{kind}"
    place.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        (place / (f"{name}.bin" if kind == "bin" else name)).write_bytes(taken(*some(number)))
    return folder


LAYOUTS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], bytes]]] = {
    "binary": ("bin", binary),
    "python 2": ("py", python_2),
    "python 2, later NumPy": ("py", lambda p, y: python_2(p, y, core="numpy._core")),
    "python 2, by columns": ("py", lambda p, y: python_2(p, y, by_columns=True)),
    **{
        f"protocol {n}, keys of {key.__name__}": (
            "py",
            lambda p, y, n=n, key=key: pickle.dumps(
                {key("data", "ascii") if key is bytes else "data": p, "labels": y.tolist()}, protocol=n
            ),
        )
        for n in (2, 3, 4)
        for key in (str, bytes)
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("outer", ["", "cifar10"])
def test_values_are_those_that_were_written(tmp_path: Path, layout: str, outer: str) -> None:
    write(tmp_path / outer, *LAYOUTS[layout])
    train, test = cifar.read(tmp_path)
    pixels, label = (np.concatenate(columns) for columns in zip(*map(some, range(5)), strict=True))
    assert train.image.shape == (15, 3, 32, 32)
    assert np.array_equal(train.image.reshape(15, -1), pixels)
    assert np.array_equal(train.label, label)
    assert np.array_equal(test.image.reshape(3, -1), some(5)[0])
    inner = next((tmp_path / outer).iterdir())
    assert np.array_equal(cifar.read(inner)[1].label, some(5)[1]), "the folder itself is as good"


def test_the_instructions_of_python_2_are_those_it_would_have_run() -> None:
    """The file that the reader is tested on is one that a real unpickler takes for what it is meant to be."""
    pixels, label = some(0)
    for by_columns in (False, True):
        content = pickle.loads(python_2(pixels, label, "numpy._core", by_columns), encoding="latin-1")
        assert np.array_equal(content["data"], pixels)
        assert content["labels"] == label.tolist()
        assert content["filenames"] == ["leptodactylus_s_000004.png", "b", "leptodactylus_s_000004.png"]


class Runs:
    """Unpickled, this makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (f"{self.place}",)


class Evaluates:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1 / 0",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused_and_does_not(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Runs(mark), protocol))
    assert mark.is_dir(), "an unpickler does run it"
    mark.rmdir()
    write(tmp_path, "py", python_2)
    file = tmp_path / "cifar-10-batches-py" / NAMES[0]
    pixels, label = some(0)
    for content in (Runs(mark), {"data": pixels, "labels": label.tolist(), "more": Runs(mark)}, [Runs(mark)] * 2):
        file.write_bytes(pickle.dumps(content, protocol))
        told = one_sentence(cifar.read, tmp_path)
        assert told.startswith(f"{file} holds ")
        assert not mark.exists()


def test_os_system_by_name_is_refused_and_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    command = f"mkdir {mark}".encode()
    raw = b"\x80\x02cos\nsystem\nU" + bytes([len(command)]) + command + b"\x85R."
    assert "(the name 'os system'); fetch" in one_sentence(pickled.plain, "x", raw)
    assert not mark.exists()


REFUSED = {
    "eval": (pickle.dumps(Evaluates(), 2), "the name '__builtin__ eval'"),
    "instance": (b"(ios\nsystem\n.", "the instruction INST"),
    "object": (b"(cos\nsystem\no.", "the instruction OBJ"),
    "new object": (b"cnumpy\nndarray\n)\x81.", "the instruction NEWOBJ"),
    "persistent id": (b"Pabc\n.", "the instruction PERSID"),
    "extension": (b"\x82\x01.", "the instruction EXT1"),
    "set": (pickle.dumps({1}, 4), "the instruction EMPTY_SET"),
    "protocol 5 array": (pickle.dumps(np.zeros(2, np.uint8), 5), "the instruction BYTEARRAY8"),
    "array of objects": (pickle.dumps(np.array([None, {}]), 2), "an array of something else than bytes"),
    "array of floats": (pickle.dumps(np.zeros(2), 2), "an array of something else than bytes"),
    "a codec that unpacks": (
        b"c_codecs\nencode\nX\x01\x00\x00\x00xX\x03\x00\x00\x00zip\x86R.",
        "a text in another encoding",
    ),
    "a call of a text": (b"U\x01x)R.", "not callable"),
    "a call of a call": (b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87RU\x01xK\x00\x86R.", "not callable"),
    "state of a list": (b"]}b.", "no attribute '__dict__'"),
    "key of a list": (b"}]Ns.", "unhashable"),
    "key without value": (b"}(U\x01xu.", "odd number"),
    "append to a number": (b"K\x01K\x02a.", "no attribute 'append'"),
    "items for a list": (b"](U\x01xNu.", "list indices"),
    "no mark": (b"K\x01t.", "MARK"),
    "empty stack": (b".", "underflow"),
    "unknown reference": (b"h\x07.", "index 7"),
    "cut short": (python_2(*some(0))[:-4000], "only 5339 remain"),
    "no end": (b"K\x01", "exhausted"),
    "text": (b"hello", "the instruction LIST"),
    "nothing": (b"", "exhausted"),
    "a length to fill the memory": (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x00x.", "only 2 remain"),
    "a place to fill the memory": (b"K\x01r\xff\xff\xff\x7f.", "a reference to number 2147483647"),
    "a tower of tuples": (b"}K\x01" + 2000 * b"\x85" + b"Ns.", "1,000 tuples"),
    "bytes that do not fit": (python_2(*some(0)).replace(b"M\x00\x0c", b"M\x01\x0c"), "bytes do not fit its shape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_every_other_instruction_or_name_is_refused(case: str) -> None:
    raw, found = REFUSED[case]
    told = one_sentence(pickled.plain, "the file", raw)
    assert told.startswith("the file holds something else than ")
    assert found in told


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.binary(min_size=1, max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner, inner, inner)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain_values, st.integers(2, 4))
def test_plain_data_arrive_as_an_unpickler_would_give_them(value: Any, protocol: int) -> None:
    raw = pickle.dumps(value, protocol)
    assert pickled.plain("x", raw) == pickle.loads(raw)


@given(st.data())
def test_no_damage_gives_anything_but_data_or_a_sentence(data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps({"data": some(0, 1)[0][:, :8], "labels": [1, 2], "x": (None, b"y")}, 4))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UserError):
        pickled.plain("x", bytes(raw))


def test_a_pickle_of_very_many_instructions_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"\x80\x04]" + b"\x94" * 1000 + b"."  # every byte fills a place of the memory
    assert pickled.plain("x", raw) == []
    monkeypatch.setattr(pickled, "MAX_STEPS", 1000)
    assert "(more than 1,000 instructions" in one_sentence(pickled.plain, "x", raw)


def damaged(content: Any) -> bytes:
    out = io.BytesIO()
    pickle.dump(content, out, protocol=2)
    return out.getvalue()


PIXELS, LABEL = some(0)
BAD_BATCHES = {
    "no dictionary": ("py", damaged([1, 2]), "has no 'data' of 3,072 bytes per image"),
    "no data": ("py", damaged({"labels": [1]}), "has no 'data' of 3,072 bytes per image"),
    "data as text": ("py", damaged({"data": "x", "labels": [1]}), "has no 'data' of 3,072 bytes per image"),
    "CIFAR-100's labels": ("py", damaged({"data": PIXELS, "fine_labels": [1, 2, 3]}), "has no 'labels'"),
    "fewer labels": ("py", damaged({"data": PIXELS, "labels": [1, 2]}), "one class number for each of its 3 images"),
    "labels as text": ("py", damaged({"data": PIXELS, "labels": ["1", "2", "3"]}), "has no 'labels'"),
    "label": ("py", damaged({"data": PIXELS, "labels": [1, 10, 2]}), "sample 2: the label is 10, expected 0 to 9"),
    "huge label": ("py", damaged({"data": PIXELS, "labels": [1, 2, 10**30]}), "has no 'labels'"),
    "other width": ("py", damaged({"data": PIXELS[:, :99], "labels": [1, 2, 3]}), "has no 'data' of 3,072 bytes"),
    "cut short": ("bin", binary(PIXELS, LABEL)[:-1], "has 9,218 bytes, expected a multiple of 3,073"),
    "empty": ("bin", b"", "has 0 bytes, expected a multiple of 3,073"),
    "binary label": ("bin", binary(PIXELS, LABEL + np.uint8(20)), "sample 1: the label is"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_bad_batch_is_named(tmp_path: Path, case: str) -> None:
    kind, raw, found = BAD_BATCHES[case]
    write(tmp_path, kind, binary if kind == "bin" else python_2)
    file = tmp_path / f"cifar-10-batches-{kind}" / f"data_batch_2{'.bin' * (kind == 'bin')}"
    file.write_bytes(raw)
    told = one_sentence(cifar.read, tmp_path)
    assert told.startswith(f"{file}")
    assert found in told


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert one_sentence(cifar.read, tmp_path).startswith(f"{tmp_path} holds no data_batch_1.bin or data_batch_1;")
    write(tmp_path, "bin", binary)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    place = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    assert one_sentence(cifar.read, tmp_path).startswith(f"{place} is missing, expected it beside")
