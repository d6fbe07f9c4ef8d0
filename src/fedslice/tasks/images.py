"""Image classification on MNIST, Fashion-MNIST and CIFAR-10 (S3, section 6.1), or on generated pictures like them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import nn

from fedslice import rng
from fedslice.datasets import cifar, idx, pictures
from fedslice.datasets.images import Images
from fedslice.errors import UserError
from fedslice.federation import Federation
from fedslice.measure import accuracy
from fedslice.models.images import ImageClassifier
from fedslice.partition import Way, partition
from fedslice.task import Task
from fedslice.tasks.entry import Entry, Options, Seed, data_folder

Size = Annotated[int, Field(ge=1, le=10**9)]
NOBODY = -1  # owns the test images: the global model is tested on all of them, and none belongs to a client


class ImageOptions(Options):
    """``source`` is the official set if data are given and a generated one if not."""

    source: Literal["official", "generated"] | None = None
    partition: Way = "iid"
    clients: Size = 100
    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5  # of partition=dirichlet
    classes: Annotated[int, Field(ge=1, le=10)] = 2  # per client, of partition=pathological
    train: Size | None = None  # so many training images, drawn at random
    model: str
    data_seed: Seed = 0  # of the partition, of that draw, and of what is generated


class MnistOptions(ImageOptions):
    """S3 trains the MLP on MNIST (table 2)."""

    model: str = "mlp"


class FmnistOptions(ImageOptions):
    """S3 trains CNN1 on Fashion-MNIST (table 2)."""

    model: str = "cnn1"


class CifarOptions(ImageOptions):
    """S3 trains CNN2 and the sub-models of tables 3 and 6 on CIFAR-10."""

    model: str = "cnn2"


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


def make(kind: Kind, options: ImageOptions, data: Path | None) -> Task:
    """Training images spread over clients; the test images belong to nobody."""
    for name, way in (("beta", "dirichlet"), ("classes", "pathological")):
        value = getattr(options, name)
        if options.partition != way and value != type(options).model_fields[name].default:
            raise UserError(f"task {kind.name}: {name}={value} is for partition={way}; leave one of them out.")
    if options.source == "official" or (options.source is None and data is not None):
        train, test = kind.read(data_folder(kind.name, data, kind.files))
        train, source, mean, deviation = _some(kind, options, train), kind.title, kind.mean, kind.deviation
    elif data is not None:
        raise UserError(
            f"task {kind.name}: source=generated needs no data, so --data {data} has no place; leave it out."
        )
    else:
        held_in, held_out = options.train or kind.samples[0], kind.samples[1]
        test = pictures.generate(kind.shape, held_out, options.data_seed)
        train = pictures.generate(kind.shape, held_in, options.data_seed, first=held_out)
        source = f"generated in the shape of {kind.title} (data_seed {options.data_seed})"
        mean, deviation = (pictures.MEAN,) * kind.shape[0], (pictures.DEVIATION,) * kind.shape[0]

    owner = partition(options.partition, train.label, options.clients, options.data_seed, options.beta, options.classes)
    used = np.flatnonzero(owner >= 0)
    train = train.take(used)
    federation = Federation.from_arrays(
        client=np.concatenate([owner[used], np.full(len(test), NOBODY)]),
        features={"image": np.concatenate([train.image, test.image])},
        label=np.concatenate([train.label, test.label]),
        test=np.arange(len(train) + len(test)) >= len(train),
    )
    return Task(
        federation,
        lambda: ImageClassifier(options.model, kind.shape, mean, deviation),
        nn.CrossEntropyLoss(reduction="none"),
        metrics={"accuracy": accuracy},
        name=kind.name,
        source=f"{source}, {len(train):,} training images {_spread(options)}, {len(test):,} test images, "
        f"model {options.model}",
        eval_batch=500,  # the first convolution of a sub-model of table 3 takes a quarter of a megabyte per image
    )


def _some(kind: Kind, options: ImageOptions, train: Images) -> Images:
    """As many training images as asked for, in the order of the files."""
    if options.train is None:
        return train
    if options.train > len(train):
        raise UserError(
            f"task {kind.name}: train={options.train} but there are {len(train):,} training images; give fewer."
        )
    chance = rng.generator(options.data_seed, rng.Purpose.SPLIT)
    return train.take(np.sort(chance.choice(len(train), options.train, replace=False)))


def _spread(options: ImageOptions) -> str:
    detail = {"dirichlet": f" (beta {options.beta:g})", "pathological": f" ({options.classes} classes each)"}
    return f"over {options.clients} clients by {options.partition}{detail.get(options.partition, '')}"


def _entry(kind: Kind, options: type[ImageOptions], epochs: int) -> Entry:
    """S3 gives the epochs (table 4) but neither rate nor batch size; these are common ones."""
    return Entry(
        name=kind.name,
        about=f"image classification, {kind.title}",
        needs=f"nothing: it is generated, or {kind.files}",
        options=options,
        make=partial(make, kind),
        rounds=100,
        settings={"cohort": 10, "lr": 0.01, "batch_size": 32, "epochs": epochs},
    )


ENTRIES = (_entry(MNIST, MnistOptions, 1), _entry(FMNIST, FmnistOptions, 3), _entry(CIFAR10, CifarOptions, 5))
