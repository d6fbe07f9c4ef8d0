"""What a task refuses, in one sentence each, and where its initial model comes from."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedslice.config import build_task
from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.runs.settings import RunSettings
from fedslice.task import Task
from toys import MLP, Plain, assert_same, double, mlp, squared


def federation(**features: Any) -> Federation:
    count = len(next(iter(features.values())))
    return Federation.from_arrays(client=np.arange(count), features=features, label=np.zeros(count), test=0.0)


class Two(nn.Module):
    """Two tables of different sizes, features ``x`` and ``h``."""

    def __init__(self, first: int = 5, second: int = 4):
        super().__init__()
        self.first = nn.Embedding(first, 2)
        self.second = nn.Embedding(second, 2)

    def forward(self, x: Tensor, h: Tensor, h_length: Tensor) -> Tensor:
        return self.first(x).sum(-1) + self.second(h).sum((-1, -2)) + 0 * h_length


class Dense(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).squeeze(-1)


GOOD: dict[str, Any] = {"x": [0, 1, 4], "h": Ragged.from_lists([[1], [], [3, 2]])}
NUMBERS = {"x": np.ones((4, 3))}


def test_a_sound_task_is_taken() -> None:
    task = Task(federation(**GOOD), Two(), squared, tables={"first.weight": "x", "second.weight": "h"})
    assert task.shapes == {"first.weight": (5, 2), "second.weight": (4, 2)}
    assert [sets.rows for sets in task.index_sets] == [5, 4]
    assert task.itemsize == 4


@pytest.mark.parametrize(
    ("features", "tables", "message"),
    [
        ({}, {"frist.weight": "x"}, r"unknown table \(parameter\) 'frist.weight'; did you mean 'first.weight'\?"),
        ({}, {"first.weight": "hh"}, r"unknown feature of table 'first.weight' 'hh'; did you mean 'h'\?"),
        ({}, {"first.weight": ["x", "zzz"]}, r"unknown feature of table 'first.weight' 'zzz'; choose one of: h, x\."),
        (
            {"x": [0, 5, 1]},
            {"first.weight": "x"},
            r"'x' holds an id outside table 'first.weight' at position 1: .*0 to 4",
        ),
        ({"x": [0, 1, -1]}, {"first.weight": "x"}, r"'x' holds an id outside .* position 2: found ids from -1 to 1"),
        ({"h": Ragged.from_lists([[1], [], [3, 4]])}, {"second.weight": "h"}, r"'h' holds an id outside .* 0 to 3"),
        ({"x": [0.0, 1.0, 2.0]}, {"first.weight": "x"}, r"'x' indexes table 'first.weight' but is not of integer type"),
        (
            {},
            {"first.weight": "x", "second.weight": ["h", "x"]},
            r"'x' holds an id outside table 'second.weight' at position 2",
        ),
        (
            {"x": [0, 1, 2]},
            {"first.weight": "x", "second.weight": ["h", "x"]},
            r"tables first.weight, second.weight share features but have different numbers of rows",
        ),
    ],
)
def test_tables_that_do_not_fit(features: dict[str, Any], tables: dict[str, Any], message: str) -> None:
    module = Two()
    if features.get("x") == [0.0, 1.0, 2.0]:
        module.first.forward = lambda x: nn.functional.embedding(x.long(), module.first.weight)  # type: ignore[method-assign]
    refused(message, federation(**GOOD | features), module, tables=tables)


def refused(message: str, data: Federation, module: Any, loss: Any = squared, **options: Any) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        Task(data, module, loss, **options)
    assert "\n" not in str(refusal.value)


def test_ids_of_test_samples_are_checked_too() -> None:
    data = Federation.from_arrays(
        client=[0, 0],
        features={"item": [[0, 1], [0, 99]], "tag": [0, 0]},
        label=[0.0, 0.0],
        test=np.array([False, True]),
    )
    refused(r"'item' holds an id outside table 'item.weight'", data, Plain(), tables={"item.weight": "item"})


@pytest.mark.parametrize(
    ("loss", "shape"),
    [(nn.MSELoss(), r"\(\)"), (lambda out, label: out[:, None] - label[:, None], r"\(2, 1\)")],
)
def test_a_loss_must_give_one_value_per_sample(loss: Any, shape: str) -> None:
    refused(
        rf"the loss gave shape {shape} for 2 samples; .*reduction='none'",
        federation(**NUMBERS),
        Dense(nn.Linear(3, 1)),
        loss,
    )


def raising(out: Tensor, label: Tensor) -> Tensor:
    raise ValueError("labels must be even\nand small")


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (
            lambda out, label: 0.5,
            "the loss gave a float for 2 samples, not a tensor; it must give one value per sample",
        ),
        (lambda out, label: None, "the loss gave a NoneType for 2 samples, not a tensor"),
        (lambda out, label: out > label, "the loss gave values of type bool, expected float32 as the outputs have"),
        (lambda out, label: (out > label).long(), "the loss gave values of type int64, expected float32"),
        (
            lambda out, label: out / 0,
            r"the loss <lambda> gave -?inf for outputs from [-0-9.]+ to [-0-9.]+; it must be finite\.",
        ),
        (lambda out, label: out * float("nan"), "the loss <lambda> gave nan for outputs from"),
        (
            raising,
            r"the loss raising raised ValueError \('labels must be even'\) on outputs of shape \(2,\) \(float32\) and "
            r"labels of shape \(2,\) \(float32\); it must give one value per sample",
        ),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_told(loss: Any, says: str) -> None:
    refused(says, federation(**NUMBERS), Dense(nn.Linear(3, 1)), loss)


def test_an_error_within_a_loss_stays_visible() -> None:
    with pytest.raises(UserError) as refusal:
        Task(federation(**NUMBERS), Dense(nn.Linear(3, 1)), raising)
    assert isinstance(refusal.value.__cause__, ValueError)


def test_a_loss_must_look_at_each_sample_alone() -> None:
    """All clients' samples go through it together."""
    module = Dense(nn.Linear(3, 1))
    data = federation(x=np.arange(12.0).reshape(4, 3))
    refused(
        "the loss of a sample changes with the samples beside it", data, module, lambda out, label: out - out.mean()
    )
    refused("the loss of a sample changes", data, module, lambda out, label: (out - label).flip(0))


@pytest.mark.parametrize(
    ("layers", "loss"),
    [
        ((nn.Linear(3, 1),), nn.BCEWithLogitsLoss(reduction="none")),
        ((nn.Linear(3, 1),), nn.L1Loss(reduction="none")),
        ((nn.Linear(3, 1),), nn.PoissonNLLLoss(reduction="none")),
        ((nn.Linear(3, 1), nn.Sigmoid()), nn.BCELoss(reduction="none")),
    ],
    ids=lambda part: type(part).__name__,
)
def test_common_losses_are_taken(layers: tuple[nn.Module, ...], loss: nn.Module) -> None:
    assert Task(federation(**NUMBERS), Dense(*layers), loss).shapes


def test_forward_takes_the_features_by_name() -> None:
    data = federation(y=np.ones((4, 3)))
    refused(r"Dense.forward takes \(x\) but the federation's feature 'y' would be passed", data, Dense(nn.Linear(3, 1)))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"x": np.ones((4, 3))}, r"the federation has 'x'; rename it: features=\{'input': \.\.\.\}\.$"),
        ({"input": np.ones((4, 3)), "y": np.ones(4)}, "the federation has 'input', 'y'; for several features"),
        ({"input": Ragged.from_lists([[1]] * 4)}, "the federation has 'input'; for several features or for sequences"),
    ],
)
def test_a_sequential_takes_one_feature_that_is_called_input(features: dict[str, Any], message: str) -> None:
    module = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    refused(f"nn.Sequential takes one feature, named 'input', but {message}", federation(**features), module)
    assert Task(federation(input=np.ones((4, 3))), module, squared).shapes


class Deaf(nn.Module):
    """Takes a sequence and forgets to take its lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 1)

    def forward(self, h: Tensor) -> Tensor:
        return self.table(h).sum((-1, -2))


class Open(Deaf):
    def forward(self, **features: Tensor) -> Tensor:
        return super().forward(features["h"])


def test_forward_takes_the_lengths_of_sequences() -> None:
    data = federation(h=GOOD["h"])
    refused(r"Deaf.forward takes \(h\) but the federation's feature 'h_length'", data, Deaf())
    assert Task(data, Open(), squared).shapes, "a forward that takes any keyword takes the lengths as well"


class Optional(Open):
    def forward(self, h: Tensor, more: int = 0, **lengths: Tensor) -> Tensor:
        return super().forward(h=h) + more


def test_forward_must_not_ask_for_more_than_the_features() -> None:
    refused(r"Two.forward takes \(x, h, h_length\) but the federation has no feature 'h'", federation(x=[0, 1]), Two())
    assert Task(federation(h=GOOD["h"]), Optional(), squared).shapes, "an argument with a default may be left out"


@pytest.mark.parametrize("option", ["padding_idx", "max_norm", "sparse", "scale_grad_by_freq"])
def test_lookups_that_do_more_than_look_up_are_refused_by_layer(option: str) -> None:
    module = Two()
    module.second = nn.Embedding(4, 2, **{option: 1})  # type: ignore[arg-type]
    refused(rf"layer 'second' has {option}=1", federation(**GOOD), module, tables={"second.weight": "h"})


class Tied(Two):
    """Reads the whole table, not only the rows that are named."""

    def forward(self, x: Tensor, h: Tensor, h_length: Tensor) -> Tensor:
        return super().forward(x, h, h_length) + self.first.weight.sum()


class Counting(Two):
    """Uses an id as a number."""

    def forward(self, x: Tensor, h: Tensor, h_length: Tensor) -> Tensor:
        return super().forward(x, h, h_length) + x


@pytest.mark.parametrize("module", [Tied, Counting])
def test_a_network_that_uses_ids_for_more_than_a_lookup_is_refused(module: type[Two]) -> None:
    torch.manual_seed(0)
    tables = {"first.weight": "x", "second.weight": "h"}
    data = federation(**GOOD | {"x": [2, 1, 4]})
    refused(
        rf"{module.__name__} gives another result on the table rows of a batch alone", data, module(), tables=tables
    )
    assert Task(data, module(), squared).shapes, "without tables the network is free to"


def test_batch_norm_without_running_statistics_is_taken() -> None:
    layers = nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False), nn.Linear(2, 1)
    assert Task(federation(**NUMBERS), Dense(*layers), squared).shapes


CLASSES = mlp().federation


def built(builder: Callable[[], nn.Module]) -> Task:
    return Task(CLASSES, builder, nn.CrossEntropyLoss(reduction="none"))


def test_a_builder_s_model_depends_on_the_seed_and_on_nothing_else() -> None:
    torch.manual_seed(1)
    one = built(MLP).initial(5)
    torch.manual_seed(2)
    torch.rand(3)
    task = built(MLP)
    assert_same(task.initial(5), one)
    assert not torch.equal(task.initial(6)["first.weight"], one["first.weight"])


def test_a_module_s_model_is_its_own_and_copied() -> None:
    module = MLP()
    task = Task(CLASSES, module, nn.CrossEntropyLoss(reduction="none"))
    one, two = task.initial(0), task.initial(1)
    assert_same(one, two)
    assert_same(one, dict(module.named_parameters()))
    one["first.weight"].add_(1)
    assert torch.equal(module.first.weight, two["first.weight"])


def test_the_trials_leave_the_module_as_it_was() -> None:
    module = Two()
    before = copy.deepcopy(module.state_dict())
    Task(federation(**GOOD), module, squared, tables={"first.weight": "x", "second.weight": "h"})
    assert_same(module.state_dict(), before)
    assert module.training


def test_parameters_that_do_not_train_are_no_part_of_the_model() -> None:
    module = MLP()
    module.second.bias.requires_grad_(False)
    task = Task(CLASSES, module, nn.CrossEntropyLoss(reduction="none"))
    assert "second.bias" not in task.shapes
    assert task.initial(0).keys() == task.shapes.keys()


class Twice(nn.Module):
    """One parameter under two names."""

    def __init__(self, layers: bool) -> None:
        super().__init__()
        self.left = nn.Linear(3, 3, bias=False)
        self.right = nn.Linear(3, 3, bias=False)
        if layers:
            self.right.weight = self.left.weight
        else:
            self.first = nn.Parameter(torch.eye(3))
            self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        out = self.right(self.left(x))
        return (out @ self.first @ self.second if hasattr(self, "first") else out).sum(-1)


@pytest.mark.parametrize("layers", [True, False])
def test_a_parameter_with_two_names_stays_one(layers: bool) -> None:
    module = Twice(layers)
    given = Task(federation(**NUMBERS), module, squared)
    made = Task(federation(**NUMBERS), lambda: copy.deepcopy(module), squared)
    features, _ = given.federation.train.batch(torch.arange(4))
    assert made.shapes == given.shapes
    changed = {n: v + 1 for n, v in given.initial(0).items()}
    torch.testing.assert_close(made.forward(changed, features), given.forward(changed, features))


def untouched(action: Callable[[], Any]) -> bool:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    action()
    return torch.equal(torch.get_rng_state(), before)


def failing() -> nn.Module:
    torch.rand(1)
    raise RuntimeError("no model today")


def test_building_leaves_the_global_generator_as_it_was() -> None:
    task = built(MLP)
    assert untouched(lambda: task.initial(3))
    assert untouched(lambda: built(MLP))


def test_a_builder_that_fails_leaves_the_global_generator_as_it_was() -> None:
    def action() -> None:
        with pytest.raises(RuntimeError, match="no model today"):
            built(failing)

    assert untouched(action)


def test_checking_a_module_with_dropout_leaves_the_global_generator_as_it_was() -> None:
    module = Dense(nn.Linear(3, 1), nn.Dropout())
    assert untouched(lambda: Task(federation(**NUMBERS), module, squared))


def test_pooled_keeps_everything_but_the_clients() -> None:
    task = mlp()
    pooled = task.pooled()
    assert len(pooled.federation) == 1
    assert pooled.shapes == task.shapes
    assert_same(pooled.initial(0), task.initial(0))


def test_a_task_by_name_has_the_precision_that_is_usual_when_it_is_asked_for() -> None:
    asked = RunSettings(task="hotcold", set={"clients": 5, "items": 9, "samples": 4, "factors": 2})
    single = build_task(asked)
    with double():
        twice = build_task(asked)
    assert build_task(asked) is single
    assert single.federation.train.label.dtype == torch.float32
    assert twice.federation.train.label.dtype == torch.float64
