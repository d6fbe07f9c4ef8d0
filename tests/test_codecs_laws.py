"""Laws of single codecs: feedback, ternary, sketches, look-back, Golomb, rounding."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exchange import Halves, whole
from fedslice.codecs import LBGM, STC, Codec, FetchSGD, Quantize, Sign, TopK
from fedslice.codecs.fetchsgd import CODE, Hashes
from fedslice.codecs.sparse import strongest
from fedslice.core.encodings import Places
from fedslice.core.errors import Refused
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.update import RowDelta
from fedslice.recipe import Recipe
from fedslice.select import Everyone
from toys import Cut, assert_close, cuts, double, mlp, run, values_on

SHAPES = {"a": torch.Size([4, 5]), "b": torch.Size([7])}


def drawn(seed: int, clients: int = 3, shapes: Any = None) -> Values:
    draw = torch.Generator().manual_seed(seed)
    return {n: torch.randn(clients, *s, generator=draw).double() for n, s in (shapes or mlp().shapes).items()}


# --- error feedback -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Sign(), TopK(share=0.1), STC(share=0.1)], ids=lambda codec: codec.label)
def test_what_was_sent_and_what_is_left_is_all_there_was(codec: Codec) -> None:
    both = Halves(codec)
    given = {n: torch.zeros(3, *s).double() for n, s in both.shapes.items()}
    arrived = {n: torch.zeros_like(v) for n, v in given.items()}
    for t in range(20):
        values = drawn(t)
        found = both.values(t, values)
        for name in given:
            given[name] += values[name]
            arrived[name] += found[name]
    for name, expected in given.items():
        left = both.remembered("error", name, torch.arange(3))
        torch.testing.assert_close(arrived[name] + left, expected, rtol=0, atol=1e-12)
        assert float(left.abs().max()) > 0.1


def test_the_server_of_stc_leaves_nothing_out_for_good() -> None:
    codec = STC(share=0.1)
    state = Halves(codec).state
    given = {n: torch.zeros(s).double() for n, s in mlp().shapes.items()}
    arrived = {n: torch.zeros_like(v) for n, v in given.items()}
    for t in range(20):
        mean = {n: v[0] for n, v in drawn(t).items()}
        step = codec.expand(state, t, {n: RowDelta(None, v) for n, v in mean.items()})
        for name, delta in step.items():
            assert delta.rows is None
            given[name] += mean[name]
            arrived[name] += delta.values
            n = delta.values.numel()
            assert int((delta.values != 0).sum()) == math.ceil(0.1 * n)
            assert len(delta.values.abs().unique()) <= 2
    for name, expected in given.items():
        left = state.state_dict()[f"residual.{name}"]
        torch.testing.assert_close(arrived[name] + left, expected, rtol=0, atol=1e-12)
    assert codec.expand(state, 20, {}) == {}


def test_rows_of_a_table_enter_the_servers_step_where_they_belong() -> None:
    codec = STC(share=0.3)
    value = torch.zeros(6, 4).double()
    value[[1, 4]] = torch.arange(1.0, 9).view(2, 4).double()
    one, two = (
        codec.expand(Halves(codec).state, 0, {"first.weight": delta})["first.weight"].values
        for delta in (RowDelta(None, value), RowDelta(torch.tensor([1, 4]), value[[1, 4]]))
    )
    assert torch.equal(one, two)
    assert bool(one.any())


@given(cuts(least=1), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_sign_is_the_mean_magnitude_of_what_a_client_sends(cut: Cut, seed: int) -> None:
    if not cut.slice.axes:
        return
    values = values_on(cut, seed)
    arrived = Halves(Sign(error_feedback=False), cut.slice.shapes).values(0, values, cut.slice)
    for c in range(cut.slice.clients):
        own = torch.cat([values[n][c][cut.real(n, c)].flatten() for n in values])
        found = torch.cat([arrived[n][c][cut.real(n, c)].flatten() for n in values])
        scale = own.abs().sum() / len(own)
        torch.testing.assert_close(found, torch.where(own < 0, -scale, scale))


# --- sparse and ternary ---------------------------------------------------------------------------------------------


@given(cuts(), st.integers(0, 99), st.sampled_from([0.01, 0.07, 0.3, 0.5, 1.0]))
@settings(deadline=None, max_examples=40)
def test_the_strongest_are_the_first_of_a_stable_sort(cut: Cut, seed: int, share: float) -> None:
    """On any slice: exactly ⌈p·n⌉ of the client's own, ties to the first, zeros never; padding is out of the game."""
    values = {n: v // 20 for n, v in values_on(cut, seed).items()}  # many ties, many zeros
    for name, value in values.items():
        taken = strongest(cut.slice.line(name, value), share).view_as(value)
        for c in range(cut.slice.clients):
            own = value[c][cut.real(name, c)].flatten()
            k = math.ceil(round(share * len(own), 6))
            best = own.abs().argsort(descending=True, stable=True)[:k]
            expected = torch.zeros(len(own), dtype=torch.bool)
            expected[best] = True
            assert torch.equal(taken[c][cut.real(name, c)].flatten(), expected & (own != 0))
            assert int(taken[c].sum()) == int((expected & (own != 0)).sum())  # nothing on padding


def test_stc_is_ternary_with_the_mean_of_the_kept() -> None:
    values = drawn(3, 2, SHAPES)
    message = Halves(STC(share=0.2), SHAPES).send(0, whole(values))
    for number, (name, arrived) in enumerate(message.update.values.items()):
        for c in range(2):
            own, out = values[name][c].flatten(), arrived[c].flatten()
            kept = out != 0
            assert int(kept.sum()) == math.ceil(0.2 * len(own))
            assert float(own.abs()[kept].min()) >= float(own.abs()[~kept].max())
            mean = own.abs()[kept].mean()
            torch.testing.assert_close(out, own.sign() * kept * mean)
            torch.testing.assert_close(message.body["scale"][c, number], mean)


def test_nothing_to_say_takes_nearly_nothing() -> None:
    both = Halves(STC(share=0.2), SHAPES)
    message = both.send(0, whole({n: torch.zeros(1, *s).double() for n, s in SHAPES.items()}))
    assert all(not bool(v.any()) for v in message.update.values.values())
    assert int(message.bytes[0]) == 2 * 8, "two scales"


# --- Golomb ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.booleans(), min_size=n, max_size=n))),
    st.sampled_from([1e-6, 0.01, 1 / 32, 0.2, 0.5, 0.7, 1.0]),
)
@settings(deadline=None, max_examples=50)
def test_places_come_back_and_take_the_bits_counted(places: tuple[int, list[bool]], share: float) -> None:
    size, flags = places
    taken = torch.tensor(flags, dtype=torch.bool)
    code, number = Places(share), int(taken.sum())
    bits = int(code.bits(taken.view(1, size), torch.arange(size)[None])[0])
    data = code.pack(taken)
    assert len(data) == (bits + 7) // 8
    assert bits <= code.most_bits(number, size)
    assert torch.equal(code.unpack(memoryview(data), size, number, bits), taken)
    for other in {number + 1, number - 1} - {-1}:
        with pytest.raises(Refused):
            code.unpack(memoryview(data), size, other, bits)


def test_a_place_beyond_the_end_is_refused() -> None:
    taken = torch.zeros(10, dtype=torch.bool)
    taken[[2, 9]] = True
    code = Places(0.2)
    bits = int(code.bits(taken[None], torch.arange(10)[None])[0])
    with pytest.raises(Refused, match="position 9, expected below 9"):
        code.unpack(memoryview(code.pack(taken)), 9, 2, bits)


@pytest.mark.parametrize(("share", "b"), [(1 / 32, 4), (0.215, 1), (0.01, 6), (0.5, 0)])
def test_bits_per_place_are_those_of_the_formula(share: float, b: int) -> None:
    """b* + 1/(1 − (1 − p)^(2^b*)) for places taken with chance p (Sattler et al. 2019, equation 12)."""
    assert Places(share).remainder == b
    taken = torch.from_numpy(np.random.default_rng(0).random(200_000) < share)
    found = 8 * len(Places(share).pack(taken)) / int(taken.sum())
    assert found == pytest.approx(b + 1 / (1 - (1 - share) ** 2**b), rel=0.02)


def test_a_share_of_1_32_costs_a_quarter_of_a_bit_per_value() -> None:
    shapes = {"w": torch.Size([100_000])}
    message = Halves(STC(), shapes).send(0, whole(drawn(0, 1, shapes)))
    assert float(message.bytes[0]) * 8 / 100_000 == pytest.approx(0.235, rel=0.02)


# --- sketches -------------------------------------------------------------------------------------------------------


def sketched(both: Halves, values: Values, part: Slice | None = None) -> Tensor:
    return both.values(0, values, part)[CODE]


def hashes(both: Halves) -> Hashes:
    assert isinstance(both.codec, FetchSGD)
    return both.codec.hashes(both.spec)


def stepped(both: Halves, code: Tensor) -> Values:
    """The server's step for the mean of all sketches."""
    step = both.codec.expand(both.state, 0, {CODE: RowDelta(None, code)})
    assert all(delta.rows is None for delta in step.values())
    return {name: delta.values for name, delta in step.items()}


def test_sketches_are_linear() -> None:
    both = Halves(FetchSGD(rows=3, share=0.5))
    one, two = drawn(0), drawn(1)
    mixture = {n: one[n] - 2 * two[n] for n in one}
    torch.testing.assert_close(
        sketched(both, mixture), sketched(both, one) - 2 * sketched(both, two), atol=1e-12, rtol=0
    )


def test_a_sketch_is_the_sum_of_its_coordinates_sketches() -> None:
    """Against a plain loop, on slices with padding."""
    both = Halves(FetchSGD(rows=3, share=0.5), SHAPES)
    held = torch.tensor([[True, False, True, False], [False, True, False, False]])
    axis = Axis.from_mask(held)
    part = Slice(2, SHAPES, {"a": (axis, None), "b": (None,)})
    model = drawn(0, 1, SHAPES)
    values = {n: v.clone() for n, v in part.gather({n: v[0] for n, v in model.items()}).items()}
    code = sketched(both, values, part)
    assert code.shape[1:] == (3, math.ceil(0.5 * 27 / 3))
    for c in range(2):
        line = torch.cat([part.spread(n, values[n])[c].flatten() for n in SHAPES])
        expected = torch.zeros_like(code[c])
        for row in range(3):
            for i in range(27):
                expected[row, hashes(both).column[row, i]] += hashes(both).sign[row, i] * line[i]
        torch.testing.assert_close(code[c], expected)


@pytest.mark.parametrize("rows", [5, 7])
def test_few_strong_coordinates_are_recovered(rows: int) -> None:
    shapes = {"w": torch.Size([40, 50])}
    for seed in range(3):
        both = Halves(FetchSGD(rows=rows, share=1.0, top=0.002), shapes, seed)
        truth = torch.zeros(1, 40, 50).double()
        where = np.random.default_rng(seed).choice(2000, 4, replace=False)
        truth.view(-1)[torch.from_numpy(where)] = torch.tensor([1.0, -2, 3, -4]).double()
        step = stepped(both, sketched(both, {"w": truth})[0])["w"]
        torch.testing.assert_close(step, truth[0])
        assert float(both.state.state_dict()["error"].abs().max()) < 1e-12  # all of it was found, nothing is left


def test_an_even_number_of_rows_takes_the_mean_of_the_middle_two() -> None:
    both = Halves(FetchSGD(rows=2, share=0.5))
    code = sketched(both, drawn(0))[0]
    seen = code.gather(1, hashes(both).column.long()) * hashes(both).sign
    torch.testing.assert_close(hashes(both).estimate(code), seen.mean(0))


def test_hashes_are_the_seeds_and_even() -> None:
    shapes = {"w": torch.Size([20_000])}
    one, same, other = (hashes(Halves(FetchSGD(rows=2, share=0.01), shapes, seed)) for seed in (0, 0, 1))
    assert torch.equal(one.column, same.column)
    assert torch.equal(one.sign, same.sign)
    assert not torch.equal(one.column, other.column)
    assert not torch.equal(one.column[0], one.column[1])
    counts = torch.bincount(one.column[0].long(), minlength=100).double()
    assert float(((counts - 200) ** 2 / 200).sum()) < 170  # chi-squared with 99 degrees of freedom: 1e-5
    assert abs(float(one.sign.double().mean())) < 5 / math.sqrt(40_000)


def test_momentum_goes_on_until_its_coordinate_is_sent() -> None:
    """S_u ← ρ·S_u + S and S_e ← S_e + S_u; both are cleared where a coordinate of the step lies."""
    shapes = {"w": torch.Size([2])}
    plain = FetchSGD(rows=1, share=1.0)
    seed = next(s for s in range(99) if len(hashes(Halves(plain, shapes, s)).column.unique()) == 2)
    both = Halves(FetchSGD(rows=1, share=1.0, momentum=0.5, top=0.5), shapes, seed)
    steps = []
    for value in ([8.0, 4.0], [0.0, 0.0], [0.0, 0.0]):
        code = sketched(both, {"w": torch.tensor([value]).double()})[0]
        steps.append(stepped(both, code)["w"].tolist())
    assert steps == [[8, 0], [0, 4 + 2], [0, 0]]


# --- look-back gradients --------------------------------------------------------------------------------------------


def test_a_look_back_of_nothing_is_fedavg() -> None:
    with double():
        plain, same = (
            run(mlp(), Recipe(select=Everyone(), **parts), 5, engine="vectorized")
            for parts in ({}, {"codec": LBGM(delta=0)})
        )
    assert_close(same.model, plain.model, atol=1e-12)


def test_a_look_back_of_everything_is_one_number_per_parameter() -> None:
    both = Halves(LBGM(delta=1))
    first, second = drawn(0), drawn(1)
    size = sum(s.numel() for s in mlp().shapes.values())
    message = both.send(0, whole(first))
    assert_close(message.update.values, first, rtol=0, atol=0)
    assert message.words.tolist() == [size] * 3
    message = both.send(1, whole(second))
    assert message.words.tolist() == [len(first)] * 3
    assert message.bytes.tolist() == [len(first) * 8 + 1] * 3
    for name, arrived in message.update.values.items():
        for c in range(3):
            g, back = second[name][c].flatten(), first[name][c].flatten()
            torch.testing.assert_close(arrived[c].flatten(), (g @ back) / (back @ back) * back)


def test_the_angle_decides_parameter_by_parameter() -> None:
    both = Halves(LBGM(delta=0.05), {"near": torch.Size([2]), "far": torch.Size([2])})
    east = torch.tensor([[1.0, 0.0]]).double()
    both.send(0, whole({"near": east, "far": east}))
    turned = {
        n: torch.tensor([[math.sqrt(1 - s), math.sqrt(s)]]).double() * 3 for n, s in (("near", 0.0499), ("far", 0.0501))
    }
    message = both.send(1, whole(turned))
    assert message.body["close"].tolist() == [[True, False]]
    arrived = message.update.values
    torch.testing.assert_close(arrived["near"], 3 * math.sqrt(1 - 0.0499) * east)
    assert torch.equal(arrived["far"], turned["far"])
    again = both.send(2, whole({"near": turned["far"], "far": turned["far"]}))  # far was sent, near was not
    assert again.body["close"].tolist() == [[False, True]]


# --- rounding at random ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_is_right_on_average_and_within_range(bits: int) -> None:
    shapes = {"w": torch.Size([30])}
    value = drawn(0, 1, shapes)["w"]
    clients, rounds = 200, 10
    both, many = Halves(Quantize(bits=bits), shapes, clients=clients), value.expand(clients, -1)
    found = torch.cat([both.values(t, {"w": many})["w"] for t in range(rounds)])
    scale, levels = float(value.abs().max()), 2 ** (bits - 1) - 1
    assert float(found.abs().max()) == scale
    level = found / scale * levels
    torch.testing.assert_close(level, level.round(), rtol=0, atol=1e-9)
    step = scale / levels
    assert float((found - value).abs().max()) < step * (1 + 1e-9)
    part = (value[0] / step) - (value[0] / step).floor()
    error = step * (part * (1 - part) / (clients * rounds)).sqrt()
    assert bool(((found.mean(0) - value[0]).abs() <= 5 * error + 1e-12).all())
    assert float(found.std(0).max()) > 0


def test_zeros_and_largest_values_are_not_rounded() -> None:
    both = Halves(Quantize(bits=3), {"w": torch.Size([4])})
    value = torch.tensor([[0.0, 0.7, -0.7, 0.0]]).double()
    for t in range(30):
        assert torch.equal(both.values(t, {"w": value})["w"], value)
    nothing = torch.zeros(1, 4).double()
    assert torch.equal(both.values(0, {"w": nothing})["w"], nothing)


def test_a_draw_depends_on_seed_round_and_client_alone() -> None:
    codec, value = Quantize(bits=2), drawn(0, 3)
    one = Halves(codec).values(4, value)
    turned = whole({n: v.flip(0) for n, v in value.items()})
    other = Halves(codec).send(4, turned, clients=torch.tensor([2, 1, 0]))
    assert_close(other.update.values, {n: v.flip(0) for n, v in one.items()}, 0, 0)
    assert not torch.equal(one["first.weight"], Halves(codec).values(5, value)["first.weight"])
    assert not torch.equal(one["first.weight"], Halves(codec, seed=1).values(4, value)["first.weight"])
