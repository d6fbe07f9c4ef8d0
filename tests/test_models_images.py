"""The image networks of S3 and S4: their sizes, what they compute, and that vmap carries them."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedslice.models.images import MODELS, ImageClassifier, network, widths
from layouts import one_sentence

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def make(name: str, shape: tuple[int, int, int]) -> ImageClassifier:
    return ImageClassifier(name, shape, (0.4, 0.5, 0.6)[: shape[0]], (0.2, 0.3, 0.25)[: shape[0]])


def size(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def test_sizes_are_those_of_the_paper() -> None:
    assert size(make("mlp", MNIST)) == 85_614
    assert size(make("cnn1", MNIST)) == 21_840
    assert size(make("cnn2", CIFAR)) == 587_194
    found = {kind: [size(make(f"vgg-{kind}{n}", CIFAR)) for n in range(1, 6)] for kind in "ab"}
    assert found["a"] == [3_973_194, 2_203_466, 2_191_206, 2_153_446, 2_153_446]
    assert found["b"] == [3_973_194, 2_767_690, 1_578_826, 1_458_090, 609_962]


SIZES = [
    ("fedavgcnn", MNIST, 10, 582_026),
    ("fedavgcnn", CIFAR, 10, 878_538),
    ("fedavgcnn", CIFAR, 100, 924_708),
    ("fedavgcnn", (3, 64, 64), 200, 5_694_600),
    ("resnet18", CIFAR, 10, 11_181_642),
    ("resnet50", CIFAR, 100, 23_712_932),
]


@pytest.mark.parametrize(("name", "shape", "classes", "expected"), SIZES)
def test_sizes_are_those_that_s4_counts_by(name: str, shape: tuple[int, int, int], classes: int, expected: int) -> None:
    assert size(network(name, shape, (0.5,), (0.5,), classes)) == expected


def test_widths_are_each_layers_outputs_and_prefixes_of_the_whole_model() -> None:
    for kind in ("a", "b"):
        whole = dict(make(f"vgg-{kind}1", CIFAR).named_parameters())
        for number in range(1, 6):
            own = widths(kind, number)
            part = dict(make(f"vgg-{kind}{number}", CIFAR).named_parameters())
            assert [value.shape[0] for name, value in part.items() if name.endswith("weight")] == list(own)
            assert part.keys() == whole.keys()
            for name, value in part.items():
                assert all(a <= b for a, b in zip(value.shape, whole[name].shape, strict=True))
                assert value.shape[2:] == whole[name].shape[2:]
    assert widths("b", 5) == (32, 96, 128, 128, 256, 80, 80, 10)
    told = one_sentence(widths, "a", 6, ends=("?",))
    assert told.startswith("unknown sub-model 'vgg-a6'; did you mean 'vgg-a")


def plain(name: str, model: ImageClassifier, image: Tensor) -> Tensor:
    """S3's table 2 or FedAvg's CNN, written out, ReLU and pooling in its order."""
    p, f = dict(model.named_parameters()), nn.functional
    mean, deviation = (torch.tensor(v[: image.shape[1]]).view(-1, 1, 1) for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)))
    x = (image.float() / 255 - mean) / deviation
    if name == "cnn1":
        for n in (1, 2):
            x = f.relu(f.max_pool2d(f.conv2d(x, p[f"conv{n}.weight"], p[f"conv{n}.bias"]), 2))
    elif name == "fedavgcnn":
        for n in (1, 2):
            x = f.max_pool2d(f.relu(f.conv2d(x, p[f"conv{n}.weight"], p[f"conv{n}.bias"])), 2)
    elif name != "mlp":
        for n in range(1, len(MODELS[name].convolutions) + 1):
            x = f.max_pool2d(f.relu(f.conv2d(x, p[f"conv{n}.weight"], p[f"conv{n}.bias"], padding=1)), 2)
    x = x.flatten(1)
    for n in range(1, len(MODELS[name].hidden) + 1):
        x = f.relu(x @ p[f"full{n}.weight"].T + p[f"full{n}.bias"])
    return x @ p["classes.weight"].T + p["classes.bias"]


CASES = [("mlp", MNIST), ("cnn1", MNIST), ("cnn2", CIFAR), ("vgg-b5", CIFAR), ("fedavgcnn", CIFAR)]
CASES += [("cnn1", CIFAR), ("mlp", CIFAR)]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_outputs_and_gradients_are_those_of_the_paper_written_out(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = make(name, shape)
    image = torch.randint(0, 256, (4, *shape), dtype=torch.uint8)
    found, expected = model(image=image), plain(name, model, image)
    assert found.shape == (4, 10)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(model(image=image.float()), found, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "shape"), CASES[:5])
def test_stacked_under_vmap_each_is_itself(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    models = [make(name, shape) for _ in range(3)]
    image = torch.randint(0, 256, (3, 2, *shape), dtype=torch.uint8)
    parameters, buffers = stack_module_state(models)
    buffers = {key: value[0] for key, value in buffers.items()}
    together = vmap(lambda p, x: functional_call(models[0], (p, buffers), kwargs={"image": x}))(parameters, image)
    for one, model, own in zip(together, models, image, strict=True):
        torch.testing.assert_close(one, model(own), rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_told() -> None:
    told = one_sentence(make, "vgg-a1", MNIST)
    assert told == (
        "model 'vgg-a1' halves its input 5 times, which images of 28 by 28 pixels are too small for; "
        "choose another model."
    )
    assert one_sentence(make, "cnn3", MNIST, ends=("?",)).startswith("unknown model 'cnn3'; did you mean 'cnn")
    told = one_sentence(network, "resnet", MNIST, (0.5,), (0.5,), 10, ends=("?",))
    assert told.startswith("unknown model 'resnet'; did you mean 'resnet")


def test_the_last_layer_has_an_output_for_each_class() -> None:
    for name in ("mlp", "fedavgcnn", "resnet18"):
        model = network(name, MNIST, (0.5,), (0.5,), 7)
        assert model(image=torch.zeros(2, *MNIST, dtype=torch.uint8)).shape == (2, 7)
