"""Residual networks: what they compute, that a sample stands alone, and that both engines train them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedslice import Experiment, Federation, Task, recipes
from fedslice.models.resnet import RESNETS, ResNet, Stages
from toys import double

SHAPE = (3, 8, 8)
SMALL = {"basic": Stages((1, 2), False, 32), "bottleneck": Stages((2, 1), True, 32)}


def make(stages: Stages, seed: int = 0) -> ResNet:
    torch.manual_seed(seed)
    return ResNet(stages, SHAPE, (0.5,) * 3, (0.25,) * 3, 5)


def images(samples: int, *before: int) -> Tensor:
    return torch.randint(0, 256, (*before, samples, *SHAPE), dtype=torch.uint8, generator=torch.manual_seed(1))


def plain(model: ResNet, stages: Stages, image: Tensor) -> Tensor:
    """He et al.'s table 1 written out from the weights alone, in their order."""
    weights = iter(model.parameters())

    def unit(x: Tensor, stride: int = 1) -> Tensor:
        kernel, scale, shift = next(weights), next(weights), next(weights)
        y = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        groups = y.reshape(len(y), 32, -1)
        mean, spread = groups.mean(2, keepdim=True), groups.var(2, correction=0, keepdim=True)
        normal = ((groups - mean) / (spread + 1e-5).sqrt()).view_as(y)
        return normal * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)

    x = F.relu(unit((image / 255 - 0.5) / 0.25, 2))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(stages.blocks):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            narrow = F.relu(unit(x)) if stages.bottleneck else x
            y = unit(F.relu(unit(narrow, stride)))
            x = F.relu(y + (unit(x, stride) if y.shape != x.shape else x))
    return x.mean((2, 3)) @ next(weights).T + next(weights)


@pytest.mark.parametrize("kind", SMALL)
def test_outputs_are_those_of_the_paper_written_out(kind: str) -> None:
    model, image = make(SMALL[kind]), images(3)
    torch.testing.assert_close(model(image), plain(model, SMALL[kind], image), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", SMALL)
def test_a_sample_is_the_same_alone(kind: str) -> None:
    model, image = make(SMALL[kind]), images(3)
    torch.testing.assert_close(model(image[1:2]), model(image)[1:2], rtol=1e-4, atol=1e-4)


def test_the_stages_are_those_of_the_paper() -> None:
    """Layers with weights: 18 and 50, the shortcuts not counted."""
    for name, depth in (("resnet18", 18), ("resnet50", 50)):
        model = make(RESNETS[name])
        counted = [
            part
            for path, part in model.named_modules()
            if isinstance(part, nn.Conv2d | nn.Linear) and "shortcut" not in path
        ]
        assert len(counted) == depth


def task(stages: Stages) -> Task:
    federation = Federation.from_arrays(
        client=[0, 0, 0, 1, 1, 1], features={"image": images(6)}, label=torch.tensor([0, 1, 2, 2, 3, 4]), test=0.0
    )
    return Task(federation, make(stages), nn.CrossEntropyLoss(reduction="none"))


@pytest.mark.parametrize("kind", SMALL)
def test_both_engines_train_alike(kind: str) -> None:
    asked = recipes.get("fedavg", cohort=2, lr=0.01, batch_size=3, epochs=1)
    with double():  # two numbers that are normalised together may be nearly the same
        problem, found = task(SMALL[kind]), []
        for engine in ("vectorized", "sequential"):
            experiment = Experiment(problem, asked, rounds=1, eval_every=1, engine=engine)
            experiment.run()
            found.append(experiment.model)
    for name, start in problem.initial(0).items():
        assert not torch.equal(found[0][name], start)
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-7, atol=1e-9)


def test_resnet18_is_itself_under_vmap() -> None:
    models, image = [make(RESNETS["resnet18"], seed=seed) for seed in (0, 1)], images(2, 2)
    parameters, buffers = stack_module_state(models)
    buffers = {key: value[0] for key, value in buffers.items()}
    together = vmap(lambda p, x: functional_call(models[0], (p, buffers), kwargs={"image": x}))(parameters, image)
    for one, model, own in zip(together, models, image, strict=True):
        torch.testing.assert_close(one, model(own), rtol=1e-4, atol=1e-4)
