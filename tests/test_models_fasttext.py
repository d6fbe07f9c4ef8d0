"""fastText: the mean of a text's own words, whatever padding or clients stand beside it."""

import torch
from torch.func import functional_call, stack_module_state, vmap

from fedslice.models import FastText


def make(words: int = 9, dim: int = 4) -> FastText:
    return FastText(words, 3, dim)


def test_logits_are_two_layers_on_the_mean_of_the_words() -> None:
    torch.manual_seed(0)
    model = make()
    text, length = torch.tensor([[3, 5, 3, 8], [2, 0, 0, 0], [0, 0, 0, 0]]), torch.tensor([4, 1, 0])
    p = dict(model.named_parameters())
    rows = [p["word.weight"][row[:size]] for row, size in zip(text, length, strict=True)]
    mean = torch.stack([row.sum(0) / max(len(row), 1) for row in rows])
    hidden = mean @ p["hidden.weight"].T + p["hidden.bias"]
    torch.testing.assert_close(model(text, length), hidden @ p["classes.weight"].T + p["classes.bias"])


def test_padding_is_never_read_nor_moved() -> None:
    torch.manual_seed(0)
    model = make()
    text, length = torch.tensor([[3, 5], [7, 0]]), torch.tensor([2, 1])
    longer = torch.nn.functional.pad(text, (0, 3))
    before = model(text, length)
    model.word.weight.data[0] = 100.0
    torch.testing.assert_close(model(longer, length), before)
    model(longer, length).square().sum().backward()
    assert model.word.weight.grad is not None
    assert model.word.weight.grad[0].abs().sum() == 0
    assert model(text[:, :0], torch.zeros(2, dtype=torch.int64)).shape == (2, 3), "a batch of empty texts"


def test_stacked_under_vmap_each_is_itself() -> None:
    torch.manual_seed(0)
    models = [make() for _ in range(3)]
    text, length = torch.randint(1, 9, (3, 2, 5)), torch.tensor([[5, 2], [0, 1], [3, 3]])
    parameters, buffers = stack_module_state(models)
    together = vmap(lambda p, x, n: functional_call(models[0], (p, buffers), (x, n)))(parameters, text, length)
    for one, model, x, n in zip(together, models, text, length, strict=True):
        torch.testing.assert_close(one, model(x, n))


def test_the_size_is_that_of_the_paper() -> None:
    """32,000 rows of 512 numbers, and two layers (FLSS, 4.1; PFLlib's sizes)."""
    model = FastText(32_000, 4)
    assert sum(value.numel() for value in model.parameters()) == 32_000 * 512 + 513 * 512 + 513 * 4
