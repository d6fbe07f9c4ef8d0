"""The ledger counts what packing really makes, and packing loses nothing."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedslice import wire
from fedslice.errors import UserError
from fedslice.slice import Axis, Slice

SHAPES = {"table": torch.Size([40, 3]), "bias": torch.Size([40]), "dense": torch.Size([2, 5])}


@st.composite
def chunks(draw: st.DrawFn) -> Slice:
    """Rows of two tables through one shared axis, inputs of a dense layer through another, for a few clients."""
    clients = draw(st.integers(1, 4))
    rows = torch.tensor([draw(st.lists(st.booleans(), min_size=40, max_size=40)) for _ in range(clients)])
    inputs = torch.tensor([draw(st.lists(st.booleans(), min_size=5, max_size=5)) for _ in range(clients)])
    table, dense = Axis.from_mask(rows), Axis.from_mask(inputs)
    return Slice(clients, SHAPES, {"table": (table, None), "bias": (table,), "dense": (None, dense)})


@given(chunks(), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_packed_bytes_are_the_ledgers_and_come_back(chunk: Slice, seed: int) -> None:
    model = {n: torch.randn(s, generator=torch.Generator().manual_seed(seed)) for n, s in SHAPES.items()}
    values = {n: v.clone() for n, v in chunk.gather(model).items()}
    for client in range(chunk.clients):
        header, payload = wire.pack(chunk, values, client)
        assert len(payload) == int(chunk.numbers()[client]) * 4 + int(chunk.id_bytes()[client])
        part, back = wire.unpack(header, payload, SHAPES)
        assert int(part.numbers()[0]) == int(chunk.numbers()[client])
        for name, found in part.gather(model).items():
            assert torch.equal(found, back[name])


def _example() -> tuple[wire.Header, bytes]:
    axis = Axis(torch.tensor([3]), torch.tensor([[1, 4, 39]]))
    chunk = Slice(1, SHAPES, {"table": (axis, None)})
    return wire.pack(chunk, {"table": torch.ones(1, 3, 3)}, 0)


def test_ids_are_packed_integers_when_few_and_a_bitmap_when_many() -> None:
    _, payload = _example()
    assert len(payload) == 3 * 6 // 8 + 1 + 9 * 4
    many = Axis(torch.tensor([30]), torch.arange(30)[None])
    _, payload = wire.pack(Slice(1, SHAPES, {"bias": (many,)}), {"bias": torch.ones(1, 30)}, 0)
    assert len(payload) == 40 // 8 + 30 * 4


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 20, 38])
def test_a_payload_cut_short_is_refused(cut: int) -> None:
    header, payload = _example()
    with pytest.raises(UserError, match="cut short"):
        wire.unpack(header, payload[:cut], SHAPES)


def test_a_foreign_payload_is_refused() -> None:
    header, payload = _example()
    with pytest.raises(UserError, match="more than its header"):
        wire.unpack(header, payload + b"\0", SHAPES)
    with pytest.raises(UserError, match="ascending"):
        wire.unpack(header, b"\xff\xff\xff" + payload[3:], SHAPES)
    with pytest.raises(UserError, match="NaN"):
        wire.unpack(header, payload[:3] + b"\xff" * 36, SHAPES)
    with pytest.raises(UserError, match="no such one"):
        wire.unpack(dataclasses.replace(header, parameters={"other": (0, None)}), payload, SHAPES)
    with pytest.raises(UserError, match="extent"):
        wire.unpack(dataclasses.replace(header, parameters={"dense": (0, None)}), payload, SHAPES)
    with pytest.raises(UserError, match="positions"):
        wire.unpack(dataclasses.replace(header, axes=((40, 41, False),)), payload, SHAPES)
