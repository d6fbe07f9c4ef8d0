"""Generated pictures: a picture is its seed and its number; a convolution learns them, a linear model less well."""

import numpy as np
import pytest
import torch
from torch import nn

from fedslice.datasets import pictures
from fedslice.datasets.images import Images

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize("shape", [MNIST, CIFAR])
def test_a_picture_is_its_seed_and_its_number(shape: tuple[int, int, int]) -> None:
    whole = pictures.generate(shape, 1200, 5)
    assert whole.image.shape == (1200, *shape)
    assert whole.image.dtype == np.uint8
    for first, samples in ((0, 10), (990, 20), (1000, 200), (700, 1)):
        part = pictures.generate(shape, samples, 5, first=first)
        assert np.array_equal(part.image, whole.image[first : first + samples])
        assert np.array_equal(part.label, whole.label[first : first + samples])
    assert not np.array_equal(pictures.generate(shape, 10, 6).image, whole.image[:10])


def test_classes_are_even_and_pixels_have_the_mean_and_deviation_they_are_normalised_by() -> None:
    made = pictures.generate(CIFAR, 2000, 0)
    counts = np.bincount(made.label, minlength=10)
    assert counts.min() > 150
    assert counts.max() < 250
    scaled = made.image / 255
    assert np.abs(scaled.mean((0, 2, 3)) - pictures.MEAN).max() < 0.02
    assert np.abs(scaled.std((0, 2, 3)) - pictures.DEVIATION).max() < 0.03


def test_as_many_classes_as_asked_for() -> None:
    made = pictures.generate(CIFAR, 2000, 0, classes=100)
    counts = np.bincount(made.label, minlength=100)
    assert len(counts) == 100
    assert counts.min() > 3
    ten, again = pictures.generate(CIFAR, 5, 0), pictures.generate(CIFAR, 5, 0, classes=10)
    assert np.array_equal(ten.image, again.image)


def learned(model: nn.Module, train: Images, test: Images, lr: float, epochs: int) -> float:
    """Test accuracy after some epochs of SGD."""
    image, label, values = torch.from_numpy(train.image), torch.from_numpy(train.label), list(model.parameters())
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for some in torch.randperm(len(label), generator=order).split(25):
            loss = nn.functional.cross_entropy(model(image[some]), label[some])
            for value, slope in zip(values, torch.autograd.grad(loss, values), strict=True):
                value.data.sub_(slope, alpha=lr)
    with torch.no_grad():
        found = model(torch.from_numpy(test.image)).argmax(1)
    return float((found.numpy() == test.label).mean())


class Scaled(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return (image / 255 - pictures.MEAN) / pictures.DEVIATION


def test_convolutions_learn_what_a_linear_model_cannot() -> None:
    train, test = pictures.generate(MNIST, 1500, 0), pictures.generate(MNIST, 500, 0, first=1500)
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()]
    convolutions = learned(nn.Sequential(Scaled(), *layers, nn.Linear(400, 10)), train, test, 0.1, 5)
    rates = (0.001, 0.003, 0.01)
    linear = max(learned(nn.Sequential(Scaled(), nn.Flatten(), nn.Linear(784, 10)), train, test, r, 5) for r in rates)
    assert convolutions > 0.85
    assert 0.3 < linear < convolutions - 0.2
