"""Which layers have channels, which feeds which, and what a narrower network holds of each."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.network.graph import Layer, layers, network, prefixes, same_when_narrow
from fedslice.recipe import Recipe
from fedslice.slices import Width
from fedslice.task import Task
from fedslice.training.experiment import Experiment


def shapes_of(module: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in module.named_parameters() if value.requires_grad}


def narrowed(task: Task) -> Experiment:
    """Clients of two widths."""
    return Experiment(task, Recipe(slices=Width(widths="1,0.5")), rounds=1)


def read(module: nn.Module) -> dict[str, Layer]:
    return network(module, shapes_of(module))


class Own(nn.Module):
    """Named parts, and a forward that is given."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: nn.Module):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def pictures(flat: Callable[[Tensor], Tensor]) -> Own:
    """Two convolutions of pictures of 8 by 8, of which 2 by 2 are left, and two linear layers."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.one(x)), 2)
        return self.four(torch.tanh(self.three(flat(F.relu(self.two(x))))))

    return Own(
        forward,
        one=nn.Conv2d(1, 4, 3, padding=1),
        two=nn.Conv2d(4, 6, 3, bias=False),
        three=nn.Linear(6 * 2 * 2, 5),
        four=nn.Linear(5, 3),
    )


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flat",
    [
        lambda x: x.flatten(1),
        lambda x: torch.flatten(x, 1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.contiguous().view(x.size()[0], -1),
    ],
)
def test_a_forward_of_ones_own_is_read(flat: Callable[[Tensor], Tensor]) -> None:
    found = read(pictures(flat))
    assert list(found.values()) == [
        Layer("one", 4, 1, ("one.weight", "one.bias")),
        Layer("two", 6, 4, ("two.weight",), "one"),
        Layer("three", 5, 24, ("three.weight", "three.bias"), "two"),
        Layer("four", 3, 5, ("four.weight", "four.bias"), "three", last=True),
    ]


def test_nested_modules_are_read_and_what_lies_between_is_passed_over() -> None:
    block = nn.Sequential(nn.Conv1d(2, 4, 3), nn.LeakyReLU(), nn.Dropout(0.3), nn.AvgPool1d(2))
    head = nn.Sequential(nn.Identity(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(4, 2))
    found = read(nn.Sequential(block, nn.GELU(), head))
    assert {name: layer.source for name, layer in found.items()} == {"0.0": None, "2.3": "0.0"}
    assert [layer.last for layer in found.values()] == [False, True]


def test_the_order_is_that_of_the_forward_and_not_of_the_module() -> None:
    model = Own(lambda self, x: self.b(self.a(x)), b=nn.Linear(4, 2), a=nn.Linear(3, 4))
    assert list(read(model)) == ["a", "b"]
    assert read(model)["b"] == Layer("b", 2, 4, ("b.weight", "b.bias"), "a", last=True)


def test_before_the_first_layer_anything_may_happen() -> None:
    model = Own(
        lambda self, x: self.out(self.norm(torch.sigmoid(x) * 2 + x.mean())), norm=nn.LayerNorm(3), out=nn.Linear(3, 2)
    )
    assert read(model) == {"out": Layer("out", 2, 3, ("out.weight", "out.bias"), None, last=True)}


def test_two_heads_are_both_last() -> None:
    model = Own(lambda self, x: (self.a(x), self.b(self.c(x))), a=nn.Linear(3, 2), b=nn.Linear(4, 2), c=nn.Linear(3, 4))
    assert {name for name, layer in read(model).items() if layer.last} == {"a", "b"}


def test_for_dropout_alone_the_layers_need_no_order() -> None:
    """A network that cannot be narrowed still has channels; what is not trained has none."""
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sigmoid(), nn.Conv2d(4, 8, 1, groups=4), nn.Linear(8, 2)
    )
    model[0].requires_grad_(False)
    model[3].bias.requires_grad_(False)  # type: ignore[union-attr]
    found = layers(model, shapes_of(model))
    assert list(found.values()) == [
        Layer("3", 8, 1, ("3.weight",)),
        Layer("4", 2, 8, ("4.weight", "4.bias"), last=True),
    ]


# --- refusing -----------------------------------------------------------------------------------------------------


def chain(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 3))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    return model


def frozen() -> nn.Module:
    model = chain(nn.ReLU())
    model[0].requires_grad_(False)
    return model


PARTS = {"a": nn.Linear(4, 6), "b": nn.Linear(4, 6), "c": nn.Linear(6, 3), "d": nn.Linear(12, 3), "e": nn.Linear(6, 6)}
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batchnorm": (lambda: chain(nn.BatchNorm1d(6)), r"layer '0' .*BatchNorm1d \('1'\) lies behind it"),
    "groupnorm": (lambda: chain(nn.GroupNorm(2, 6)), r"layer '0' .*GroupNorm \('1'\)"),
    "layernorm": (lambda: chain(nn.ReLU(), nn.LayerNorm(6)), r"layer '0' .*LayerNorm \('2'\)"),
    "sigmoid": (lambda: chain(nn.Sigmoid()), r"layer '0' .*Sigmoid \('1'\)"),
    "torch.sigmoid": (
        lambda: Own(lambda s, x: s.c(torch.sigmoid(s.a(x))), **PARTS),
        r"layer 'a' .*'sigmoid' lies",
    ),
    "x.sigmoid": (lambda: Own(lambda s, x: s.c(s.a(x).sigmoid()), **PARTS), r"layer 'a' .*sigmoid"),
    "softmax": (lambda: Own(lambda s, x: s.c(s.a(x)).softmax(-1), **PARTS), r"layer 'c' .*softmax"),
    "bias by hand": (lambda: Own(lambda s, x: s.c(s.a(x) + 1), **PARTS), r"layer 'a' .*add"),
    "groups": (lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1, groups=2)), "layer '1' .*groups tie"),
    "twice": (lambda: Own(lambda s, x: s.c(s.e(s.e(s.a(x)))), **PARTS), "layer 'e' .*used twice"),
    "residual": (lambda: Own(lambda s, x: s.c(s.a(x) + s.b(x)), **PARTS), "layers 'a' and 'b' .*'add' joins"),
    "cat": (
        lambda: Own(lambda s, x: s.d(torch.cat([s.a(x), s.b(x)], -1)), **PARTS),
        "layers 'a' and 'b' .*'cat' joins",
    ),
    "tied": (tied, "layer '2' .*shared with another layer"),
    "frozen": (frozen, "layer '0' .*not trained"),
    "inputs": (
        lambda: Own(lambda s, x: s.c(s.a(x)[:, :3]), a=nn.Linear(4, 6), c=nn.Linear(3, 2)),
        "layer 'c' .*3 inputs",
    ),
    "untraceable": (
        lambda: Own(lambda s, x: s.a(x) if x.sum() > 0 else s.b(x), **PARTS),
        r"Own .*which layer feeds which depends on the values",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_network_that_cannot_be_narrowed_is_refused_by_the_name_of_its_layer(what: str) -> None:
    build, message = REFUSED[what]
    with pytest.raises(UserError, match=message) as refusal:
        read(build())
    text = str(refusal.value)
    assert "\n" not in text
    assert text.endswith("; use widths=1.")


def test_a_network_without_layers_is_refused() -> None:
    model = nn.Embedding(5, 2)
    with pytest.raises(UserError, match=r"Embedding has no channels: .*; use slices=whole\.$"):
        layers(model, shapes_of(model))
    with pytest.raises(UserError, match="Embedding cannot be narrowed: it has no Linear or convolution layer"):
        read(model)


# --- prefixes -----------------------------------------------------------------------------------------------------


def build(convolutions: list[int], hidden: list[int]) -> nn.Sequential:
    """Convolutions that keep 3 by 3 pixels, then linear layers to 4 classes."""
    parts: list[nn.Module] = []
    inputs = 2
    for outputs in convolutions:
        parts += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        inputs = outputs
    parts.append(nn.Flatten())
    inputs *= 9
    for outputs in hidden:
        parts += [nn.Linear(inputs, outputs), nn.Tanh()]
        inputs = outputs
    return nn.Sequential(*parts, nn.Linear(inputs, 4))


def cut(model: nn.Module, held: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: (*held[name], *value.shape[len(held[name]) :]) for name, value in model.named_parameters()}


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_a_narrow_network_has_the_sizes_of_one_built_so(data: st.DataObject) -> None:
    """The flatten behind a convolution makes nine features of each of its channels."""
    outputs = st.lists(st.integers(1, 6), min_size=1, max_size=2)
    convolutions, hidden = data.draw(outputs), data.draw(outputs)
    narrow = [data.draw(st.integers(1, number)) for number in (*convolutions, *hidden)]
    model, own = build(convolutions, hidden), build(narrow[: len(convolutions)], narrow[len(convolutions) :])
    expected = {name: tuple(value.shape) for name, value in own.named_parameters()}
    assert cut(model, prefixes(read(model), narrow)) == expected
    assert cut(model, prefixes(read(model), [*narrow, 4])) == expected, "the classes may be named too"


@given(st.integers(1, 64), st.data())
@settings(deadline=None)
def test_a_share_is_rounded_up_but_an_exact_one_is_exact(outputs: int, data: st.DataObject) -> None:
    model = nn.Sequential(nn.Linear(1, outputs), nn.Linear(outputs, 1))
    found = read(model)
    number = data.draw(st.integers(1, outputs))
    assert prefixes(found, number / outputs)["0.weight"] == (number, 1)
    above = number / outputs + 1e-4
    assert prefixes(found, min(above, 1.0))["1.weight"] == (1, min(number + 1, outputs))
    assert prefixes(found, 1.0) == {
        "0.weight": (outputs, 1),
        "0.bias": (outputs,),
        "1.weight": (1, outputs),
        "1.bias": (1,),
    }


@pytest.mark.parametrize("share", [1e-6, 1e-12])
def test_no_layer_is_left_without_an_output(share: float) -> None:
    assert prefixes(read(chain(nn.ReLU())), share)["0.bias"] == (1,)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([3, 2, 1], r"widths=3-2-1 gives outputs of 3 layers, but the network has 1 before its last: 0\."),
        ([7], r"widths=7: layer '0' has 6 outputs, and 7 of them cannot be held; give 1 to 6\."),
        ([0], r"layer '0' has 6 outputs, and 0 of them cannot be held; give 1 to 6\."),
        ([5, 2], r"layer '2' has 3 outputs, and 2 of them cannot be held; give 3 to 3\."),
        ([5, 4], r"layer '2' has 3 outputs, and 4 of them"),
    ],
)
def test_outputs_that_the_network_has_not_are_refused(outputs: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prefixes(read(chain(nn.ReLU())), outputs)


# --- the trial ----------------------------------------------------------------------------------------------------


def images(module: nn.Module, side: int = 8) -> Task:
    draw = np.random.default_rng(0)
    client, x = np.repeat(np.arange(3), 4), draw.normal(size=(12, 1, side, side))
    data = Federation.from_arrays(client=client, features={"x": x}, label=draw.integers(0, 3, 12), test=0.0)
    return Task(data, module, nn.CrossEntropyLoss(reduction="none"))


def test_a_narrow_network_is_the_whole_one_with_zeros() -> None:
    torch.manual_seed(0)
    model = pictures(lambda x: x.flatten(1))
    whole, x = dict(model.named_parameters()), torch.randn(2, 1, 8, 8)
    held = prefixes(read(model), [2, 5, 3])
    assert same_when_narrow(lambda values: torch.func.functional_call(model, values, x), whole, held)
    wrong = held | {"three.weight": (3, 19)}
    assert not same_when_narrow(lambda values: torch.func.functional_call(model, values, x), whole, wrong)


@pytest.mark.parametrize("flat", [lambda x: x.view(-1, 24), lambda x: x.reshape(x.size(0), 6, 4).flatten(1)])
def test_a_forward_that_counts_on_all_channels_is_refused_by_the_trial(flat: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UserError, match=r"Own cannot be narrowed to widths=0\.5: .*x\.flatten\(1\)") as refusal:
        narrowed(images(pictures(flat)))
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_layers_whose_bias_alone_is_not_trained_are_refused() -> None:
    model = pictures(lambda x: x.flatten(1))
    model.one.bias.requires_grad_(False)
    with pytest.raises(UserError, match="layer 'one' cannot be narrowed: its bias is not trained"):
        narrowed(images(model))


def neighbours(self: Any, x: Tensor) -> Tensor:
    """Pools each channel with the two beside it: the graph shows a view and a pooling."""
    x = self.a(x.flatten(1))
    return self.c(F.max_pool1d(x.view(x.size(0), 1, -1), 3, 1, 1).flatten(1))


@pytest.mark.parametrize("zero", [False, True])
def test_a_forward_that_mixes_channels_is_refused_by_the_trial(zero: bool) -> None:
    torch.manual_seed(0)
    model = Own(neighbours, a=nn.Linear(64, 6), c=nn.Linear(6, 3))
    if zero:
        nn.init.zeros_(model.c.weight)
    with pytest.raises(UserError, match="Own cannot be narrowed"):
        narrowed(images(model))
