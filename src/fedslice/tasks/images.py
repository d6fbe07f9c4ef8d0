"""Image classification on the sets of FedDD (section 6.1) and FLSS (section 4.1), or on generated pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from fedslice.data.federation import Federation
from fedslice.datasets import cifar, idx, pictures, tinyimagenet
from fedslice.datasets.images import Images
from fedslice.measure import accuracy
from fedslice.models.images import network
from fedslice.task import Task
from fedslice.tasks.entry import Entry, data_folder
from fedslice.tasks.spread import Size, SpreadOptions, check, counts, generated, spread


class ImageOptions(SpreadOptions):
    """``normalise=half`` takes pixels to -1 to 1, as PFLlib does, and not to the set's own mean and deviation."""

    model: str
    normalise: Literal["own", "half"] = "own"


class MnistOptions(ImageOptions):
    """FedDD trains the MLP on MNIST (table 2)."""

    model: str = "mlp"


class FmnistOptions(ImageOptions):
    """FedDD trains CNN1 on Fashion-MNIST (table 2)."""

    model: str = "cnn1"


class CifarOptions(ImageOptions):
    """FedDD trains CNN2 and the sub-models of tables 3 and 6 on CIFAR-10."""

    model: str = "cnn2"


class S4Options(ImageOptions):
    """FLSS trains FedAvg's CNN, or a ResNet, at 20 clients."""

    clients: Size = 20
    model: str = "fedavgcnn"


@dataclass(frozen=True)
class Kind:
    """A set of images: how it is read, how large it is, and the mean and deviation of its channels from 0 to 1."""

    name: str
    title: str
    files: str
    read: Callable[[Path], tuple[Images, Images]]
    shape: tuple[int, int, int]
    samples: tuple[int, int]  # training and test
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    classes: int = 10


MNIST = Kind(
    name="mnist",
    title="MNIST",
    files="the four official idx files, plain or .gz",
    read=partial(idx.read, name="MNIST"),
    shape=(1, 28, 28),
    samples=(60_000, 10_000),
    mean=(0.1307,),
    deviation=(0.3081,),
)
FMNIST = Kind(
    name="fmnist",
    title="Fashion-MNIST",
    files="the four official idx files, plain or .gz",
    read=partial(idx.read, name="Fashion-MNIST"),
    shape=(1, 28, 28),
    samples=(60_000, 10_000),
    mean=(0.2860,),
    deviation=(0.3530,),
)
CIFAR10 = Kind(
    name="cifar10",
    title="CIFAR-10",
    files="the official binary or python batches",
    read=cifar.read,
    shape=(3, 32, 32),
    samples=(50_000, 10_000),
    mean=(0.4914, 0.4822, 0.4465),
    deviation=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = Kind(
    name="cifar100",
    title="CIFAR-100",
    files="the official binary or python files",
    read=partial(cifar.read, name="CIFAR-100"),
    shape=cifar.SHAPE,
    samples=(50_000, 10_000),
    mean=(0.5071, 0.4865, 0.4409),
    deviation=(0.2673, 0.2564, 0.2762),
    classes=100,
)
TINY_IMAGENET = Kind(
    name="tiny-imagenet",
    title="Tiny ImageNet",
    files="the official zip or the folder in it, and Pillow to decode them",
    read=tinyimagenet.read,
    shape=tinyimagenet.SHAPE,
    samples=(100_000, 10_000),
    mean=(0.4802, 0.4481, 0.3975),
    deviation=(0.2770, 0.2691, 0.2821),
    classes=tinyimagenet.CLASSES,
)


def make(kind: Kind, options: ImageOptions, data: Path | None) -> Task:
    """Images spread over clients; who is tested on the official test images, see :class:`SpreadOptions`."""
    check(kind.name, options)
    made = generated(kind.name, options, data)
    images, trains = _generate(kind, options) if made else _read(kind, data)
    dealt = spread(kind.name, options, images.label, trains, "images")
    if len(dealt.index) < len(images):  # it ascends, so otherwise it is all of them: Tiny ImageNet takes 1.4 GB
        images = images.take(dealt.index)
    source, mean, deviation = kind.title, kind.mean, kind.deviation
    if made:
        source = f"generated in the shape of {kind.title} (data_seed {options.data_seed})"
        mean, deviation = (pictures.MEAN,) * kind.shape[0], (pictures.DEVIATION,) * kind.shape[0]
    if options.normalise == "half":
        mean = deviation = (0.5,) * kind.shape[0]
    federation = Federation.from_arrays(
        client=dealt.owner, features={"image": images.image}, label=images.label, test=dealt.test
    )
    return Task(
        federation,
        lambda: network(options.model, kind.shape, mean, deviation, kind.classes),
        nn.CrossEntropyLoss(reduction="none"),
        metrics={"accuracy": accuracy},
        name=kind.name,
        source=f"{source}, {dealt.about}, model {options.model}"
        + " on pixels from -1 to 1" * (options.normalise == "half"),
        eval_batch=500,  # the first convolution of a sub-model of table 3 takes a quarter of a megabyte per image
    )


def _read(kind: Kind, data: Path | None) -> tuple[Images, int]:
    """All images, and how many of them, the first ones, are for training."""
    train, test = kind.read(data_folder(kind.name, data, kind.files))
    return Images.joined([train, test]), len(train)


def _generate(kind: Kind, options: ImageOptions) -> tuple[Images, int]:
    """The same of generated pictures, of which those to test on have the first numbers."""
    train, test = counts(options, kind.samples)
    made = pictures.generate(kind.shape, test + train, options.data_seed, classes=kind.classes)
    return made.take(np.roll(np.arange(len(made)), -test)), train


# FedDD gives the epochs (table 4) but neither rate nor batch size; these are common ones.
_S3 = {"cohort": 10, "lr": 0.01, "batch_size": 32}
S4_SETTINGS = {"cohort": 20, "lr": 0.01, "batch_size": 128, "epochs": 5}
"""All 20 clients take part in each of 400 rounds (FLSS, 4.1)."""


def _entry(kind: Kind, options: type[ImageOptions], rounds: int, settings: dict[str, float]) -> Entry:
    return Entry(
        name=kind.name,
        about=f"image classification, {kind.title}",
        needs=f"nothing: it is generated, or {kind.files}",
        options=options,
        make=partial(make, kind),
        rounds=rounds,
        settings=settings,
    )


ENTRIES = (
    _entry(MNIST, MnistOptions, 100, {**_S3, "epochs": 1}),
    _entry(FMNIST, FmnistOptions, 100, {**_S3, "epochs": 3}),
    _entry(CIFAR10, CifarOptions, 100, {**_S3, "epochs": 5}),
    _entry(CIFAR100, S4Options, 400, S4_SETTINGS),
    _entry(TINY_IMAGENET, S4Options, 400, S4_SETTINGS),
)
