"""Messages: as many bytes as counted, nothing lost on the way, and nothing accepted that nobody could have sent."""

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exchange import Waiting
from fedslice.core.encodings import Bits, Floats, Ids
from fedslice.core.entries import Maybe, OnSlice
from fedslice.core.errors import Refused
from fedslice.core.header import HEADER_BYTES, Header, Kind, open_message
from fedslice.core.message import Body, Field, Fields, Message, unpack
from fedslice.core.slice import Axis, Slice
from fedslice.recipes import RECIPES, get
from fedslice.training.experiment import Experiment
from toys import Cut, assert_close, begun, classifier, double, fitting, nested, values_on

SHAPES = {"table": torch.Size([40, 3]), "bias": torch.Size([40]), "dense": torch.Size([2, 5])}
IDS = {"rows": Field(Ids(), of=40), "inputs": Field(Ids(), of=5)}
SCHEMA = b"fedslice"


def axis_of(held: Tensor) -> Axis:
    """The positions of a boolean [clients, size]; clients that hold the first ones say so."""
    counts = held.sum(1)
    first = (held.long().cumsum(1).gather(1, (counts - 1).clamp(min=0)[:, None])[:, 0] == counts) & (counts > 0)
    return Axis(counts, Axis.from_flat(held.nonzero()[:, 1], counts).ids, first)


def slice_of(clients: int, axes: Mapping[str, Axis]) -> Slice:
    """Rows of two tables through one shared axis, inputs of a dense layer through another."""
    rows, inputs = axes["rows"], axes["inputs"]
    return Slice(clients, SHAPES, {"table": (rows, None), "bias": (rows,), "dense": (None, inputs)})


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Slice, dict[str, Axis]]:
    """A slice for a few clients, and its axes."""
    clients = draw(st.integers(1, 4))
    axes = {}
    for name, size in (("rows", 40), ("inputs", 5)):
        lists = [draw(st.lists(st.booleans(), min_size=size, max_size=size)) for _ in range(clients)]
        firsts = [draw(st.integers(0, 3 * size)) for _ in range(clients)]
        held = [[i < f for i in range(size)] if f <= size else own for own, f in zip(lists, firsts, strict=True)]
        axes[name] = axis_of(torch.tensor(held))
    return slice_of(clients, axes), axes


def declared(part: Slice) -> Fields:
    """One field of every kind: on a slice, on none, of entries that vary, and one that a message may lack."""
    return {
        "scale": Field(Floats(torch.float64), shape=(2,)),
        "flag": Field(Bits(3), on=part),
        "some": Field(Floats(torch.float32), on=part, where=chosen),
        "maybe": Field(Floats(torch.float32), on=part, optional=True),
    }


def chosen(body: Body) -> OnSlice:
    flag = body["flag"]
    assert isinstance(flag, OnSlice)
    return OnSlice(flag.part, {name: value > 3 for name, value in flag.values.items()})


def filled(chunk: Slice, axes: Mapping[str, Axis], seed: int) -> Message:
    draw = torch.Generator().manual_seed(seed)

    def on(low: int, high: int) -> OnSlice:
        model = {n: torch.randint(low, high, s, generator=draw) for n, s in SHAPES.items()}
        return OnSlice(chunk, {n: v.clone() for n, v in chunk.gather(model).items()})

    def floats() -> OnSlice:
        return OnSlice(chunk, {n: v.float() for n, v in on(-9, 9).values.items()})

    clients = torch.arange(chunk.clients)
    numbers = [torch.randint(0, most, clients.shape, generator=draw) for most in (2**62, 2**16, 2**31, 2**31)]
    declined = torch.zeros(chunk.clients, dtype=torch.bool)
    head = Header(Kind.UPLOAD, 7, *numbers, layout=3, declined=declined)
    body: Body = {
        **axes,
        "scale": torch.randn(chunk.clients, 2, generator=draw, dtype=torch.float64),
        "flag": on(0, 8),
        "some": floats(),
        "maybe": Maybe(clients % 2 == 0, floats()),
    }
    return Message(head, {**IDS, **declared(chunk)}, body)


@given(chunks(), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_a_message_is_as_long_as_counted_and_comes_back(chunk: tuple[Slice, dict[str, Axis]], seed: int) -> None:
    message = filled(*chunk, seed)
    sizes, framing = message.sizes(), message.framing()
    for client in range(message.clients):
        data = message.pack(client, SCHEMA)
        assert len(data) == int(framing[client]) + sum(int(size[client]) for size in sizes.values())
        opened = open_message(data, SCHEMA)
        assert len(opened.payload) == sum(int(size[client]) for size in sizes.values())
        again = unpack(opened, IDS, lambda axes: declared(slice_of(1, axes)))
        one = message.head.one(client)
        assert (again.head.kind, again.head.round, again.head.layout) == (Kind.UPLOAD, 7, 3)
        for name in ("clients", "draws", "model_round", "upload_round", "declined"):
            assert torch.equal(getattr(again.head, name), getattr(one, name))
        for name, axis in chunk[1].items():
            assert torch.equal(again.body[name].ids[0], axis.ids[client, : int(axis.counts[client])])
        assert torch.equal(again.body["scale"], message.body["scale"][client : client + 1])
        for name, value in again.body["flag"].values.items():
            assert torch.equal(value[0], message.body["flag"].values[name][client][chunk[0].own(name, client)])
        there = "maybe" in again.body
        assert there == (client % 2 == 0)
        absent = {} if there else {"maybe": Maybe(torch.tensor([False]), again.body["some"])}
        assert Message(again.head, again.fields, again.body | absent).pack(0, SCHEMA) == data


@given(chunks(), st.integers(0, 2**31))
@settings(deadline=None, max_examples=20)
def test_a_declined_message_is_its_header_alone(chunk: tuple[Slice, dict[str, Axis]], seed: int) -> None:
    full = filled(*chunk, seed)
    declined = torch.arange(full.clients) % 2 == 0
    head = Header(**{**vars(full.head), "declined": declined})
    message = Message(head, full.fields, full.body)
    for client, alone in enumerate(declined.tolist()):
        assert (len(message.pack(client, SCHEMA)) == HEADER_BYTES) == alone
        size = int(message.framing()[client]) + sum(int(size[client]) for size in message.sizes().values())
        assert len(message.pack(client, SCHEMA)) == size
    data = bytearray(full.pack(0, SCHEMA))
    data[HEADER_BYTES - 3] = 1
    with pytest.raises(Refused, match="is declined and has a body"):
        unpack(open_message(bytes(data), SCHEMA), IDS, lambda axes: declared(slice_of(1, axes)))


@given(nested(), st.integers(0, 99), st.integers(-3, 3))
@settings(deadline=None, max_examples=60)
def test_entries_are_read_on_other_coordinates(cuts: tuple[Cut, Cut], seed: int, rest: int) -> None:
    """A client that has some rows of a large table is never laid out over the whole of it."""
    inner, outer = cuts
    for client in range(outer.slice.clients):
        small, large = inner.slice.one(client), outer.slice.one(client)
        cut = Cut(large, {name: [own[client]] for name, own in outer.chosen.items()})
        values = values_on(cut, seed)
        expected = small.pick(values, large.only(small.axes))
        with pytest.MonkeyPatch.context() as patch:
            if small.within(large):
                patch.setattr(Slice, "spread", lambda *_: pytest.fail("the whole of a parameter was made"))
            found = OnSlice(large, values, rest).at(small)
        assert found.keys() == expected.keys()
        for name in found:
            assert torch.equal(found[name], expected[name])
        everywhere = Slice.whole(1, large.shapes, small.axes)
        for name, value in OnSlice(small, expected, rest).at(everywhere).items():
            held = small.inside(everywhere, name).expand_as(value)
            assert torch.equal(value[~held], torch.full_like(value[~held], rest))
            assert torch.equal(value[held].sort().values, expected[name].flatten().sort().values)


@given(st.integers(1, 60), st.data())
@settings(deadline=None, max_examples=40)
def test_positions_among_others_are_numbered_among_them(extent: int, data: st.DataObject) -> None:
    """They take as many bytes as if there were no other positions."""
    held = sorted(data.draw(st.sets(st.integers(0, extent - 1), min_size=1)))
    ids = sorted(data.draw(st.sets(st.sampled_from(held))))
    outer, inner = (Axis(torch.tensor([len(own)]), torch.tensor([own], dtype=torch.int64)) for own in (held, ids))
    fields = {"ids": Field(Ids(), of=outer)}
    one = torch.zeros(1, dtype=torch.int64)
    message = Message(Header(Kind.UPLOAD, 0, one, one, one, one), fields, {"ids": inner})
    found = unpack(open_message(message.pack(0, SCHEMA), SCHEMA), fields, lambda axes: {}).body["ids"]
    assert found.ids[0].tolist() == ids
    size = Ids().size(torch.tensor(len(ids)), torch.tensor(False), len(held))
    assert int(message.sizes()["ids"]) == int(size)


@given(st.integers(1, 200), st.booleans(), st.data())
@settings(deadline=None, max_examples=60)
def test_ids_come_back(extent: int, prefix: bool, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, extent))
    drawn = data.draw(st.sets(st.integers(0, extent - 1), min_size=count, max_size=count))
    ids = torch.arange(count) if prefix else torch.tensor(sorted(drawn), dtype=torch.int64)
    size = int(Ids().size(torch.tensor(count), torch.tensor(prefix), extent))
    known = prefix or count == extent
    packed = b"" if known else Ids().pack(ids, extent)
    assert len(packed) == size
    assert torch.equal(Ids().unpack(memoryview(packed), count, prefix, extent), ids)
    if size:
        assert size <= min((count * Ids.width(extent) + 7) // 8, (extent + 7) // 8)


@given(st.integers(1, 16), st.data())
@settings(deadline=None, max_examples=60)
def test_bits_come_back_and_fill_the_last_byte_with_zeros(width: int, data: st.DataObject) -> None:
    entries = torch.tensor(data.draw(st.lists(st.integers(0, 2**width - 1))), dtype=torch.int64)
    packed = Bits(width).pack(entries)
    assert len(packed) == int(Bits(width).size(torch.tensor(len(entries))))
    assert torch.equal(Bits(width).unpack(memoryview(packed), len(entries)), entries)
    if 8 * len(packed) > width * len(entries):
        with pytest.raises(Refused, match="zeros"):
            Bits(width).unpack(memoryview(packed[:-1] + bytes([packed[-1] | 1])), len(entries))


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_whose_uploads_become_bytes_is_the_same_run(name: str) -> None:
    """For every recipe: the model to float tolerance, and the ledger field by field, in both directions."""
    with double():
        task, recipe = fitting(name)
        plain, packed = (begun(task, recipe, rounds=4, wire=wire) for wire in (False, True))
        plain.run()
        packed.run()
    assert_close(plain.model, packed.model, atol=1e-9)
    assert plain.ledger.state_dict() == packed.ledger.state_dict()


def waiting(name: str) -> Waiting:
    """A round of a recipe that stands still after the requests."""
    task, recipe = fitting(name)
    experiment = begun(task, recipe, rounds=4)
    experiment.run()
    return Waiting(experiment)


def test_nothing_is_allocated_for_entries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of the body is compared before anything is read from it."""
    round_ = waiting("stc").train()
    data = round_.data(0)
    for reader in ("_read", "_read_ids"):
        monkeypatch.setattr(f"fedslice.core.message.{reader}", lambda *_: pytest.fail("something was read"))
    numbers = int.from_bytes(data[HEADER_BYTES - 2 : HEADER_BYTES], "little")
    for wrong in (data + bytes(10_000), data[:-1], data[: HEADER_BYTES + 8 * numbers]):
        said = round_.refusal(0, wrong)
        assert said is not None
        assert "its header says" in said


class Mixed(torch.nn.Module):
    """Two layers of different precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 3), torch.nn.Linear(3, 3).double()

    def forward(self, **features: Tensor) -> Tensor:
        (x,) = features.values()
        return self.last(self.first(x).double()).float()  # type: ignore[no-any-return]


def mixed(recipe: str, rounds: int, **options: object) -> tuple[Experiment, Experiment]:
    """A run in memory and the same in bytes."""
    torch.manual_seed(0)
    task, parts = classifier(Mixed()), get(recipe, cohort=2, lr=0.05, **options)
    plain, packed = (Experiment(task, parts, rounds=rounds, engine="sequential", wire=wire) for wire in (False, True))
    plain.run()
    packed.run()
    return plain, packed


def test_parameters_of_two_precisions_are_counted_at_their_own() -> None:
    plain, packed = mixed("fedavg", 2)
    assert plain.ledger.state_dict() == packed.ledger.state_dict()
    assert plain.ledger.up["values.float32"] == 2 * 2 * 4 * 15
    assert plain.ledger.up["values.float64"] == 2 * 2 * 8 * 12
    assert plain.ledger.down == {name: size for name, size in plain.ledger.up.items() if name.startswith("values")}


@pytest.mark.parametrize("recipe", ["sign", "stc", "fetchsgd", "lbgm", "flss"])
def test_codecs_keep_two_precisions_apart(recipe: str) -> None:
    plain, packed = mixed(recipe, 8, **({"rank": 3, "warmup": 2, "every": 3} if recipe == "flss" else {}))
    assert plain.ledger.state_dict() == packed.ledger.state_dict()
    assert {name: value.dtype for name, value in packed.model.items()} == packed.spec.dtypes
    assert_close(packed.model, plain.model, atol=1e-6)
