"""Damaged and hostile files in every official layout: a reader gives arrays, or one sentence."""

import gzip
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import test_datasets_agnews
import test_datasets_cifar
import test_datasets_cifar100
import test_datasets_idx
import test_datasets_renttherunway
import test_datasets_sent140
import test_datasets_taobao
import test_datasets_text
from fedslice.core.errors import UserError
from fedslice.datasets import (
    agnews,
    amazon,
    cifar,
    idx,
    movielens,
    renttherunway,
    sent140,
    taobao,
    text,
    tinyimagenet,
)
from fedslice.training.devices import Devices
from layouts import write_amazon, write_movielens

MUTATIONS = 200
HOSTILE = [
    b"-1",
    b"nan",
    b"inf",
    b"1e999",
    b"9" * 30,
    b"0x10",
    b"\0",
    b"\xff\xfe",
    b'"',
    b",",
    b"\t",
    b"::",
    b"|",
    b"\r",
]
HOSTILE += [
    b"\n\n",
    b"\xef\xbb\xbf",
    b"[" * 2000,
    b"{}",
    b"null",
    b"\\ud800",
    "é\u2028".encode(),
    b"PK\x01\x02",
    b"\x1f\x8b",
]


def mutated(raw: bytes, chance: np.random.Generator) -> bytes:
    """A few of the ways in which a file goes wrong or is made wrong."""
    for _ in range(chance.integers(1, 4)):
        first, last = sorted(chance.integers(0, len(raw) + 1, 2).tolist())
        last = min(last, first + 60)
        token = HOSTILE[chance.integers(len(HOSTILE))]
        noise = chance.integers(0, 256, last - first, np.uint8).tobytes()
        raw = (
            raw[:first] + noise + raw[last:],
            raw[:first] + bytes(last - first) + raw[last:],
            raw[:first] + b"\xff" * (last - first) + raw[last:],
            raw[:first] + raw[last:],
            raw[:last] + raw[first:],
            raw[:first],
            raw[:first] + token + raw[first:],
            raw[:first] + token + raw[first + len(token) :],
        )[chance.integers(8)]
    return raw


def write_tiny(folder: Path) -> Path:
    pytest.importorskip("PIL.Image")
    import test_datasets_tinyimagenet as tiny

    return tiny.write(folder, tiny.files())


def write_tiny_zip(folder: Path) -> Path:
    pytest.importorskip("PIL.Image")
    import test_datasets_tinyimagenet as tiny

    return tiny.write_zip(folder, tiny.files())


def write_file(name: str, raw: bytes, folder: Path) -> Path:
    """One file, packed as its name says."""
    path = folder / name
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("only", raw)
    else:
        path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


TWEETS = "".join(test_datasets_sent140.tweets()).encode("latin-1")
REVIEWS = test_datasets_renttherunway.dump(test_datasets_renttherunway.reviews())
DEVICES = b"client,speed,cycles,uplink,downlink\n0,1e9,1e6,1000,4e4\n1,2e9,1e6,1000,4e4\n"
LOG = test_datasets_taobao.some_lines({1: 40, 2: 33})

Write = Callable[[Path], Path]
READERS: dict[str, tuple[Write, Callable[[Path], Any]]] = {
    "MovieLens-1M": (write_movielens, movielens.read),
    "MovieLens-1M in its zip": (partial(write_movielens, zipped=True), movielens.read),
    "MovieLens-100K": (partial(write_movielens, variant="100k"), partial(movielens.read, variant="100k")),
    "Amazon": (partial(write_amazon, test_rows=3), amazon.read),
    "Amazon, plain": (
        lambda folder: write_file(
            "amazon_train.tsv",
            gzip.decompress((write_amazon(folder / "x") / "amazon_train.tsv.gz").read_bytes()),
            folder,
        ),
        amazon.read,
    ),
    "AG News": (test_datasets_agnews.write, agnews.read),
    "AG News, packed": (partial(test_datasets_agnews.write, zipped=True), agnews.read),
    "CIFAR-10": (partial(test_datasets_cifar.write, kind="bin", taken=test_datasets_cifar.binary), cifar.read),
    "CIFAR-10 for Python": (
        partial(test_datasets_cifar.write, kind="py", taken=test_datasets_cifar.python_2),
        cifar.read,
    ),
    "CIFAR-100": (partial(test_datasets_cifar100.write, layout="binary"), partial(cifar.read, name="CIFAR-100")),
    "CIFAR-100 for Python": (
        partial(test_datasets_cifar100.write, layout="python"),
        partial(cifar.read, name="CIFAR-100"),
    ),
    "MNIST": (test_datasets_idx.write_idx, idx.read),
    "MNIST, packed": (partial(test_datasets_idx.write_idx, zipped=True), idx.read),
    "RentTheRunway": (partial(write_file, "a.json", REVIEWS), partial(renttherunway.read, at_least=1)),
    "RentTheRunway, packed": (partial(write_file, "a.json.gz", REVIEWS), renttherunway.read),
    "Sentiment140": (partial(write_file, sent140.FILE, TWEETS), sent140.read),
    "Sentiment140 in its zip": (partial(write_file, sent140.ARCHIVE, TWEETS), sent140.read),
    "Taobao": (partial(test_datasets_taobao.write, lines=LOG), taobao.read),
    "Tiny ImageNet": (write_tiny, tinyimagenet.read),
    "Tiny ImageNet in its zip": (write_tiny_zip, tinyimagenet.read),
    "GloVe": (
        partial(write_file, "g.txt", test_datasets_text.GLOVE.encode()),
        partial(text.glove, words=test_datasets_text.ASKED, dim=3),
    ),
    "devices": (partial(write_file, "d.csv", DEVICES), partial(Devices.read, clients=2)),
}


@pytest.mark.parametrize("layout", READERS)
def test_no_damaged_file_gives_anything_but_arrays_or_a_sentence(tmp_path: Path, layout: str) -> None:
    write, read = READERS[layout]
    path = write(tmp_path)
    read(path)
    files = sorted(file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    chance = np.random.default_rng(0)
    for number in range(MUTATIONS):
        file = files[number % len(files)]
        good = file.read_bytes()
        file.write_bytes(mutated(good, chance))
        with suppress(UserError):
            read(path)
        file.write_bytes(good)
