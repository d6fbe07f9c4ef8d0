"""Accuracy by class: against counting, and beside the plain accuracy."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.data.samples import Samples
from fedslice.measure import accuracy
from fedslice.measure.classes import class_accuracy
from fedslice.recipe import Recipe
from fedslice.schema import find
from fedslice.select import Everyone
from fedslice.task import Task
from fedslice.training.experiment import Experiment
from toys import recommender


class Said(nn.Module):
    """Says of each sample what its feature says, whatever is learned."""

    def __init__(self, classes: int = 4):
        super().__init__()
        self.classes = classes
        self.nothing = nn.Parameter(torch.zeros(1))

    def forward(self, said: Tensor) -> Tensor:
        return nn.functional.one_hot(said, self.classes).float() + self.nothing


def task(labels: Sequence[int], said: Sequence[int], classes: int = 4, **changes: Any) -> Task:
    """All samples are test samples, but for one that is trained on."""
    count = len(labels) + 1
    federation = Federation.from_arrays(
        client=np.zeros(count, int),
        features={"said": np.array([0, *said])},
        label=np.array([0, *labels]),
        test=np.arange(count) > 0,
    )
    module = Said(classes)
    return Task(federation, module, nn.CrossEntropyLoss(reduction="none"), metrics={"accuracy": accuracy}, **changes)


def measured(one: Task) -> list[float]:
    found = class_accuracy(one, one.initial(0))
    assert list(found) == [f"test_accuracy_class_{place}" for place in range(len(found))]
    return list(found.values())


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


@given(pairs, st.integers(1, 7))
def test_shares_are_those_counted_one_by_one(found: list[tuple[int, int]], batch: int) -> None:
    shares = measured(task([a for a, _ in found], [b for _, b in found], eval_batch=batch))
    for place, share in enumerate(shares):
        own = [said == label for label, said in found if label == place]
        assert share == pytest.approx(sum(own) / len(own)) if own else math.isnan(share)


def test_a_run_logs_them_and_their_weighted_mean_is_its_accuracy() -> None:
    labels, said = [0, 0, 0, 1, 1, 2], [0, 1, 0, 1, 2, 2]
    row = Experiment(task(labels, said), Recipe(select=Everyone()), rounds=1, measure=["class-accuracy"]).run()[-1]
    shares = [row[f"test_accuracy_class_{place}"] for place in range(4)]
    assert shares[:3] == pytest.approx([2 / 3, 1 / 2, 1])
    assert math.isnan(shares[3])
    assert row["test_accuracy"] == pytest.approx(sum(shares[label] for label in labels) / len(labels))
    assert all(find(name).measured for name in row if "class" in name)


def holding_out(one: Task, test: Samples) -> Task:
    return replace(one, federation=replace(one.federation, test=test))


def test_what_has_no_classes_is_refused_in_a_sentence() -> None:
    scores, two = recommender(ragged=False), task([0, 1], [0, 0], classes=2)
    test = two.federation.test
    for one, words in (
        (
            holding_out(scores, scores.federation.train),
            "labels of type float32 and outputs of shape () for each sample; class-accur",
        ),
        (
            task([0, 1], [0, 0], classes=1),
            "outputs of shape (1,) for each sample; class-accuracy needs",
        ),
        (holding_out(two, test.take(torch.tensor([], dtype=torch.int64), test.offsets * 0)), "has no test samples"),
        (holding_out(two, replace(test, label=torch.tensor([0, 2]))), "labels from 0 to 2 and 2 outputs"),
    ):
        with pytest.raises(UserError) as caught:
            Experiment(one, Recipe(select=Everyone()), rounds=1, measure=["class-accuracy"])
        assert words in str(caught.value)
        assert str(caught.value).endswith("leave it out.")
