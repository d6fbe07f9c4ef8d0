"""fedslice.nn.LSTM against torch.nn.LSTM, alone and under vmap, and the sentiment model on both engines."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.models import SentimentLSTM
from fedslice.nn import LSTM, recurrence
from fedslice.recipes import RECIPES
from fedslice.task import Task
from fedslice.training.engines.scope import threads
from fedslice.training.experiment import Experiment
from toys import assert_close, double, run

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(autouse=True, scope="module", params=["compiled", "python"])
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything holds for the loops in Python, and for the compiled ones where numba is there."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(recurrence, "compiled", lambda values: None)
        else:
            pytest.importorskip("numba", reason="the compiled loops need numba")
        yield


class Case(NamedTuple):
    """A layer and a padded batch."""

    layer: LSTM
    x: Tensor
    lengths: Tensor


def case(
    inputs: int = 3, hidden: int = 4, layers: int = 2, lengths: Any = (5, 0, 2, 3), places: int = 5, seed: int = 0
) -> Case:
    torch.manual_seed(seed)
    layer = LSTM(inputs, hidden, layers).double()
    x = torch.randn(len(lengths), places, inputs, dtype=torch.float64)
    return Case(layer, x, torch.tensor(lengths, dtype=torch.int64))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    places = draw(st.integers(0, 6))
    lengths = draw(st.lists(st.integers(0, places), min_size=1, max_size=5))
    sizes = [draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 3))]
    return case(*sizes, lengths, places, draw(st.integers(0, 1000)))


def plain(layer: LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own LSTM on packed sequences with the same parameters; a sequence of length 0 gives zeros."""
    twin = nn.LSTM(layer.input_size, layer.hidden_size, layer.num_layers, batch_first=True).to(x.dtype)
    outputs = x.new_zeros(*x.shape[:2], layer.hidden_size)
    last = x.new_zeros(len(x), layer.hidden_size)
    some = lengths.nonzero()[:, 0]
    if not len(some):
        return outputs, last
    packed = pack_padded_sequence(x[some], lengths[some], batch_first=True, enforce_sorted=False)
    out, (state, _) = functional_call(twin, dict(layer.named_parameters()), (packed,))
    unpacked, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    return outputs.index_copy(0, some, unpacked), last.index_copy(0, some, state[-1])


def objective(results: tuple[Tensor, Tensor]) -> Tensor:
    """A number that weighs every entry of both outputs differently."""
    return sum((torch.linspace(-1, 2, r.numel(), dtype=r.dtype).view(r.shape) * r.sin()).sum() for r in results)  # type: ignore[return-value]


def gradients(results: tuple[Tensor, Tensor], inputs: list[Tensor]) -> list[Tensor]:
    total = objective(results)
    if not total.requires_grad:
        return [torch.zeros_like(value) for value in inputs]
    return list(torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True))


# --- one client ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(cases())
def test_values_and_gradients_are_those_of_packed_sequences(given: Case) -> None:
    layer, x, lengths = given
    x.requires_grad_()
    mine, theirs = layer(x, lengths), plain(layer, x, lengths)
    torch.testing.assert_close(mine, theirs, **TIGHT)
    inputs = [x, *layer.parameters()]
    torch.testing.assert_close(gradients(mine, inputs), gradients(theirs, inputs), **TIGHT)


@pytest.mark.parametrize("which", [0, 1])
def test_either_output_may_be_used_alone(which: int) -> None:
    layer, x, lengths = case()
    inputs = [x.requires_grad_(), *layer.parameters()]
    mine = torch.autograd.grad(layer(x, lengths)[which].sin().sum(), inputs)
    theirs = torch.autograd.grad(plain(layer, x, lengths)[which].sin().sum(), inputs)
    torch.testing.assert_close(mine, theirs, **TIGHT)


def test_single_precision_without_gradient() -> None:
    layer, x, lengths = case(inputs=25, hidden=30)
    single = layer.float()
    with torch.no_grad():
        outputs, last = single(x.float(), lengths)
    assert outputs.dtype == last.dtype == torch.float32
    assert not outputs.requires_grad
    torch.testing.assert_close((outputs, last), plain(single, x.float(), lengths), rtol=1e-5, atol=1e-6)


def test_gradients_may_be_wanted_of_some_inputs_only() -> None:
    layer, x, lengths = case()
    every = dict(layer.named_parameters())
    full = dict(zip(every, gradients(layer(x, lengths), list(every.values())), strict=True))
    for name, value in every.items():
        for other in every.values():
            other.requires_grad_(other is value)
        torch.testing.assert_close(gradients(layer(x, lengths), [value]), [full[name]], **TIGHT)
    for other in every.values():
        other.requires_grad_(False)
    wanted = x.clone().requires_grad_()
    torch.testing.assert_close(
        gradients(layer(wanted, lengths), [wanted]), gradients(plain(layer, wanted, lengths), [wanted]), **TIGHT
    )


def test_gradcheck() -> None:
    layer, x, lengths = case(inputs=2, hidden=2, lengths=(3, 0, 1), places=4)
    names, values = zip(*layer.named_parameters(), strict=True)

    def forward(x: Tensor, *values: Tensor) -> Any:
        return functional_call(layer, dict(zip(names, values, strict=True)), (x, lengths))

    assert torch.autograd.gradcheck(forward, (x.requires_grad_(), *values))


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -1e300])
def test_what_lies_beyond_a_length_does_not_matter(fill: float) -> None:
    layer, x, lengths = case(places=7)
    here = torch.arange(7) < lengths[:, None]
    results = []
    for value in (0.0, fill):
        filled = torch.where(here[..., None], x, value).requires_grad_()
        outputs = layer(filled, lengths)
        results.append([*outputs, *gradients(outputs, [filled, *layer.parameters()])])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert results[1][0][~here].eq(0).all()
    assert results[1][2][~here].eq(0).all()


def test_a_gradient_beyond_a_length_does_not_matter() -> None:
    layer, x, lengths = case()
    outputs, _ = layer(x.requires_grad_(), lengths)
    here = (torch.arange(5) < lengths[:, None])[..., None].expand_as(outputs)
    inputs = [x, *layer.parameters()]
    clean, dirty = (
        torch.autograd.grad(outputs, inputs, torch.where(here, 1.0, value).double(), retain_graph=True)
        for value in (0.0, float("nan"))
    )
    torch.testing.assert_close(clean, dirty, rtol=0, atol=0)


@settings(deadline=None, max_examples=20)
@given(cases(), st.randoms(use_true_random=False))
def test_permuting_samples_commutes(given: Case, random: Any) -> None:
    layer, x, lengths = given
    order = torch.tensor(random.sample(range(len(x)), len(x)))
    straight, permuted = layer(x, lengths), layer(x[order], lengths[order])
    torch.testing.assert_close(tuple(r[order] for r in straight), permuted, **TIGHT)


def test_no_positions_and_no_samples() -> None:
    layer, _, _ = case()
    for samples, places in ((3, 0), (0, 5), (0, 0)):
        x = torch.zeros(samples, places, 3, dtype=torch.float64, requires_grad=True)
        outputs, last = layer(x, torch.zeros(samples, dtype=torch.int64))
        assert outputs.shape == (samples, places, 4)
        assert torch.equal(last, torch.zeros(samples, 4, dtype=torch.float64))
        for gradient in torch.autograd.grad(outputs.sum() + last.sum(), [x, *layer.parameters()]):
            assert not gradient.any()


def test_a_second_derivative_is_refused() -> None:
    layer, x, lengths = case()
    _, last = layer(x.requires_grad_(), lengths)
    (first,) = torch.autograd.grad(last.sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_gradients_do_not_share_memory() -> None:
    """Clipping changes them in place."""
    layer, x, lengths = case()
    layer(x, lengths)[1].sum().backward()
    places = {value.grad.untyped_storage().data_ptr() for value in layer.parameters() if value.grad is not None}
    assert len(places) == len(list(layer.parameters()))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_state_dicts_and_initial_values_are_those_of_torch(layers: int) -> None:
    torch.manual_seed(3)
    mine = LSTM(3, 4, layers)
    torch.manual_seed(3)
    theirs = nn.LSTM(3, 4, layers, batch_first=True)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    torch.testing.assert_close(dict(mine.state_dict()), dict(theirs.state_dict()), rtol=0, atol=0)
    for source, target in ((LSTM(3, 4, layers), theirs), (nn.LSTM(3, 4, layers), mine)):
        target.load_state_dict(source.state_dict())
    x = torch.randn(2, 6, 3)
    mine.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(mine(x, torch.tensor([6, 6]))[0], theirs(x)[0])


def test_without_lengths_every_position_counts() -> None:
    layer, x, _ = case()
    every = torch.full((len(x),), x.shape[1])
    for mine, theirs in zip(layer(x), layer(x, every), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(layer.last(x), layer(x, every)[1])
    with pytest.raises(UserError, match=r"x has shape \(4, 3\), expected \[samples, positions, 3\]"):
        layer(torch.zeros(4, 3))


def test_without_lengths_clients_train_together() -> None:
    (x, lengths, *_), layer, _ = clients(4)
    every = torch.full_like(lengths, x.shape[2])
    torch.testing.assert_close(vmap(layer)(x), vmap(layer)(x, every), **TIGHT)
    torch.testing.assert_close(vmap(layer.last)(x), vmap(layer.last)(x, every), **TIGHT)


@pytest.mark.parametrize(
    ("x", "lengths", "told"),
    [
        (torch.zeros(2, 5, 4), torch.tensor([1, 2]), "x has shape (2, 5, 4), expected [samples, positions, 3]"),
        (torch.zeros(2, 5), torch.tensor([1, 2]), "x has shape (2, 5)"),
        (torch.zeros(2, 5, 3), torch.tensor([1, 2, 3]), "lengths have shape (3,)"),
        (torch.zeros(2, 5, 3), torch.tensor([1.0, 2.0]), "type torch.float32"),
        (torch.zeros(2, 5, 3), torch.tensor([1, 6]), "found lengths from 1 to 6 for sequences of 5 positions"),
        (torch.zeros(2, 5, 3), torch.tensor([-1, 2]), "found lengths from -1 to 2"),
    ],
)
def test_bad_input_is_told(x: Tensor, lengths: Tensor, told: str) -> None:
    with pytest.raises(UserError) as error:
        LSTM(3, 4)(x, lengths)
    assert told in str(error.value)


def test_sizes_must_be_positive() -> None:
    with pytest.raises(UserError, match="num_layers is 0, expected at least 1"):
        LSTM(3, 4, 0)


# --- many clients -------------------------------------------------------------------------------------------------


def clients(count: int, layers: int = 2) -> tuple[list[Tensor], LSTM, list[str]]:
    """Stacked x, lengths and parameters; lengths include 0 and a client whose samples are all empty."""
    layer, _, _ = case(layers=layers)
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 6, (count, 3), generator=draw)
    lengths[1] = 0
    x = torch.randn(count, 3, 6, 3, generator=draw, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]
    values = [torch.randn(count, *p.shape, generator=draw, dtype=torch.float64) for p in layer.parameters()]
    return [x, lengths, *values], layer, names


def mapped_and_looped(
    inputs: list[Tensor], batched: list[bool], layer: LSTM, names: list[str]
) -> list[tuple[tuple[Tensor, Tensor], list[Tensor]]]:
    """Results and gradients under vmap and in a loop, where some of the inputs are the first client's for everyone."""

    def one(x: Tensor, lengths: Tensor, *values: Tensor) -> Any:
        return functional_call(layer, dict(zip(names, values, strict=True)), (x, lengths))

    count = len(inputs[0])
    given = [value if own else value[0] for value, own in zip(inputs, batched, strict=True)]
    leaves = [value.requires_grad_() for value in (v.detach().clone() for v in given) if value.is_floating_point()]
    given = [leaves[0], given[1], *leaves[1:]]
    mapped = vmap(one, in_dims=tuple(0 if own else None for own in batched))(*given)
    looped = [one(*(v[c] if own else v for v, own in zip(given, batched, strict=True))) for c in range(count)]
    together = tuple(torch.stack(each) for each in zip(*looped, strict=True))
    return [(results, gradients(results, leaves)) for results in (mapped, together)]


@pytest.mark.parametrize("kinds", [k for k in itertools.product([True, False], repeat=4) if any(k)])
def test_vmap_is_a_loop_whatever_is_mapped(kinds: tuple[bool, ...]) -> None:
    """x, lengths, weights and biases: each the clients' own, or one for all."""
    inputs, layer, names = clients(4)
    own_x, own_lengths, own_weights, own_biases = kinds
    batched = [own_x, own_lengths, *(own_weights if "weight" in name else own_biases for name in names)]
    mapped, looped = mapped_and_looped(inputs, batched, layer, names)
    torch.testing.assert_close(mapped, looped, **TIGHT)


@pytest.mark.parametrize("together", [1, 2, 3])
@pytest.mark.parametrize("layers", [1, 3])
def test_groups_change_nothing(together: int, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, layer, names = clients(5, layers)
    monkeypatch.setattr(recurrence, "_TOGETHER", together * 8 * 4 * 4 * 4)  # bytes of a client's recurrent weights
    mapped, looped = mapped_and_looped(inputs, [True] * len(inputs), layer, names)
    torch.testing.assert_close(mapped, looped, **TIGHT)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups on threads of their own, to the bit; and this thread's number of threads stays."""
    inputs, layer, names = clients(7, 2)
    monkeypatch.setattr(recurrence, "_TOGETHER", 2 * 8 * 4 * 4 * 4)
    results = []
    for count in (1, 3):
        with threads(count):
            results.append(mapped_and_looped(inputs, [True] * len(inputs), layer, names)[0])
            assert torch.get_num_threads() == count
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_the_mapped_axis_may_stand_anywhere_and_maps_may_nest() -> None:
    (x, lengths, *_), layer, _ = clients(4)
    plainly = vmap(layer)(x, lengths)
    torch.testing.assert_close(vmap(layer, in_dims=(2, 1))(x.movedim(0, 2), lengths.T), plainly, **TIGHT)
    nested = vmap(vmap(layer))(x.unflatten(0, (2, 2)), lengths.unflatten(0, (2, 2)))
    torch.testing.assert_close(tuple(r.flatten(0, 1) for r in nested), plainly, **TIGHT)


def test_a_gradient_inside_vmap_is_refused() -> None:
    (x, lengths, *_), layer, _ = clients(4)
    with pytest.raises(UserError, match="found a gradient inside vmap"):
        vmap(grad(lambda x, lengths: layer(x, lengths)[1].sum()))(x, lengths)


# --- the sentiment model ------------------------------------------------------------------------------------------

WORDS = 12


def sentiment() -> Task:
    """Texts of which some are empty; every client has words of its own."""
    draw = np.random.default_rng(0)
    sizes = (3, 6, 1, 5)
    client = np.repeat(np.arange(len(sizes)), sizes)
    texts = [(1 + (2 * c + draw.integers(0, 5, draw.integers(0, 6))) % (WORDS - 1)).tolist() for c in client]
    federation = Federation.from_arrays(
        client=client,
        features={"text": Ragged.from_lists(texts)},
        label=draw.integers(0, 2, len(client)).astype(float),
        test=0.0,
    )
    return Task(
        federation,
        lambda: SentimentLSTM(WORDS, dim=3, hidden=4),
        nn.BCEWithLogitsLoss(reduction="none"),
        tables={"word.weight": "text"},
    )


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg"])
def test_engines_agree_on_sentiment(name: str) -> None:
    with double():
        task = sentiment()
        recipe = RECIPES[name].with_options({"cohort": 3, "iterations": 3, "batch_size": 4, "lr": 0.5})
        done = [run(task, recipe, rounds=3, engine=engine) for engine in ("vectorized", "sequential")]
        start = task.initial(0)
    assert_close(done[0].model, done[1].model, rtol=1e-9, atol=1e-12)
    assert all(not torch.equal(done[0].model[key], value) for key, value in start.items())
    assert torch.equal(done[0].model["word.weight"][0], start["word.weight"][0])  # padding is never trained


def test_the_automatic_choice_vectorises_sentiment() -> None:
    task = sentiment()
    recipe = RECIPES["fedavg"].with_options({"cohort": 3, "iterations": 1, "batch_size": 2, "lr": 0.1})
    assert Experiment(task, recipe, rounds=1).engine.engine.label == "vectorized"


def test_sentiment_reads_the_last_word() -> None:
    vectors = torch.randn(WORDS, 3)
    model = SentimentLSTM(WORDS, dim=3, hidden=4, vectors=vectors)
    assert torch.equal(model.word.weight, vectors)
    text, lengths = torch.tensor([[3, 4, 0], [5, 0, 0], [0, 0, 0]]), torch.tensor([2, 1, 0])
    _, last = plain(model.lstm, vectors[text], lengths)
    torch.testing.assert_close(model(text, lengths), model.head(last)[:, 0])
    assert sum(p.numel() for p in SentimentLSTM(1).parameters()) == 25 + 131_600 + 101  # FedSubAvg's dense part


def test_sentiment_starts_from_small_random_words_or_refuses_vectors_of_another_shape() -> None:
    torch.manual_seed(0)
    assert SentimentLSTM(4000, std=0.3).word.weight.std().item() == pytest.approx(0.3, rel=0.02)
    with pytest.raises(UserError, match=r"vectors have shape \(12, 4\), expected \[words, dim\] = \[12, 3\]"):
        SentimentLSTM(WORDS, dim=3, vectors=torch.zeros(WORDS, 4))
