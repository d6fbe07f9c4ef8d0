"""What holds for every codec: packing, chunks and engines, resuming, silenced clients, refused payloads and company."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from exchange import Copies, Halves, Waiting, heard, whole
from fedslice.codecs import LBGM, STC, Codec, Dense, FetchSGD, Quantize, Sign, StreamingSubspace, TopK
from fedslice.codecs import memory as memories
from fedslice.codecs.log import Coded
from fedslice.codecs.sparse import entry_fields
from fedslice.combine import Accumulator, Coverage, HeatCorrected
from fedslice.core.encodings import Ids
from fedslice.core.entries import OnSlice, View
from fedslice.core.errors import Refused, UserError
from fedslice.core.header import HEADER_BYTES, Header, Kind, open_message
from fedslice.core.message import Body, Field, Message, unpack
from fedslice.core.slice import Axis, Slice
from fedslice.core.update import Update
from fedslice.local import Scaffold
from fedslice.recipe import Recipe
from fedslice.select import Everyone, Uniform
from fedslice.server import ServerAdam
from fedslice.slices import ChannelDropout, FeatureRows, Shared, Width
from fedslice.task import Task
from fedslice.training.experiment import Experiment
from fedslice.training.rounds import play_round
from toys import SIZES, assert_close, assert_same, double, mlp, pair, recommender, run, training

CODECS: dict[str, Codec] = {
    "dense": Dense(),
    "sign": Sign(),
    "topk": TopK(share=0.3),
    "stc": STC(share=0.3),
    "quantize": Quantize(bits=4),
    "fetchsgd": FetchSGD(share=0.5, top=0.2),
    "fetchsgd-momentum": FetchSGD(share=0.5, top=0.2, momentum=0.5),
    "lbgm": LBGM(delta=0.3),
    "subspace": StreamingSubspace(rank=3, warmup=2, every=3),
}
PLACES: dict[str, tuple[Callable[[], Task], dict[str, Any]]] = {
    "whole": (mlp, {}),
    "tables": (recommender, {}),
    "rows": (recommender, {"slices": FeatureRows()}),
    "width": (mlp, {"slices": Width(widths="1,0.5"), "combine": Coverage()}),
    "drawn": (mlp, {"slices": Width(widths="0.5,1", drawn=True), "combine": Coverage()}),
    "labels": (mlp, {"slices": Width(widths="1,0.5", own_labels=True), "combine": Coverage()}),
    "shared": (pair, {"slices": Shared()}),
}
FIT = [
    (codec, place)
    for codec in CODECS
    for place in PLACES
    if not ("sums-codes" in CODECS[codec].provides and place in ("width", "drawn", "labels", "shared"))
    and not (codec == "fetchsgd-momentum" and place != "rows")
]


def made(codec: str, place: str, **options: Any) -> Experiment:
    make, parts = PLACES[place]
    recipe = Recipe(**{"select": Uniform(cohort=4), "codec": CODECS[codec]} | parts)
    recipe = recipe.with_options({"iterations": 2, "batch_size": 4, "lr": 0.05})
    return Experiment(make(), recipe, **{"rounds": 4, "engine": "vectorized", "chunk": 4} | options)


# --- packing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "place"), FIT)
def test_a_message_is_as_long_as_counted_and_arrives_as_decoded(codec: str, place: str) -> None:
    """A run in which every upload becomes bytes is the same run; the loop compares each length with the ledger's."""
    plain, packed = made(codec, place), made(codec, place, wire=True)
    one, other = plain.run()[-1], packed.run()[-1]
    assert one["up_bytes"] == other["up_bytes"] > 0
    assert plain.ledger.state_dict() == packed.ledger.state_dict()
    assert_close(plain.model, packed.model, atol=1e-6)


def test_an_upload_that_drifts_is_packed_with_its_drift() -> None:
    recipe = Recipe(select=Everyone(), local=training(Scaffold))
    with double():
        plain, packed = (
            Experiment(recommender(), recipe, rounds=3, engine="vectorized", wire=wire) for wire in (False, True)
        )
        plain.run()
        packed.run()
    assert_close(plain.model, packed.model, atol=1e-12)
    assert plain.ledger.state_dict() == packed.ledger.state_dict()


@pytest.mark.parametrize("codec", CODECS)
def test_cut_and_foreign_payloads_are_refused(codec: str) -> None:
    experiment = made(codec, "rows")
    experiment.run()
    waiting = Waiting(experiment).train()
    data = waiting.data(0)
    begin = HEADER_BYTES + 8 * int.from_bytes(data[HEADER_BYTES - 2 : HEADER_BYTES], "little")
    body = len(data) - begin
    assert body > 0
    for length in [*range(len(data)), len(data) + 1]:
        said = waiting.refusal(0, (data + b"\0")[:length])
        if length < HEADER_BYTES:
            assert said == f"has {length} bytes, a header alone has {HEADER_BYTES}"
        elif length < begin:
            assert said == f"ends inside its header, after {length} of {begin} bytes"
        else:
            assert said == f"has a body of {length - begin} bytes, its header says {body}"
    foreign = waiting.messages.pack(0, bytes(8))
    assert waiting.refusal(0, foreign) == "has another schema: recipe or model differ between client and server"
    assert waiting.refusal(0, data[:begin] + b"\xff" * body)
    assert waiting.refusal(0, data) is None, "what was sent is taken after all that"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [((3 << 1, 9), "has 1 numbers too many"), ((), "says no number of entries of 'rows'"), ((15 << 1,), "names 15 of")],
)
def test_a_header_that_does_not_fit_itself_is_refused(numbers: tuple[int, ...], said: str) -> None:
    one = torch.tensor([0])
    axis = Axis(torch.tensor([3]), torch.tensor([[1, 4, 13]]))
    rows = {"rows": Field(Ids(), of=14)}
    data = Message(Header(Kind.UPLOAD, 0, one, one, one, one), rows, {"rows": axis}).pack(0, b"fedslice")
    opened = open_message(data, b"fedslice")
    assert unpack(opened, rows, lambda axes: {}).body["rows"].ids.tolist() == [[1, 4, 13]]
    with pytest.raises(Refused, match=said):
        unpack(opened._replace(numbers=numbers), rows, lambda axes: {})


@pytest.mark.parametrize("wire", [False, True])
def test_a_factor_without_a_past_is_refused(wire: bool) -> None:
    """It costs its sender the round, and nobody else."""
    recipe = Recipe(select=Everyone(), codec=LBGM(delta=1)).with_options({"iterations": 2, "lr": 0.05})
    experiment = Experiment(mlp(), recipe, rounds=2, engine="vectorized", chunk=6, wire=wire)
    experiment.run()
    messages = heard(experiment)
    lost = torch.tensor([2])
    experiment.server.states["codec"].store.forget("sent", lost)
    end = play_round(experiment.server, experiment.transport)
    assert bool(torch.cat([message.body["close"] for message in messages]).all()), "factors alone"
    assert end.taken.sort().values.tolist() == [0, 1, 3, 4, 5]
    assert experiment.ledger.refusals[-1][:2] == (2, 2)
    assert experiment.ledger.refusals[-1].reason == "holds NaN or infinity, or decodes to it"
    assert all(bool(value.isfinite().all()) for value in experiment.model.values())


# --- chunks, engines, restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "place"), [(c, p) for c, p in FIT if p not in ("drawn", "labels", "shared")])
def test_chunks_and_engines_agree(codec: str, place: str) -> None:
    # Two items of one sample may have one gradient, and which of two equals goes up hangs on the last bit: no such
    # pair is at the threshold in these rounds.
    when = {"rounds": 3, "seed": 1} if codec in ("topk", "stc") else {}
    with double():
        one = made(codec, place, **when)
        rows = one.run()
        for engine, chunk in (("vectorized", 3), ("sequential", 2)):
            other = made(codec, place, engine=engine, chunk=chunk, **when)
            again = other.run()
            assert_close(other.model, one.model, atol=1e-12)
            assert [(r["up_bytes"], r["down_bytes"]) for r in again] == [(r["up_bytes"], r["down_bytes"]) for r in rows]


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize(("codec", "place"), [(c, p) for c, p in FIT if p in ("rows", "width")])
def test_a_restart_goes_on_to_the_bit(codec: str, place: str, wire: bool) -> None:
    whole = made(codec, place, rounds=6, wire=wire)
    whole.run()
    first, second = made(codec, place, rounds=3, wire=wire), made(codec, place, rounds=6, wire=wire)
    first.run()
    second.load_state_dict(*copy.deepcopy(first.state_dict()))
    second.run()
    expected, found = whole.state_dict(), second.state_dict()
    assert_same(found[0], expected[0])
    assert found[1]["ledger"] == expected[1]["ledger"]


@pytest.mark.parametrize("codec", ["sign", "topk", "stc", "lbgm"])
def test_a_silenced_client_keeps_its_memory_and_changes_nothing(codec: str) -> None:
    draw = torch.Generator().manual_seed(1)
    part, alone = (Halves(CODECS[codec], dtype=torch.float32) for _ in range(2))

    def update(clients: int) -> Update:
        return whole({n: torch.randn(clients, *s, generator=draw) for n, s in part.shapes.items()})

    def stores(both: Halves) -> dict[str, Tensor]:
        """What is remembered of clients on both sides."""
        own = {f"client.{name}": value for name, value in both.memories.store.state_dict().items()}
        store = getattr(both.state, "store", None)
        return own | ({} if store is None else {f"server.{n}": v for n, v in store.state_dict().items()})

    first, second = update(3), update(3)
    part.send(0, first)
    alone.send(0, first)
    before = {name: value.clone() for name, value in stores(part).items()}
    keep, others = torch.tensor([True, False, True]), torch.tensor([0, 2])
    silent = part.send(1, second, taken=keep).update
    after = stores(part)
    for key in (key for key in before if key.endswith("/rows")):
        assert torch.equal(after[key][1], before[key][1]), key
        assert not torch.equal(after[key][0], before[key][0]), key
    rest = alone.send(1, whole({n: v[others] for n, v in second.values.items()}), clients=others).update
    for name, value in rest.values.items():
        torch.testing.assert_close(silent.values[name][others], value)
    assert_close(stores(alone), after)
    weights = torch.tensor([1.0, 2.0, 3.0]).double()
    total, least = Accumulator(), Accumulator()
    total.add(silent.masked(keep), weights * keep)
    least.add(rest, weights[others])
    assert (total.clients, total.weight) == (2, 4)
    mean, expected = total.mean(), least.mean()
    assert_close({n: d.values for n, d in mean.items()}, {n: d.values for n, d in expected.items()})


def test_memories_outside_of_a_slice_stay() -> None:
    """A client that is narrow today remembers what it left out when it was wide."""
    experiment = made("sign", "drawn", rounds=1, seed=3)
    experiment.run()
    everyone, server, memories = torch.arange(6), experiment.server, experiment.population.parts
    slices, select = experiment.recipe.slices, experiment.recipe.select
    seen = 0

    def errors() -> tuple[Tensor, Tensor]:
        found = memories["codec"].get("error/first.weight", everyone)
        assert found is not None
        return found

    before, known = errors()
    for t in range(1, 8):
        held = slices.hold(memories["slices"], t, everyone)
        cohort = set(select.choose(server.states["select"], t).clients.tolist())
        experiment.rounds = t + 1
        experiment.run()
        after, _ = errors()
        inside = held.inside(Slice.whole(6, held.shapes), "first.weight").expand_as(after)
        for client in cohort:
            if known[client]:
                assert torch.equal(after[client][~inside[client]], before[client][~inside[client]])
                seen += int((before[client][~inside[client]] != 0).sum())
        before, known = errors()
    assert seen, "some client was narrow and remembered more"


# --- what is counted ------------------------------------------------------------------------------------------------


def test_words_are_those_of_the_paper() -> None:
    """FLSS's table 1: D, D/32, D/32, r·c = D/4 and the coefficients."""
    size = sum(s.numel() for s in mlp().shapes.values())
    expectations: list[tuple[Codec, float]] = [
        (Dense(), size),
        (Sign(), size / 32),
        (STC(), size / 32),
        (Quantize(bits=8), size / 4),
        (FetchSGD(rows=1), (size + 3) // 4),
        (LBGM(delta=0), size),
    ]
    for codec, expected in expectations:
        recipe = Recipe(select=Everyone(), codec=codec)
        experiment = Experiment(mlp(), recipe, rounds=1, engine="vectorized")
        messages = heard(experiment)
        experiment.run()
        words = messages[0].words
        assert words.dtype == torch.float64
        assert set(words.tolist()) == {expected}
    experiment = made("subspace", "whole", rounds=4)
    messages = heard(experiment)
    experiment.run()
    assert [float(m.words[0]) for m in messages] == [size, size, size, 3]


def test_sign_takes_a_bit_per_value_and_one_number() -> None:
    experiment = made("sign", "whole")
    messages = heard(experiment)
    experiment.run()
    size = sum(s.numel() for s in mlp().shapes.values())
    assert {int(b) for m in messages for b in m.bytes} == {(size + 7) // 8 + 4}


def down_sizes(experiment: Experiment) -> Tensor:
    """Bytes that each client would be sent of the model in the next round."""
    server, clients = experiment.server, torch.arange(len(experiment.population))
    state, kept = server.states["codec"], experiment.population.memories
    head = Header(Kind.REQUEST, server.round, clients, 0 * clients, kept.model_round, kept.committed)
    part, codec = Slice.whole(len(clients), server.spec.shapes), experiment.recipe.codec
    fields = codec.send_fields(server.spec, part, codec.layout(state, server.round))
    return sum(Message(head, fields, codec.send(state, head, View(server.model, part))).sizes().values())  # type: ignore[return-value]


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("codec", ["stc", "fetchsgd"])
def test_what_comes_down_are_the_steps_that_a_client_missed(codec: str, wire: bool) -> None:
    """Packing every step of the server as a message, and adding up those since a client's last round."""
    experiment = made(codec, "whole", rounds=1, wire=wire)
    shapes, spec = experiment.task.shapes, experiment.spec
    full = sum(shape.numel() for shape in shapes.values()) * 4
    seen, steps, model, paid = [-1] * 6, list[int](), experiment.model, 0
    for t in range(6):
        due = [full if s < 0 else min(sum(steps[s:]), full) for s in seen]
        assert down_sizes(experiment).tolist() == due
        before = {n: v.clone() for n, v in model.items()}
        experiment.rounds = t + 1
        experiment.run()
        step = {n: (model[n] - before[n])[None] for n in shapes}
        part = Slice.whole(1, shapes)
        fields = STC(share=0.3).fields(spec, part, 0) if codec == "stc" else entry_fields(spec, part, 0.2)
        steps.append(_packed(fields, part, step))
        for client in experiment.recipe.select.choose(experiment.server.states["select"], t).clients.tolist():
            paid += due[client]
            seen[client] = t
        assert experiment.ledger.down_bytes == paid
    assert min(seen) >= 0
    assert any(0 < sum(steps[s:]) < full for s in range(5))


def _packed(fields: Any, part: Slice, step: dict[str, Tensor]) -> int:
    """The length of a step in a message, whose values are already what the codec sends."""
    one = torch.tensor([0])
    body: Body = {
        "places": OnSlice(part, {name: value != 0 for name, value in step.items()}),
        "entries": OnSlice(part, step),
        "sign": OnSlice(part, {n: v > 0 for n, v in step.items()}),
        "scale": torch.stack([v.abs().max() for v in step.values()])[None],
    }
    data = Message(Header(Kind.UPLOAD, 0, one, one, one, one), fields, body).pack(0, b"fedslice")
    return len(open_message(data, b"fedslice").payload)


# --- copies that follow the server's steps --------------------------------------------------------------------------

FOLLOWING: dict[str, Codec] = {name: CODECS[name] for name in ("stc", "fetchsgd", "subspace")}


@pytest.mark.parametrize("codec", ["fetchsgd", "subspace"])
def test_a_client_that_is_drawn_twice_follows_every_step_once(codec: str) -> None:
    """It asks twice before it is answered, and is sent the same steps twice."""
    recipe = Recipe(select=Uniform(cohort=9, replacement=True), codec=FOLLOWING[codec])
    recipe = recipe.with_options({"iterations": 2, "batch_size": 4, "lr": 0.05})
    with double():
        plain, packed = (
            Experiment(mlp(), recipe, rounds=8, engine="vectorized", chunk=9, wire=wire) for wire in (False, True)
        )
        plain.run()
        packed.run()
    draws = [recipe.select.choose(plain.server.states["select"], t).draws for t in range(8)]
    assert all(bool(draw.any()) for draw in draws)
    assert_close(packed.model, plain.model, atol=1e-12)
    assert packed.ledger.state_dict() == plain.ledger.state_dict()


@pytest.mark.parametrize("codec", FOLLOWING)
def test_a_server_that_went_back_sends_models_to_clients_that_know_another_past(codec: str) -> None:
    """What the clients remember belongs to rounds that have come to something else since."""
    with double():
        experiment, early = made(codec, "whole", rounds=6, wire=True), made(codec, "whole", rounds=4)
        experiment.run()
        early.run()
        experiment.server.load_state_dict(copy.deepcopy(early.server.state_dict()))
        copies = Copies(experiment)
        experiment.server.invite()
        experiment.server.finish()  # this time nobody answers in round 4
        for _ in range(8):
            play_round(experiment.server, experiment.transport)
    assert copies.model <= 1e-9
    assert copies.basis <= 1e-9
    assert copies.sent_whole >= len(SIZES)
    assert copies.steps, "afterwards they follow steps again"


def test_a_client_refuses_steps_that_do_not_lead_from_its_copy() -> None:
    codec = STC(share=0.3)
    both = Halves(codec)
    one, part = torch.tensor([1]), Slice.whole(1, both.shapes)
    zero = {n: torch.zeros(1, *s).double() for n, s in both.shapes.items()}

    def receive(t: int, **body: Any) -> Body:
        return codec.receive(both.memory, Header(Kind.DOWNLOAD, t, one, 0 * one, one, one), part, body)

    with pytest.raises(Refused, match="which this client does not have"):
        receive(3, steps=[])
    receive(3, values=OnSlice(part, zero))
    nothing = Coded(0, {})
    for t, steps in ((5, [nothing]), (2, [nothing]), (2, [])):
        said = f"has {len(steps)} steps, which do not lead from this client's copy to round {t}"
        with pytest.raises(Refused, match=said):
            receive(t, steps=steps)
    receive(5, steps=[nothing] * 4)
    receive(5, steps=[])


# --- company --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"codec": STC(), "server": ServerAdam()}, "codec=stc .* server=adam .*use combine=mean"),
        ({"codec": STC(), "slices": FeatureRows(), "combine": HeatCorrected()}, "codec=stc .* combine=heat"),
        ({"codec": FetchSGD(), "combine": Coverage()}, "combine=coverage .* codec=fetchsgd"),
        ({"codec": FetchSGD(), "slices": Shared()}, "codec=fetchsgd .* slices=shared"),
        ({"codec": Sign(), "select": Uniform(cohort=2, replacement=True)}, "codec=sign .* without replacement"),
        ({"codec": LBGM(), "select": Uniform(cohort=2, replacement=True)}, "codec=lbgm .* without replacement"),
        *(
            ({"codec": c, "slices": ChannelDropout(rate=0.5), "combine": Coverage()}, "use codec=dense")
            for c in (Sign(), TopK(), STC(), Quantize(), LBGM())
        ),
    ],
)
def test_impossible_company_is_refused(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Recipe(**parts)


def test_without_feedback_a_client_may_be_drawn_twice() -> None:
    recipe = Recipe(select=Uniform(cohort=4, replacement=True), codec=Sign(error_feedback=False))
    done = run(mlp(), recipe, rounds=2)
    assert (done.round, done.rejected) == (2, 0)


def test_memories_that_no_machine_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "_MOST", 1000)
    for codec in (Sign(), TopK(), STC(), LBGM()):
        with pytest.raises(UserError, match=r"for each of 6 clients, .* take fewer clients"):
            Experiment(mlp(), Recipe(codec=codec), rounds=1)
    Experiment(mlp(), Recipe(select=Everyone(), codec=TopK(error_feedback=False)), rounds=1)
