"""The image tasks: every sample at its client, the test set with nobody, and runs that learn on both engines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedslice import Experiment, recipes
from fedslice.data.federation import Federation
from fedslice.data.ways import WAYS, partition
from fedslice.task import Task
from fedslice.tasks import images
from layouts import one_sentence
from test_datasets_cifar import binary, write
from test_datasets_cifar import some as some_cifar
from test_datasets_idx import some, write_idx

ENTRIES = {entry.name: entry for entry in images.ENTRIES}


FedDD = {name: ENTRIES[name] for name in ("mnist", "fmnist", "cifar10")}


def build(name: str, data: Path | None = None, **options: Any) -> Task:
    return ENTRIES[name].build(options, data)


def pixels(federation: Federation) -> torch.Tensor:
    column = federation.train.features["image"]
    assert isinstance(column, torch.Tensor)
    return column


@pytest.mark.parametrize("name", ["mnist", "fmnist"])
@pytest.mark.parametrize("way", WAYS)
def test_every_sample_is_at_its_client(tmp_path: Path, name: str, way: str) -> None:
    write_idx(tmp_path, train=300, test=20)
    image, label = some(300, 0)
    owner = partition(way, label.astype(np.int64), 4, 3)
    task = build(name, tmp_path, partition=way, clients=4, data_seed=3)
    federation = task.federation
    assert federation.ids.tolist() == [0, 1, 2, 3]
    assert pixels(federation).dtype == torch.uint8
    for client, (start, end) in enumerate(zip(federation.train.offsets, federation.train.offsets[1:], strict=False)):
        assert np.array_equal(pixels(federation)[start:end, 0].numpy(), image[owner == client])
        assert np.array_equal(federation.train.label[start:end].numpy(), label[owner == client])
    assert np.array_equal(federation.test.features["image"].numpy()[:, 0], some(20, 1)[0])  # type: ignore[union-attr]
    assert federation.test.label.tolist() == some(20, 1)[1].tolist()
    assert federation.test.sizes.sum() == 0, "no test sample belongs to a client"
    assert f"{(owner >= 0).sum()} training images over 4 clients by {way}" in task.source


def test_cifar_and_a_subset_of_it(tmp_path: Path) -> None:
    write(tmp_path, "bin", binary)
    task = build("cifar10", tmp_path, clients=3, train=9, data_seed=1)
    every = {image.tobytes() for number in range(5) for image in some_cifar(number)[0]}
    chosen = [image.tobytes() for image in pixels(task.federation).numpy()]
    assert len(chosen) == len(set(chosen)) == 9
    assert set(chosen) < every
    other = [image.tobytes() for image in pixels(build("cifar10", tmp_path, clients=3, train=9).federation).numpy()]
    assert set(other) != set(chosen)
    assert len(task.federation.test) == 3
    assert task.source.startswith("CIFAR-10, 9 training images over 3 clients by iid, 3 test images, model cnn2")


KINDS = [images.MNIST, images.FMNIST, images.CIFAR10, images.CIFAR100, images.TINY_IMAGENET]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_generated_pictures_say_so_and_test_pictures_are_not_trained_on(kind: images.Kind) -> None:
    options = ENTRIES[kind.name].check({"clients": 15, "partition": "dirichlet", "beta": 2, "data_seed": 4})
    task = images.make(replace(kind, samples=(1500, 200)), options, None)
    trained, tested = task.federation.train.features["image"], task.federation.test.features["image"]
    assert isinstance(tested, torch.Tensor)
    assert isinstance(trained, torch.Tensor)
    assert trained.shape == (1500, *kind.shape)
    assert tested.shape == (200, *kind.shape)
    assert set(task.federation.train.label.tolist()) == set(range(kind.classes))
    assert not {one.numpy().tobytes() for one in tested} & {one.numpy().tobytes() for one in trained}
    assert task.source.startswith(
        f"generated in the shape of {kind.title} (data_seed 4), 1,500 training images over 15"
    )
    assert "clients by dirichlet (beta 2), 200 test images" in task.source


def test_defaults_are_those_of_the_paper(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", train=100)
    write_idx(tmp_path / "fashion-mnist", train=100)
    write(tmp_path, "bin", lambda p, y: binary(np.tile(p, (7, 1)), np.tile(y, 7)))
    found = {name: sum(shape.numel() for shape in build(name, tmp_path).shapes.values()) for name in FedDD}
    assert found == {"mnist": 85_614, "fmnist": 21_840, "cifar10": 587_194}
    assert {name: entry.settings["epochs"] for name, entry in FedDD.items()} == {
        "mnist": 1,
        "fmnist": 3,
        "cifar10": 5,
    }
    assert build("cifar10", tmp_path, model="vgg-b5").shapes["conv5.weight"] == (256, 128, 3, 3)


REFUSED: dict[str, tuple[str, dict[str, Any], str | None, str]] = {
    "no data": ("mnist", {"source": "official"}, None, "task 'mnist' needs data (the four official idx files"),
    "data for nothing": ("fmnist", {"source": "generated"}, "x", "source=generated needs no data, so --data x has no"),
    "beta": ("mnist", {"beta": 0.1}, None, "task mnist: beta=0.1 is for partition=dirichlet or pfl-dirichlet; leave"),
    "classes": ("mnist", {"classes": 3}, None, "task mnist: classes=3 is for partition=pathological or pfl-"),
    "partition": ("cifar10", {"partition": "even"}, None, "task cifar10: partition="),
    "beta of nothing": ("mnist", {"partition": "dirichlet", "beta": 0}, None, "task mnist: beta=0"),
    "clients": ("mnist", {"train": 5}, None, "clients=100 for 5 samples"),
    "model": ("mnist", {"train": 200, "model": "vgg-a1"}, None, "model 'vgg-a1' halves its input 5 times"),
    "data_seed": ("mnist", {"data_seed": -1}, None, "task mnist: data_seed=-1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    name, options, data, saying = REFUSED[case]
    assert saying in one_sentence(ENTRIES[name].build, options, None if data is None else Path(data))


def test_more_images_than_there_are(tmp_path: Path) -> None:
    write_idx(tmp_path)
    told = one_sentence(ENTRIES["mnist"].build, {"train": 13}, tmp_path)
    assert told == "task mnist: train=13 but there are 12 training images; give fewer."


@pytest.mark.parametrize("recipe", ["fedavg", "feddd"])
def test_both_engines_train_alike_and_learn(recipe: str) -> None:
    entry = ENTRIES["mnist"]
    task = build("mnist", train=600, clients=6, partition="non-iid-a")
    usual = {**entry.settings, "cohort": 6, "lr": 0.1, "batch_size": 10}
    if recipe == "feddd":
        usual.pop("cohort")  # everyone takes part
    found = []
    for engine in ("vectorized", "sequential"):
        rows = Experiment(task, recipes.get(recipe, **usual), rounds=4, eval_every=4, engine=engine).run()
        found.append(rows[-1])
        assert rows[-1]["train_loss"] < rows[0]["train_loss"] - 0.1
    for name in ("train_loss", "test_loss", "test_accuracy"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-3)
