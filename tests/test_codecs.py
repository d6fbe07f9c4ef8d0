"""What holds for every codec: packing, chunks and engines, resuming, silenced clients, refused payloads and company."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from exchange import Sent, heard, sent
from fedslice.codecs import LBGM, STC, Codec, Dense, FetchSGD, Quantize, Sign, StreamingSubspace, TopK
from fedslice.codecs import memory as memories
from fedslice.combine import Coverage, HeatCorrected
from fedslice.core.message import Body, Header, OnSlice, unpack
from fedslice.errors import Refused, UserError
from fedslice.experiment import Experiment
from fedslice.local import Scaffold
from fedslice.messages import Upload
from fedslice.recipe import Recipe
from fedslice.select import Everyone, Uniform
from fedslice.server import Adam
from fedslice.slice import Slice
from fedslice.slices import ChannelDropout, FeatureRows, Shared, Width
from fedslice.task import Task
from toys import assert_close, assert_same, double, mlp, pair, recommender, run, world

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
    if not (CODECS[codec].sums_codes and place in ("width", "drawn", "labels", "shared"))
    and not (codec == "fetchsgd-momentum" and place != "rows")
]


def made(codec: str, place: str, **options: Any) -> Experiment:
    make, parts = PLACES[place]
    recipe = Recipe(**{"select": Uniform(cohort=4), "codec": CODECS[codec]} | parts)
    recipe = recipe.with_options({"iterations": 2, "batch_size": 4, "lr": 0.05})
    return Experiment(make(), recipe, **{"rounds": 4, "engine": "vectorized", "chunk": 4} | options)


# --- packing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "place"), FIT)
def test_a_message_is_as_long_as_counted_and_arrives_as_decoded(codec: str, place: str) -> None:
    """A run in which every upload becomes bytes is the same run; the loop compares each length with the ledger's."""
    plain, packed = made(codec, place), made(codec, place, wire=True)
    one, other = plain.run()[-1], packed.run()[-1]
    assert one["up_bytes"] == other["up_bytes"] > 0
    assert plain.ledger.up == packed.ledger.up
    assert_close(plain.model, packed.model, atol=1e-6)


def test_an_upload_that_drifts_is_packed_with_its_drift() -> None:
    recipe = Recipe(select=Everyone(), local=Scaffold())
    with double():
        plain, packed = (
            Experiment(recommender(), recipe, rounds=3, engine="vectorized", wire=wire) for wire in (False, True)
        )
        plain.run()
        packed.run()
    assert_close(plain.model, packed.model, atol=1e-12)
    assert plain.ledger.up == packed.ledger.up


@pytest.mark.parametrize("codec", CODECS)
def test_cut_and_foreign_payloads_are_refused(codec: str) -> None:
    experiment = made(codec, "rows")
    messages = heard(experiment)
    experiment.run()
    message = messages[-1]
    header, payload = message.pack(0)
    for length in [*range(len(payload)), len(payload) + 1]:
        with pytest.raises(Refused, match=f"has {length} bytes, its header says {len(payload)}"):
            message.unpacked(0, header, (payload + b"\0")[:length])
    other = dataclasses.replace(header, parameters={"nobody": (None,)})
    with pytest.raises(Refused, match="which the model does not have"):
        message.unpacked(0, other, payload)
    with pytest.raises(Refused):
        message.unpacked(0, header, b"\xff" * len(payload))


@pytest.mark.parametrize(("axes", "said"), [(((14, 2, False),) * 9, "no parameter uses"), ((), "axis 0 of 0")])
def test_a_header_that_does_not_fit_itself_is_refused(axes: Any, said: str) -> None:
    header = Header(axes, {"item.weight": (0, None)})
    with pytest.raises(Refused, match=said):
        unpack(header, b"", recommender().shapes, lambda part: {})


def test_a_factor_without_a_past_is_refused() -> None:
    experiment = made("lbgm", "whole", rounds=6)
    messages = heard(experiment)
    experiment.run()
    message = next(m for m in messages if bool(m.body["close"][0].any()))
    fresh = LBGM()
    fresh.setup(world(mlp()))
    with pytest.raises(Refused, match="never sent values"):
        Sent(fresh, message.t, message.given, message.body).unpacked(0, *message.pack(0))


# --- chunks, engines, restarts ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("codec", "place"), [(c, p) for c, p in FIT if p in ("rows", "width")])
def test_a_restart_goes_on_to_the_bit(codec: str, place: str) -> None:
    whole = made(codec, place, rounds=6)
    whole.run()
    first, second = made(codec, place, rounds=3), made(codec, place, rounds=6)
    first.run()
    second.load_state_dict(*copy.deepcopy(first.state_dict()))
    second.run()
    expected, found = whole.state_dict(), second.state_dict()
    assert_same(found[0], expected[0])
    assert found[1]["ledger"] == expected[1]["ledger"]


@pytest.mark.parametrize("codec", ["sign", "topk", "stc", "lbgm"])
def test_a_silenced_client_keeps_its_memory_and_changes_nothing(codec: str) -> None:
    task = mlp()
    draw = torch.Generator().manual_seed(1)

    def ready() -> tuple[Codec, Any]:
        part, place = copy.deepcopy(CODECS[codec]), world(task)
        part.setup(place)
        return part, place.store

    def upload(clients: list[int], weights: list[float]) -> Upload:
        where = Slice.whole(len(clients), task.shapes)
        values = {n: torch.randn(len(clients), *s, generator=draw) for n, s in task.shapes.items()}
        return Upload(torch.tensor(clients), torch.tensor(weights).double(), where, where, values)

    (part, store), (alone, single) = ready(), ready()
    first, second = upload([0, 1, 2], [1, 2, 3]), upload([0, 1, 2], [1, 2, 3])
    sent(part, 0, first).decoded()
    sent(alone, 0, first).decoded()
    before = copy.deepcopy(store.state_dict())
    silent = sent(part, 1, second.of(torch.tensor([True, False, True]))).decoded()
    after = store.state_dict()
    assert silent.weights.tolist() == [1, 0, 3]
    for key in (key for key in before if key.endswith("/rows")):
        assert torch.equal(after[key][1], before[key][1]), key
    some = {n: v[[0, 2]] for n, v in second.values.items()}
    where = Slice.whole(2, task.shapes)
    rest = sent(alone, 1, Upload(torch.tensor([0, 2]), torch.tensor([1.0, 3.0]).double(), where, where, some)).decoded()
    for name, value in rest.values.items():
        torch.testing.assert_close(silent.values[name][[0, 2]], value)
    assert_close(single.state_dict(), after)


def test_memories_outside_of_a_slice_stay() -> None:
    """A client that is narrow today remembers what it left out when it was wide."""
    experiment = made("sign", "drawn", rounds=1, seed=3)
    experiment.run()
    key = "sign/error/first.weight"
    everyone = torch.arange(6)
    before, known = experiment.store.get(key, everyone)  # type: ignore[misc]
    for t in range(1, 8):
        held = experiment.recipe.slices.hold(t, everyone)
        cohort = set(experiment.recipe.select.choose(t, 6, 3).clients.tolist())
        experiment.rounds = t + 1
        experiment.run()
        after, _ = experiment.store.get(key, everyone)  # type: ignore[misc]
        inside = held.inside(Slice.whole(6, held.shapes), "first.weight").expand_as(after)
        for client in cohort:
            if known[client]:
                assert torch.equal(after[client][~inside[client]], before[client][~inside[client]])
        before, known = experiment.store.get(key, everyone)  # type: ignore[misc]


# --- what is counted ----------------------------------------------------------------------------------------------


def test_words_are_those_of_the_paper() -> None:
    """S4's table 1: D, D/32, D/32, r·c = D/4 and the coefficients."""
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


@pytest.mark.parametrize("codec", ["stc", "fetchsgd"])
def test_what_comes_down_are_the_steps_that_a_client_missed(codec: str) -> None:
    """Packing every step of the server as a message, and adding up those since a client's last round."""
    experiment = made(codec, "whole", rounds=1)
    part, shapes = experiment.recipe.codec, experiment.task.shapes
    everyone = torch.arange(6)
    held = Slice.whole(6, shapes)
    whole = held.numbers() * 4
    packer = STC(share=0.3) if codec == "stc" else TopK(share=0.2, error_feedback=False)
    seen, steps, model = [-1] * 6, list[int](), experiment.model
    for t in range(6):
        due = [w if s < 0 else min(sum(steps[s:]), w) for s, w in zip(seen, whole.tolist(), strict=True)]
        assert part.down_bytes(t, held, 4, everyone).tolist() == due
        before = {n: v.clone() for n, v in model.items()}
        experiment.rounds = t + 1
        experiment.run()
        step = {n: (model[n] - before[n])[None] for n in shapes}
        steps.append(_packed(packer, step))
        for client in experiment.recipe.select.choose(t, 6, 0).clients.tolist():
            seen[client] = t
    assert min(seen) >= 0


def _packed(packer: Codec, step: dict[str, Tensor]) -> int:
    """The length of a step as a message, whose values are already what the codec sends."""
    packer.setup(world(mlp()))
    one = Slice.whole(1, mlp().shapes)
    upload = Upload(torch.tensor([0]), torch.ones(1).double(), one, one, step)
    taken = OnSlice(one, {name: value != 0 for name, value in step.items()})
    body: Body = {
        "places": taken,
        "entries": OnSlice(one, step),
        "sign": OnSlice(one, {n: v > 0 for n, v in step.items()}),
    }
    body["scale"] = torch.stack([v.abs().max() for v in step.values()])[None]
    return len(Sent(packer, 0, upload, body).pack(0)[1])


# --- company ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"codec": STC(), "server": Adam()}, "codec=stc .* server=adam .*use combine=mean"),
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
