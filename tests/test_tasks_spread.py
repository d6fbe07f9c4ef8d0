"""Sets without clients: official and merged splits, on images and on articles."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedslice import Experiment, recipes, tasks
from fedslice.data.ways import held_out, partition, shards
from fedslice.task import Task
from layouts import one_sentence
from test_datasets_cifar100 import some as some_cifar
from test_datasets_cifar100 import write as write_cifar
from test_datasets_idx import some, write_idx


def build(name: str, data: Path | None = None, **options: Any) -> Task:
    return tasks.get(name).build(options, data)


def bytes_of(samples: Any) -> list[bytes]:
    return [image.numpy().tobytes() for image in samples.features["image"]]


@pytest.mark.parametrize("way", ["iid", "pfl-dirichlet", "pfl-pathological"])
def test_merged_samples_are_spread_and_a_quarter_of_each_clients_is_held_out(tmp_path: Path, way: str) -> None:
    write_idx(tmp_path, train=300, test=100)
    image, label = (np.concatenate(both) for both in zip(some(300, 0), some(100, 1), strict=True))
    owner = partition(way, label.astype(np.int64), 4, 3)
    task = build("mnist", tmp_path, split="pfllib", partition=way, clients=4, data_seed=3)
    used = np.flatnonzero(owner >= 0)
    test = held_out(owner[used], 3)
    for part, mask in ((task.federation.train, ~test), (task.federation.test, test)):
        for client in range(4):
            mine = used[mask & (owner[used] == client)]
            start, end = part.offsets[client], part.offsets[client + 1]
            assert np.array_equal(part.features["image"][start:end, 0].numpy(), image[mine])  # type: ignore[index]
            assert part.label[start:end].tolist() == label[mine].tolist()
        assert part.offsets[-1] == len(part), "every sample belongs to a client"
    sizes = task.federation.train.sizes + task.federation.test.sizes
    assert (task.federation.train.sizes == sizes * 3 // 4).all()
    assert f"MNIST, {len(used)} images over 4 clients by {way}" in task.source
    assert f", of each client's a quarter held out ({test.sum()}), model mlp" in task.source


def test_the_global_model_is_tested_on_all_that_is_held_out(tmp_path: Path) -> None:
    write_idx(tmp_path, train=80, test=40)
    task = build("mnist", tmp_path, split="pfllib", clients=4)
    rows = Experiment(task, recipes.get("fedavg", cohort=4, lr=0.1, batch_size=10), rounds=1, eval_every=1).run()
    start = task.initial(0)
    features, label = task.federation.test.batch(torch.arange(len(task.federation.test)))
    assert len(label) == 32, "of each client's 30 samples 8 are held out"
    right = task.forward(start, features).argmax(1) == label
    assert rows[0]["test_accuracy"] == pytest.approx(right.double().mean().item())


def test_some_of_the_merged_samples(tmp_path: Path) -> None:
    write_idx(tmp_path, train=30, test=20)
    task = build("mnist", tmp_path, split="pfllib", train=48, clients=2)
    assert len(task.federation.train) + len(task.federation.test) == 48
    official = {one.tobytes() for one in some(20, 1)[0]}
    assert official & set(bytes_of(task.federation.train)), "official test images are among those trained on"
    told = one_sentence(tasks.get("mnist").build, {"split": "pfllib", "train": 51}, tmp_path)
    assert told == "task mnist: train=51 but there are 50 images; give fewer."
    told = one_sentence(tasks.get("mnist").build, {"split": "pfllib", "clients": 30}, tmp_path)
    assert told.startswith("client 20 has 1 sample, expected at least 2")


def test_generated_pictures_are_merged_too() -> None:
    task = build("mnist", split="pfllib", train=200, clients=5, partition="pfl-pathological")
    held_in, held_out_ = bytes_of(task.federation.train), bytes_of(task.federation.test)
    assert len(held_in) + len(held_out_) == len(set(held_in) | set(held_out_)) == 200
    assert task.source.startswith(
        "generated in the shape of MNIST (data_seed 0), 200 images over 5 clients by pfl-path"
    )


def test_shards_bring_test_images_of_the_clients_own_classes(tmp_path: Path) -> None:
    write_idx(tmp_path, train=300, test=100)
    (image, label), (seen, tested) = some(300, 0), some(100, 1)
    owner, test = shards(label.astype(np.int64), tested.astype(np.int64), 5, 3, classes=3, most=20)
    task = build("mnist", tmp_path, partition="shards", clients=5, classes=3, limit=20, data_seed=3)
    federation = task.federation
    for part, owners, pictures, names in (
        (federation.train, owner, image, label),
        (federation.test, test, seen, tested),
    ):
        for client in range(5):
            mine, start, end = owners == client, part.offsets[client], part.offsets[client + 1]
            assert np.array_equal(part.features["image"][start:end, 0].numpy(), pictures[mine])  # type: ignore[index]
            assert part.label[start:end].tolist() == names[mine].tolist()
    assert federation.train.sizes.tolist() == [20] * 5
    assert len(federation.test) == 100, "the global model is tested on all of them"
    assert task.source == (
        "MNIST, 100 training images over 5 clients by shards (3 each, at most 20 images), 100 test images divided by "
        "class, model mlp"
    )


def test_what_does_not_go_with_shards_is_told() -> None:
    for options, saying in (
        ({"partition": "iid", "limit": 20}, "task mnist: limit=20 is for partition=shards; leave one of them out."),
        (
            {"partition": "shards", "split": "pfllib"},
            "task mnist: partition=shards deals the official test samples out, which split=pfllib would merge",
        ),
        ({"partition": "shards", "limit": 0}, "task mnist: limit=0: input should be greater than or equal to 1."),
        ({"partition": "shard"}, "task mnist: partition='shard': input should be 'iid', 'non-iid-a'"),
    ):
        assert one_sentence(tasks.get("mnist").build, options, None).startswith(saying)
    assert "'shards'" in one_sentence(tasks.get("mnist").build, {"partition": "shard"}, None)


def test_fine_classes_of_cifar100(tmp_path: Path) -> None:
    task = build("cifar100", write_cifar(tmp_path, "binary"), clients=4, partition="pathological", classes=20)
    assert np.array_equal(task.federation.test.label.numpy(), some_cifar("test")[2])
    assert task.shapes["classes.weight"] == (100, 512)
    assert sum(shape.numel() for shape in task.shapes.values()) == 924_708
    assert task.source.endswith("over 4 clients by pathological (20 classes each), 4 test images, model fedavgcnn")
    told = one_sentence(tasks.get("cifar100").build, {"partition": "pathological", "classes": 101}, tmp_path)
    assert "101 classes per client, expected at most the" in told


def test_normalising_to_minus_one_to_one() -> None:
    image = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 1, 28, 28)
    task = build("mnist", train=100, normalise="half")
    ends = [task.build(0).normalise(image)[:, 0, 0, 0].tolist()]  # type: ignore[operator]
    assert ends == [[-1, 1]]
    assert task.source.endswith("model mlp on pixels from -1 to 1")
    assert build("mnist", train=100).build(0).normalise(image)[:, 0, 0, 0].tolist() == [-2, 2]  # type: ignore[operator]


def test_s4s_settings() -> None:
    for name in ("cifar100", "tiny-imagenet", "agnews"):
        entry = tasks.get(name)
        assert entry.rounds == 400
        assert entry.settings == {"cohort": 20, "lr": 0.01, "batch_size": 128, "epochs": 5}
        assert entry.check({}).clients == 20  # type: ignore[attr-defined]


def test_both_engines_train_fedavgs_cnn_alike() -> None:
    task = build("mnist", train=60, clients=2, model="fedavgcnn", split="pfllib")
    found = []
    for engine in ("vectorized", "sequential"):
        recipe = recipes.get("fedavg", cohort=2, lr=0.05, batch_size=10, epochs=2)
        found.append(Experiment(task, recipe, rounds=2, eval_every=2, engine=engine).run()[-1])
    for name in ("train_loss", "test_loss", "test_accuracy"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-3)
