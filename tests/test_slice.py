"""Laws of the slice: gather and scatter_add against explicit loops, padding, renumbering, wire cost."""

import itertools
import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedslice.core.encodings import Ids
from fedslice.core.header import Header, Kind
from fedslice.core.message import Field, Message
from fedslice.core.slice import Axis, Slice, Values
from fedslice.recipe import Recipe
from fedslice.select import Everyone
from fedslice.slices import FeatureRows
from toys import Cut, axis_of, begun, cuts, index_set, nested, numbers_like, readers, values_on

SEEDS = st.integers(0, 2**32 - 1)
id_lists = st.lists(st.lists(st.integers(0, 9), max_size=8).map(lambda x: sorted(set(x))), min_size=1, max_size=5)


def added_up(cut: Cut, values: Values) -> Values:
    """scatter_add into zeros, written as a loop over clients and coordinates."""
    out = {name: np.zeros(shape) for name, shape in cut.slice.shapes.items()}
    for name, client in itertools.product(cut.slice.axes, range(cut.slice.clients)):
        own = values[name][client][cut.real(name, client)].numpy()
        lists = cut.chosen[name][client]
        for place in itertools.product(*(range(len(ids)) for ids in lists)):
            out[name][tuple(ids[p] for ids, p in zip(lists, place, strict=True))] += own[place]
    return {name: torch.from_numpy(value) for name, value in out.items()}


def id_bytes(*named: tuple[Axis, int | Axis]) -> list[int]:
    """Bytes of a message that names positions on these axes, out of so many or out of those of another axis."""
    who = torch.arange(len(named[0][0].counts))
    fields = {str(number): Field(Ids(), of=of) for number, (_, of) in enumerate(named)}
    body = {str(number): axis for number, (axis, _) in enumerate(named)}
    sizes = Message(Header(Kind.REQUEST, 0, who, who, who, who), fields, body).sizes()
    return torch.stack(list(sizes.values())).sum(0).tolist()


def zeros(shapes: dict[str, torch.Size]) -> Values:
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}


@settings(deadline=None, max_examples=80)
@given(cuts(), SEEDS)
def test_gather_reads_every_client_s_own_coordinates(cut: Cut, seed: int) -> None:
    model = numbers_like(cut.slice.shapes, seed)
    got = cut.slice.gather(model)
    assert got.keys() == cut.slice.axes.keys()
    for name, client in itertools.product(got, range(cut.slice.clients)):
        expected = model[name].numpy()[np.ix_(*cut.chosen[name][client])]
        assert np.array_equal(got[name][client][cut.real(name, client)].numpy(), expected)


@settings(deadline=None, max_examples=80)
@given(cuts(most_clients=1), SEEDS)
def test_gather_after_scatter_returns_the_values(cut: Cut, seed: int) -> None:
    values = values_on(cut, seed)
    model = zeros(cut.slice.shapes)
    cut.slice.scatter_add(model, values)
    back = cut.slice.gather(model)
    for name in values:
        assert torch.equal(back[name][0][cut.real(name, 0)], values[name][0][cut.real(name, 0)])
    for name in model.keys() - values.keys():
        assert not model[name].any()


@settings(deadline=None, max_examples=80)
@given(cuts(), SEEDS)
def test_overlapping_clients_are_added_like_in_a_loop_and_padding_is_not(cut: Cut, seed: int) -> None:
    values = values_on(cut, seed)
    poisoned = {n: v.masked_fill(cut.padding(values)[n], float("nan")) for n, v in values.items()}
    model = zeros(cut.slice.shapes)
    cut.slice.scatter_add(model, poisoned)
    expected = added_up(cut, values)
    for name in model:
        assert torch.equal(model[name], expected[name])


@settings(deadline=None, max_examples=60)
@given(cuts(), SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(cut: Cut, seed: int, shuffle: random.Random) -> None:
    order = list(range(cut.slice.clients))
    shuffle.shuffle(order)
    axes = {
        name: tuple(
            None if axis is None else axis_of([cut.chosen[name][c][dim] for c in order]) for dim, axis in enumerate(own)
        )
        for name, own in cut.slice.axes.items()
    }
    other = Cut(
        Slice(cut.slice.clients, cut.slice.shapes, axes), {n: [v[c] for c in order] for n, v in cut.chosen.items()}
    )
    model, values = numbers_like(cut.slice.shapes, seed), values_on(cut, seed)
    one, two = cut.slice.gather(model), other.slice.gather(model)
    for name, (place, client) in itertools.product(one, enumerate(order)):
        own = cut.real(name, client)
        assert torch.equal(two[name][place][own], one[name][client][own])
    first, second = zeros(cut.slice.shapes), zeros(cut.slice.shapes)
    cut.slice.scatter_add(first, values)
    other.slice.scatter_add(second, {n: v[order] for n, v in values.items()})
    for name in first:
        assert torch.equal(first[name], second[name])


@settings(deadline=None, max_examples=60)
@given(cuts(), SEEDS)
def test_renumbering_rows_commutes(cut: Cut, seed: int) -> None:
    """New row numbers in the model and in the slice: the same values, on the renumbered rows."""
    new = {n: np.random.default_rng(seed).permutation(shape[0]) for n, shape in cut.slice.shapes.items()}
    axes, moves = {}, {}
    for name, own in cut.slice.axes.items():
        if own[0] is None:
            axes[name] = own
            continue
        lists = [[int(new[name][i]) for i in cut.chosen[name][c][0]] for c in range(cut.slice.clients)]
        axes[name] = (axis_of([sorted(ids) for ids in lists]), *own[1:])
        moves[name] = [np.argsort(ids) for ids in lists]
    other = Slice(cut.slice.clients, cut.slice.shapes, axes)
    model, values = numbers_like(cut.slice.shapes, seed), values_on(cut, seed)
    renumbered = {n: torch.empty_like(v).index_copy_(0, torch.from_numpy(new[n]), v) for n, v in model.items()}
    before, after = cut.slice.gather(model), other.gather(renumbered)
    moved = {n: v.clone() for n, v in values.items()}
    for name, client in itertools.product(moves, range(cut.slice.clients)):
        order, real = moves[name][client], cut.real(name, client)
        assert torch.equal(after[name][client][real], before[name][client][real][order])
        moved[name][client][real] = values[name][client][real][order]
    for name in values.keys() - moves.keys():  # all rows are held: values come in the new order
        moved[name].index_copy_(1, torch.from_numpy(new[name]), values[name])
    one, two = zeros(cut.slice.shapes), zeros(cut.slice.shapes)
    cut.slice.scatter_add(one, values)
    other.scatter_add(two, moved)
    for name in one:
        assert torch.equal(two[name][new[name]], one[name])


@settings(deadline=None, max_examples=80)
@given(cuts())
def test_held_is_false_exactly_on_padding(cut: Cut) -> None:
    values = values_on(cut, 0)
    padding = cut.padding(values)
    for name in cut.slice.axes:
        held = cut.slice.held(name)
        if held is None:
            assert not padding[name].any()
        else:
            assert padding[name].any() or not padding[name].numel()
            wide = held.view(*held.shape, *[1] * (values[name].dim() - held.dim())).expand_as(values[name])
            assert torch.equal(wide, ~padding[name])


@settings(deadline=None, max_examples=120)
@given(nested(), SEEDS)
def test_pick_reads_an_inner_slice_out_of_values_on_an_outer(both: tuple[Cut, Cut], seed: int) -> None:
    inner, outer = both
    model = numbers_like(outer.slice.shapes, seed)
    got, expected = inner.slice.pick(outer.slice.gather(model), outer.slice), inner.slice.gather(model)
    assert got.keys() == expected.keys()
    for name, client in itertools.product(got, range(inner.slice.clients)):
        real = inner.real(name, client)
        assert got[name].shape == expected[name].shape
        assert torch.equal(got[name][client][real], expected[name][client][real])


def test_pick_for_a_client_that_holds_nothing() -> None:
    """Its padding is a row of somebody else's, which its own rows end before."""
    shapes = {"w": torch.Size([10, 2])}
    outer = Slice(2, shapes, {"w": (axis_of([[1, 2, 3], [7, 8, 9]]), None)})
    inner = Slice(2, shapes, {"w": (axis_of([[], [9]]), None)})
    model = numbers_like(shapes, 0)
    assert torch.equal(inner.pick(outer.gather(model), outer)["w"][1], model["w"][[9]])


@settings(deadline=None, max_examples=80)
@given(nested())
def test_inside_marks_the_inner_slice_in_the_outer(both: tuple[Cut, Cut]) -> None:
    inner, outer = both
    values = values_on(outer, 0)
    for name, client in itertools.product(outer.slice.axes, range(outer.slice.clients)):
        flags = inner.slice.inside(outer.slice, name).expand_as(values[name])[client][outer.real(name, client)]
        members = inner.coordinates(name, client)
        for place in itertools.product(*(range(n) for n in flags.shape)):
            at = tuple(ids[p] for ids, p in zip(outer.chosen[name][client], place, strict=True))
            assert bool(flags[place]) == (at in members)


@settings(deadline=None, max_examples=80)
@given(id_lists, st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_axis_contains_and_positions_of(lists: list[list[int]], asked: list[int]) -> None:
    axis = axis_of(lists)
    found = axis.contains(torch.tensor([asked] * len(lists)))
    assert found.tolist() == [[i in ids for i in asked] for ids in lists]
    for client, ids in enumerate(lists):
        assert axis.ids[client][axis.mask[client]].tolist() == ids
        one = Axis(axis.counts[client : client + 1], axis.ids[client : client + 1])
        assert one.positions_of(torch.tensor([ids], dtype=torch.int64)).tolist() == [list(range(len(ids)))]


@settings(deadline=None, max_examples=80)
@given(id_lists)
def test_padding_of_an_axis_keeps_it_ascending(lists: list[list[int]]) -> None:
    axis = axis_of(lists)
    assert axis.counts.tolist() == [len(ids) for ids in lists]
    assert axis.ids.shape == axis.mask.shape == (len(lists), max(map(len, lists)))
    assert bool((axis.ids.diff(dim=1) >= 0).all())


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 4), st.integers(0, 8), SEEDS)
def test_axis_unique(clients: int, width: int, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 6, (clients, width))
    axis, places = Axis.unique(torch.from_numpy(ids))
    for client, row in enumerate(ids):
        assert axis.ids[client][axis.mask[client]].tolist() == sorted(set(row.tolist()))
    assert torch.equal(axis.ids.gather(1, axis.positions_of(torch.from_numpy(ids))), torch.from_numpy(ids))
    assert torch.equal(places, axis.positions_of(torch.from_numpy(ids)))


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 4), st.integers(1, 6), SEEDS)
def test_axis_from_mask(clients: int, size: int, seed: int) -> None:
    held = torch.from_numpy(np.random.default_rng(seed).random((clients, size)) < 0.6)
    axis = Axis.from_mask(held)
    if axis is None:
        assert held.all()
    else:
        assert not held.all()
        for client in range(clients):
            assert axis.ids[client][axis.mask[client]].tolist() == held[client].nonzero()[:, 0].tolist()


def test_an_axis_lists_its_members_only_when_asked() -> None:
    def refuse() -> torch.Tensor:
        raise AssertionError("the members were listed")

    lazy = Axis(torch.tensor([2, 3]), refuse)
    cut = Slice(2, {"w": torch.Size([10, 4])}, {"w": (lazy, None)})
    assert cut.numbers().tolist() == [8, 12]
    assert id_bytes((lazy, 10)) == [1, 2]


@settings(deadline=None, max_examples=80)
@given(cuts())
def test_numbers_count_the_coordinates(cut: Cut) -> None:
    expected = [sum(len(cut.coordinates(n, c)) for n in cut.slice.axes) for c in range(cut.slice.clients)]
    assert cut.slice.numbers().tolist() == expected


@settings(deadline=None, max_examples=80)
@given(st.one_of(st.integers(1, 300), st.sampled_from([2, 4, 16, 64, 256])), st.lists(st.floats(0, 1), min_size=1))
def test_ids_cost_the_smaller_of_packed_integers_and_a_bitmap(extent: int, shares: list[float]) -> None:
    counts = [round(share * extent) for share in shares]
    axis = axis_of([list(range(count)) for count in counts])
    bits = next(b for b in itertools.count(1) if 2**b >= extent)
    assert Ids.width(extent) == bits
    # who holds all positions need not name them
    expected = [min(-(-count * bits // 8), -(-extent // 8)) * (count < extent) for count in counts]
    assert id_bytes((axis, extent)) == expected
    assert id_bytes((axis, extent), (axis, extent)) == [2 * size for size in expected]
    first = Axis(axis.counts, axis.ids, torch.ones_like(axis.counts, dtype=torch.bool))
    assert not any(id_bytes((first, extent))), "first positions are known from their number"
    halves = [count // 2 for count in counts]
    among = [
        min(-(-n * Ids.width(count) // 8), -(-count // 8)) * (n < count)
        for n, count in zip(halves, counts, strict=True)
    ]
    assert id_bytes((axis_of([list(range(n)) for n in halves]), axis)) == among, "numbered among those that are held"


def test_an_axis_that_two_parameters_share_is_named_once() -> None:
    """Two encoders have tables of their own for the same features."""
    experiment = begun(readers(), Recipe(select=Everyone(), slices=FeatureRows()), rounds=1)
    task, clients = experiment.task, torch.arange(6)
    request = experiment.population.ask(0, clients)
    assert len(task.tables) == 4
    assert len(request.fields) == 2
    expected = []
    for client in clients.tolist():
        held = {table: len(index_set(task, table, client)) for table in ("shared.item.weight", "shared.tag.weight")}
        item, tag = held.values()
        expected.append(min(-(-item * 4 // 8), 2) * (item < 14) + (tag < 6))  # out of 14, and out of 6
    assert torch.stack(list(request.sizes().values())).sum(0).tolist() == expected
    hold = FeatureRows().requested(experiment.server.states["slices"], 0, clients, request.body)
    for what in ("item", "tag"):
        assert hold.axes[f"shared.{what}.weight"] == hold.axes[f"private.{what}.weight"]


def test_whole_and_replace() -> None:
    shapes = {"a": torch.Size([3, 2]), "b": torch.Size([4]), "c": torch.Size([])}
    whole = Slice.whole(2, shapes)
    assert whole.numbers().tolist() == [11, 11]
    assert all(axis is None for axes in whole.axes.values() for axis in axes), "there is nothing to name"
    some = Slice.whole(2, shapes, ["b"]).replace({"a": axis_of([[0], [1, 2]]), "b": axis_of([[], [0, 3]])})
    assert some.axes.keys() == {"b"}, "a parameter that is not held stays so"
    assert some.numbers().tolist() == [0, 2]
    model = numbers_like(shapes, 0)
    assert whole.gather(model)["a"].data_ptr() == model["a"].data_ptr(), "what is held in full is a view"
