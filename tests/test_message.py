"""Messages: as many bytes as counted, nothing lost on the way, and nothing accepted that nobody could have sent."""

import dataclasses
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exchange import Sent, heard
from fedslice.core.encodings import Bits, Floats, Ids
from fedslice.core.message import Body, Field, Fields, Header, Message, OnSlice, unpack
from fedslice.errors import Refused
from fedslice.experiment import Experiment
from fedslice.recipes import RECIPES, get
from fedslice.slice import Axis, Slice
from toys import assert_close, begun, classifier, double, fitting

SHAPES = {"table": torch.Size([40, 3]), "bias": torch.Size([40]), "dense": torch.Size([2, 5])}
CODED = ("fedavg", "fedsubavg", "scaffold", "sign", "stc", "fetchsgd", "lbgm", "flss", "sign+flss", "heterofl", "feddd")


@st.composite
def chunks(draw: st.DrawFn) -> Slice:
    """Rows of two tables through one shared axis, inputs of a dense layer through another, for a few clients."""
    clients = draw(st.integers(1, 4))
    rows = torch.tensor([draw(st.lists(st.booleans(), min_size=40, max_size=40)) for _ in range(clients)])
    inputs = torch.tensor([draw(st.lists(st.booleans(), min_size=5, max_size=5)) for _ in range(clients)])
    table, dense = Axis.from_mask(rows), Axis.from_mask(inputs)
    return Slice(clients, SHAPES, {"table": (table, None), "bias": (table,), "dense": (None, dense)})


def declared(part: Slice) -> Fields:
    """One field of every kind: on a slice, on none, and of entries that vary."""
    return {
        "scale": Field(Floats(torch.float64), shape=(2,)),
        "flag": Field(Bits(3), on=part),
        "some": Field(Floats(torch.float32), on=part, where=chosen),
    }


def chosen(body: Body) -> OnSlice:
    flag = body["flag"]
    assert isinstance(flag, OnSlice)
    return OnSlice(flag.part, {name: value > 3 for name, value in flag.values.items()})


def filled(chunk: Slice, seed: int) -> Message:
    draw = torch.Generator().manual_seed(seed)

    def on(low: int, high: int) -> OnSlice:
        model = {n: torch.randint(low, high, s, generator=draw) for n, s in SHAPES.items()}
        return OnSlice(chunk, {n: v.clone() for n, v in chunk.gather(model).items()})

    values = on(-9, 9)
    floats = OnSlice(chunk, {n: v.float() for n, v in values.values.items()})
    scale = torch.randn(chunk.clients, 2, generator=draw, dtype=torch.float64)
    return Message(chunk, declared(chunk), {"scale": scale, "flag": on(0, 8), "some": floats})


@given(chunks(), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_a_message_is_as_long_as_counted_and_comes_back(chunk: Slice, seed: int) -> None:
    message = filled(chunk, seed)
    sizes = message.sizes()
    for client in range(chunk.clients):
        header, payload = message.pack(client)
        assert len(payload) == sum(int(size[client]) for size in sizes.values())
        part, body = unpack(header, payload, SHAPES, declared)
        again = Message(part, declared(part), body)
        assert again.pack(0) == (header, payload)
        assert torch.equal(body["scale"], message.body["scale"][client : client + 1])  # type: ignore[arg-type, index]


@given(st.integers(1, 200), st.data())
@settings(deadline=None, max_examples=60)
def test_ids_come_back(extent: int, data: st.DataObject) -> None:
    ids = torch.tensor(sorted(data.draw(st.sets(st.integers(0, extent - 1)))), dtype=torch.int64)
    packed = Ids(extent).pack(ids)
    size = Ids(extent).size(torch.tensor(len(ids)), torch.tensor(False))
    assert len(packed) == int(size) or len(ids) == extent
    assert torch.equal(Ids(extent).unpack(memoryview(packed), len(ids), False), ids)


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
    """For every recipe: the model to float tolerance, and the ledger field by field."""
    with double():
        task, recipe = fitting(name)
        plain, packed = (begun(task, recipe, rounds=4, wire=wire) for wire in (False, True))
        plain.run()
        packed.run()
    assert_close(plain.model, packed.model, atol=1e-9)
    assert plain.ledger.state_dict() == packed.ledger.state_dict()


def last_messages(name: str) -> list[Sent]:
    task, recipe = fitting(name)
    experiment = begun(task, recipe, rounds=4)
    messages = heard(experiment)
    experiment.run()
    return messages


def mutated(header: Header, payload: bytes, chance: random.Random) -> tuple[Header, bytes]:
    """A message with one thing wrong: bits, length, huge numbers, positions out of range, NaN."""
    kind, raw = chance.randrange(7), bytearray(payload)
    at = chance.randrange(len(raw)) if raw else 0
    if kind == 0 and raw:
        raw[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        raw = raw[:at]
    elif kind == 2:
        raw += bytes(chance.randrange(1, 100))
    elif kind == 3 and raw:
        raw[at : at + 8] = b"\xff" * len(raw[at : at + 8])
    elif kind == 4 and header.numbers:
        numbers = list(header.numbers)
        numbers[chance.randrange(len(numbers))] = chance.choice([-1, 0, 1, 2**31, 2**63, 10**30])
        header = dataclasses.replace(header, numbers=tuple(numbers))
    elif kind == 5 and header.axes:
        axes = list(header.axes)
        extent, count, prefix = axes.pop(chance.randrange(len(axes)))
        wrong = chance.choice([(extent, count + 1, prefix), (extent, -1, prefix), (2**62, 2**62, prefix)])
        axes.append(chance.choice([wrong, (extent, count, not prefix)]))
        header = dataclasses.replace(header, axes=tuple(axes))
    else:
        parameters: dict[str, Any] = dict(header.parameters)
        if parameters:
            parameters.pop(chance.choice(list(parameters)))
        header = dataclasses.replace(header, parameters=parameters)
    return header, bytes(raw)


@pytest.mark.parametrize("name", CODED)
def test_a_mutated_message_is_refused_or_harmless(name: str) -> None:
    """Nothing but the project's own error comes out, and no accepted value is NaN or infinite."""
    chance, refused = random.Random(0), 0
    messages = last_messages(name)
    for number in range(600):
        message = messages[-1 - number % min(4, len(messages))]
        client = number % message.message.clients
        header, payload = mutated(*message.pack(client), chance)
        try:
            _, update = message.unpacked(client, header, payload)
        except Refused:
            refused += 1
            continue
        assert all(bool(value.isfinite().all()) for value in update.of(update.fine()).values.values())
    assert refused > 200


def test_nothing_is_allocated_for_entries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of the body is compared before anything is read from it."""
    message = last_messages("stc")[-1]
    header, payload = message.pack(0)
    monkeypatch.setattr("fedslice.core.message._read", lambda *_: pytest.fail("something was read"))
    for wrong in (payload + bytes(10_000), payload[:-1], b""):
        with pytest.raises(Refused, match="its header says"):
            message.unpacked(0, header, wrong)


def test_parameters_of_two_precisions_are_counted_at_their_own() -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 3), torch.nn.Linear(3, 3).double()

        def forward(self, **features: Tensor) -> Tensor:
            (x,) = features.values()
            return self.last(self.first(x).double()).float()  # type: ignore[no-any-return]

    task = classifier(Mixed())
    plain, packed = (
        Experiment(task, get("fedavg", cohort=2, lr=0.05), rounds=2, engine="sequential", wire=wire)
        for wire in (False, True)
    )
    plain.run()
    packed.run()
    assert plain.ledger.up == packed.ledger.up
    assert plain.ledger.up["values.float32"] == 2 * 2 * 4 * 15
    assert plain.ledger.up["values.float64"] == 2 * 2 * 8 * 12
