"""The logistic model and DIN: sizes, values against the plain formula, masks, and stacking under vmap."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedslice.models import DIN, SparseLogistic

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
TABLES = {"user.weight", "item.weight"}


def small_din(seed: int = 0, categories: int = 0) -> DIN:
    """A DIN in double precision whose zero-initialised parameters are random too, so that each one matters."""
    torch.manual_seed(seed)
    model = DIN(users=6, items=11, dim=3, categories=categories).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def with_categories(data: Batch, categories: int = 5, seed: int = 0) -> tuple[Tensor, ...]:
    """The batch and categories of its items, which here need not be the same for the same item."""
    generator = torch.Generator().manual_seed(seed)
    _, item, history, length = data
    target, clicked = (torch.randint(0, categories, ids.shape, generator=generator) for ids in (item, history))
    return *data, target, clicked, length


def batch(rows: int, longest: int, seed: int = 0, users: int = 6, items: int = 11) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(1, users, (rows,), generator=generator),
        torch.randint(1, items, (rows,), generator=generator),
        torch.randint(0, items, (rows, longest), generator=generator),
        torch.randint(0, longest + 1, (rows,), generator=generator),
    )


def plain_dice(x: Tensor, alpha: Tensor) -> Tensor:
    gate = torch.sigmoid((x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-9).sqrt())
    return gate * x + (1 - gate) * alpha * x


def plain_din(model: DIN, user: Tensor, item: Tensor, history: Tensor, length: Tensor, *categories: Tensor) -> Tensor:
    """The paper's formula, sample by sample, on the four blocks [q, k, q-k, q*k] as they are written."""
    p = dict(model.named_parameters())
    inputs = []
    for row, (u, i, ids, n) in enumerate(zip(user, item, history, length, strict=True)):
        q, keys = p["item.weight"][i], p["item.weight"][ids[: int(n)]]
        if categories:
            q = torch.cat([q, p["category.weight"][categories[0][row]]])
            keys = torch.cat([keys, p["category.weight"][categories[1][row, : int(n)]]], 1)
        attended = torch.zeros_like(q)
        if n:
            scores = []
            for k in keys:
                x = torch.cat([q, k, q - k, q * k])
                for layer in ("first", "second"):
                    x = torch.sigmoid(p[f"attention.{layer}.weight"] @ x + p[f"attention.{layer}.bias"])
                scores.append(p["attention.third.weight"] @ x + p["attention.third.bias"])
            attended = torch.cat(scores).softmax(0) @ keys
        total = keys.sum(0)
        inputs.append(torch.cat([p["user.weight"][u], q, total, q * total, attended]))
    x = torch.stack(inputs) / math.sqrt(1 + 1e-3) * p["norm.weight"] + p["norm.bias"]
    x = plain_dice(x @ p["tower.0.weight"].T + p["tower.0.bias"], p["tower.1.alpha"])
    x = plain_dice(x @ p["tower.2.weight"].T + p["tower.2.bias"], p["tower.3.alpha"])
    return x @ p["tower.4.weight"].T + p["tower.4.bias"]


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


def test_logistic_sums_the_rows_of_a_sample() -> None:
    model = SparseLogistic(7)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {"table.weight": (7, 1)}
    assert not model.table.weight.any()
    with torch.no_grad():
        model.table.weight.copy_(torch.arange(7.0)[:, None])
    ids = torch.tensor([[[0, 1, 2], [3, 4, 6]]])
    assert model(ids).tolist() == [[3.0, 13.0]]


def test_din_has_the_size_of_the_reference() -> None:
    model = DIN(1870, 33136)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert sum(sizes.values()) == 674_131
    assert sum(size for name, size in sizes.items() if name not in TABLES) == 44_023
    assert model.attention.first.weight.shape == (80, 72)
    assert not list(model.buffers())


def test_din_with_categories_has_the_size_of_the_reference() -> None:
    """An item's vector is 36 wide, the tower takes 9 times 18 numbers and the attention 4 times 36."""
    model = DIN(50, 70, categories=20)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["category.weight"] == (20, 18)
    assert shapes["attention.first.weight"] == (80, 144)
    assert shapes["norm.weight"] == (162,)
    assert shapes["tower.0.weight"] == (200, 162)
    assert model.category is not None
    assert model.category.weight.abs().max() <= math.sqrt(6 / 38), "it starts glorot-uniform like the others"
    assert model.category.weight.std().item() == pytest.approx(math.sqrt(2 / 38), rel=0.25)


def test_din_starts_glorot_uniform_with_zero_biases() -> None:
    torch.manual_seed(1)
    model = DIN(1870, 33136)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.25)
        else:
            assert (parameter == (1.0 if name == "norm.weight" else 0.0)).all()


@pytest.mark.parametrize("categories", [0, 5])
@pytest.mark.parametrize("longest", [0, 1, 5])
def test_din_equals_the_plain_formula(longest: int, categories: int) -> None:
    model = small_din(categories=categories)
    data = with_categories(batch(9, longest)) if categories else batch(9, longest)
    ours, plain = model(*data), plain_din(model, *data[:6])
    torch.testing.assert_close(ours, plain)
    target = torch.randn(9, 2, dtype=torch.float64)
    mine, theirs = gradients(model, (ours * target).sum()), gradients(model, (plain * target).sum())
    torch.testing.assert_close(mine, theirs)


def test_the_folded_first_layer_equals_the_four_blocks() -> None:
    attention = small_din().attention
    query, keys = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 6, 3, dtype=torch.float64)
    wide = query.unsqueeze(1).expand_as(keys)
    direct = attention.first(torch.cat([wide, keys, wide - keys, wide * keys], dim=-1))
    torch.testing.assert_close(attention._first_layer(query, keys), direct)


def test_padding_changes_neither_values_nor_gradients() -> None:
    model, (user, item, history, length) = small_din(), batch(5, 4)
    length = length.clamp(max=3)
    longer = torch.cat([history, torch.full((5, 7), 10)], dim=1)
    beyond = torch.arange(longer.shape[1]) >= length[:, None]
    other = torch.where(beyond, 9, longer)
    expected = model(user, item, history, length)
    for ids in (longer, other):
        found = model(user, item, ids, length)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(model, found.square().sum()), gradients(model, expected.square().sum()))


def test_an_empty_history_is_finite_and_needs_no_padding() -> None:
    model, (user, item, history, _) = small_din(), batch(5, 4)
    none = torch.zeros(5, dtype=torch.long)
    padded, bare = model(user, item, history, none), model(user, item, history[:, :0], none)
    torch.testing.assert_close(padded, bare)
    assert all(g.isfinite().all() for g in gradients(model, padded.sum()).values())


def test_one_sample_is_its_own_mean() -> None:
    model, data = small_din(), batch(1, 4)
    found = model(*data)
    torch.testing.assert_close(found, plain_din(model, *data))
    assert all(g.isfinite().all() for g in gradients(model, found.sum()).values())


def test_evaluation_uses_the_statistics_of_the_batch_as_training_does() -> None:
    model, data = small_din(), batch(8, 4)
    trained = model.train()(*data)
    torch.testing.assert_close(model.eval()(*data), trained, rtol=0, atol=0)


def din_case(longest: int) -> tuple[list[nn.Module], list[tuple[Tensor, ...]]]:
    return [small_din(seed) for seed in range(3)], [batch(4, longest, seed) for seed in range(3)]


def category_case() -> tuple[list[nn.Module], list[tuple[Tensor, ...]]]:
    data = [with_categories(batch(4, 6, seed), seed=seed) for seed in range(3)]
    return [small_din(seed, categories=5) for seed in range(3)], data


def logistic_case() -> tuple[list[nn.Module], list[tuple[Tensor, ...]]]:
    models: list[nn.Module] = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(SparseLogistic(8).double())
        nn.init.normal_(models[-1].table.weight)
    return models, [(torch.randint(0, 8, (4, 5)),) for _ in range(3)]


@pytest.mark.parametrize(
    "case",
    [lambda: din_case(6), lambda: din_case(0), category_case, logistic_case],
    ids=["din", "din-no-history", "din-categories", "logistic"],
)
def test_stacked_clients_equal_a_loop_over_them(
    case: Callable[[], tuple[list[nn.Module], list[tuple[Tensor, ...]]]],
) -> None:
    models, data = case()
    parameters, buffers = stack_module_state(models)
    inputs = tuple(torch.stack(column) for column in zip(*data, strict=True))

    def forward(stacked: dict[str, Tensor], *arguments: Tensor) -> Tensor:
        return functional_call(models[0], stacked, arguments)

    outputs = vmap(forward)(parameters, *inputs)
    found = torch.autograd.grad(outputs.square().sum(), list(parameters.values()))
    stacked = dict(zip(parameters, found, strict=True))
    for client, (model, arguments) in enumerate(zip(models, data, strict=True)):
        output = model(*arguments)
        torch.testing.assert_close(outputs[client], output)
        for name, gradient in gradients(model, output.square().sum()).items():
            torch.testing.assert_close(stacked[name][client], gradient)
    assert not buffers
