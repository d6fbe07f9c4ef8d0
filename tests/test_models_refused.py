"""What no model may have here is refused by one sentence that names the layer and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedslice.core.errors import UserError
from kinds import KINDS, Kind, Mean, Normed, Renamed, Several, Words, by_name, in_order, labels


class Counting(nn.Module):
    """A layer with a buffer of its own that training changes."""

    def __init__(self, rebinds: bool) -> None:
        super().__init__()
        self.rebinds, self.out = rebinds, nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            if self.rebinds:
                self.seen = self.seen + 1
            else:
                self.seen += 1
        return self.out(x)


class Returning(nn.Module):
    """A module that returns something of its output."""

    def __init__(self, what: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.what, self.out = what, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.what(self.out(x))


CASES: dict[str, tuple[Kind, str, str]] = {
    "buffer in place": (Kind(lambda: Renamed(Counting(False))), "'inner' changes its buffer 'inner.seen'", "parameter"),
    "buffer again": (Kind(lambda: Renamed(Counting(True))), "'inner' changes its buffer 'inner.seen'", "hold it still"),
    "spectral norm": (
        Kind(lambda: Renamed(nn.utils.spectral_norm(nn.Linear(4, 3)))),
        "Linear 'inner' changes its buffer 'inner.weight_",
        "hold it still",
    ),
    "padding row of a table": (
        Kind(lambda: Words(nn.Embedding(9, 4, padding_idx=3), Mean()), ("words",), tables={"table.weight": "words"}),
        "layer 'table' has padding_idx=3",
        "let 0 be the padding",
    ),
    "padding row of bags": (
        Kind(lambda: Words(nn.EmbeddingBag(9, 4, padding_idx=-1)), ("words",), tables={"table.weight": "words"}),
        "layer 'table' has padding_idx=8",
        "let 0 be the padding",
    ),
    "renormalised rows": (
        Kind(lambda: Words(nn.Embedding(9, 4, max_norm=1.0), Mean()), ("words",)),
        "layer 'table' has max_norm=1.0",
        "leave it out",
    ),
    "no sizes yet": (Kind(lambda: Renamed(nn.LazyLinear(3))), "layer 'inner' is LazyLinear", "call the model once"),
    "evaluation mode": (Kind(lambda: Normed().eval()), "Normed is in evaluation mode", "call its train() first"),
    "samples second": (Kind(lambda: Returning(lambda y: y.T)), "a tensor of shape (3, 2)", "as its first dimension"),
    "one number": (Kind(lambda: Returning(lambda y: y.mean())), "a tensor of shape ()", "as its first dimension"),
    "several, one of no samples": (
        Kind(lambda: Returning(lambda y: {"a": y, "b": y.sum()}), loss=by_name),
        "a tensor of shape () in ['b']",
        "as its first dimension",
    ),
    "several, one no tensor": (
        Kind(lambda: Returning(lambda y: (y, None)), loss=in_order),
        "return tensors alone",
        "in a tuple or dictionary",
    ),
    "no tensor": (Kind(lambda: Returning(lambda y: None)), "Returning.forward returned", "return a tensor"),
    "a loss of all words": (
        Kind(
            KINDS["language"].build,
            ("words",),
            lambda output, label: labels(output.transpose(1, 2), label),
            "next",
        ),
        "gave shape (2, 4) for 2 samples",
        "one value per sample",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refusals(name: str) -> None:
    kind, where, advice = CASES[name]
    with pytest.raises(UserError) as caught:
        kind.task()
    said = str(caught.value)
    assert where in said
    assert advice in said
    assert "\n" not in said


@pytest.mark.parametrize("named", [True, False])
def test_methods_that_look_at_classes_refuse_several_outputs(named: bool) -> None:
    kind = Kind(lambda: Several(named), loss=by_name if named else in_order)
    from fedslice.training.experiment import Experiment

    with pytest.raises(UserError, match="Several returns several tensors"):
        Experiment(kind.task(), kind.recipe("fedntd"), rounds=1)
    with pytest.raises(UserError, match="several outputs; class-accuracy needs one"):
        Experiment(kind.task(), kind.recipe(), rounds=1, measure=["class-accuracy"]).run()
