"""The image networks of FedDD and FLSS: their sizes, what they compute, and that vmap carries them."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedslice.models.images import MODELS, PAIRS, ImageClassifier, ImagePair, network, widths
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
    """FedDD's table 2 or FedAvg's CNN, written out, ReLU and pooling in its order."""
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


# --- FDRL -------------------------------------------------------------------------------------------------------------

FDRL = [
    ("fdrl-mlp", MNIST, 10, 549_696, 1_290),
    ("fdrl-cnn", CIFAR, 10, 307_192, 1_290),
    ("fdrl-cnn100", CIFAR, 100, 1_062_144, 25_700),
]


def pair_of(name: str, shape: tuple[int, int, int], classes: int = 10) -> ImagePair:
    found = network(name, shape, (0.4, 0.5, 0.6)[: shape[0]], (0.2, 0.3, 0.25)[: shape[0]], classes)
    assert isinstance(found, ImagePair)
    return found


@pytest.mark.parametrize(("name", "shape", "classes", "encoder", "head"), FDRL)
def test_sizes_are_those_of_s2(name: str, shape: tuple[int, int, int], classes: int, encoder: int, head: int) -> None:
    """|W| = |Q| and |H|; the single network has one encoder and half of the head's weights."""
    found = pair_of(name, shape, classes)
    assert size(found.shared) == size(found.private) == encoder
    assert size(found.head) == head
    assert size(found) == 2 * encoder + head
    single = network(PAIRS[name], shape, (0.5,), (0.5,), classes)
    assert size(single) == encoder + (head - classes) // 2 + classes


@pytest.mark.parametrize("name", ["fdrl-baseline-mlp", "fdrl-mlp"])
def test_the_published_mlp_ends_in_a_softmax(name: str) -> None:
    image = torch.randint(0, 256, (3, *MNIST), dtype=torch.uint8)
    found = []
    for variant in (name, f"{name}-softmax"):
        torch.manual_seed(0)
        found.append(network(variant, MNIST, (0.5,), (0.5,), 10)(image=image))
    assert torch.equal(found[0].softmax(-1), found[1])


def test_both_encoders_begin_apart() -> None:
    torch.manual_seed(0)
    found = pair_of("fdrl-mlp", MNIST)
    for one, other in zip(found.shared.parameters(), found.private.parameters(), strict=True):
        assert one.shape == other.shape
        assert not bool((one == other).any())


@pytest.mark.parametrize(("name", "shape", "classes"), [case[:3] for case in FDRL])
def test_a_pair_joins_what_two_single_encoders_give(name: str, shape: tuple[int, int, int], classes: int) -> None:
    """Without dropout; the encoders are those of the single network, without its last layer."""
    torch.manual_seed(0)
    model = pair_of(name, shape, classes).eval()
    image = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    features = []
    for encoder in (model.shared, model.private):
        single = network(PAIRS[name], shape, (0.4, 0.5, 0.6)[: shape[0]], (0.2, 0.3, 0.25)[: shape[0]], classes).eval()
        own = dict(single.named_parameters())
        with torch.no_grad():
            for key, value in encoder.named_parameters():
                own[key].copy_(value)
        seen: list[Tensor] = []
        single.get_submodule("classes").register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        single(image=image)
        assert bool((seen[0] >= 0).all()), "after ReLU, so that cosines lie between 0 and 1"
        features.append(seen[0])
    last = model.head.get_submodule("classes")
    expected = torch.cat(features, 1) @ last.weight.T + last.bias
    torch.testing.assert_close(model(image=image), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fdrl-cnn", "fdrl-baseline-cnn"])
def test_outputs_are_dropped_in_training_alone(name: str) -> None:
    """FDRL's code drops a share of 0.6 of CIFAR-10's logits; what is left is scaled up."""
    torch.manual_seed(0)
    model, image = network(name, CIFAR, (0.5,), (0.5,), 10), torch.randint(0, 256, (40, *CIFAR), dtype=torch.uint8)
    trained, tested = model.train()(image=image), model.eval()(image=image)
    dropped = trained == 0
    assert 0.5 < dropped.double().mean() < 0.7
    torch.testing.assert_close(trained[~dropped], tested[~dropped] / 0.4, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fdrl-cnn100", "fdrl-baseline-cnn100"])
def test_features_are_dropped_in_training_alone(name: str) -> None:
    """FDRL's code drops a share of 0.6 of CIFAR-100's features."""
    torch.manual_seed(0)
    model = network(name, CIFAR, (0.5,), (0.5,), 100)
    seen: list[Tensor] = []
    last = next(part for key, part in model.named_modules() if key.endswith("classes"))
    last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    image = torch.randint(0, 256, (20, *CIFAR), dtype=torch.uint8)
    for mode in (True, False):
        model.train(mode)(image=image)
    trained, tested = seen
    left = trained != 0
    assert 0.3 < left[tested > 0].double().mean() < 0.5
    torch.testing.assert_close(trained[left], tested[left] / 0.4, rtol=1e-4, atol=1e-5)
