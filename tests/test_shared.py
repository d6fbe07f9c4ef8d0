"""Shared blocks: what travels, what never does (T61), and other slices inside of them."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedslice.combine import Coverage, HeatCorrected
from fedslice.config import assignments
from fedslice.core.errors import UserError
from fedslice.core.fields import VALUES
from fedslice.core.header import HEADER_BYTES
from fedslice.core.message import Field, Message
from fedslice.core.slice import Slice, Values
from fedslice.models.discriminative import Discriminative
from fedslice.recipe import Recipe
from fedslice.recipes import get
from fedslice.runs import checkpoint
from fedslice.select import Everyone, Uniform
from fedslice.slices import ChannelDropout, Shared, Width
from fedslice.task import Task
from fedslice.training.events import Listener, Taken
from fedslice.training.experiment import Experiment
from toys import (
    SIZES,
    assert_close,
    assert_same,
    chosen,
    classifier,
    double,
    kept,
    mlp,
    pair,
    plain_training,
    readers,
    recommender,
    run,
)

CLIENTS = len(SIZES)
ALL = torch.arange(CLIENTS)
SMALL: dict[str, Any] = {"iterations": 3, "batch_size": 4, "lr": 0.05}


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


# --- which parameters travel ----------------------------------------------------------------------------------------


def shared_by(part: Shared, task: Task) -> set[str]:
    """What comes down, of which each side says the same, and goes up."""
    experiment = Experiment(task, Recipe(slices=part, select=Everyone()), rounds=1)
    memory, state = experiment.population.parts["slices"], experiment.server.states["slices"]
    hold = part.hold(memory, 0, ALL)
    assert hold.axes.keys() == task.shapes.keys()
    up, _ = part.up(memory, 0, ALL, hold, {}, {}, {})
    down = part.down(state, 0, ALL, hold)
    assert up.axes.keys() == part.came(memory, 0, ALL, hold).axes.keys() == down.axes.keys()
    return set(down.axes)


def test_words_stand_for_patterns() -> None:
    task, head = mlp(), {"second.weight", "second.bias"}
    assert shared_by(Shared("head"), task) == head
    assert shared_by(Shared("body"), task) == set(task.shapes) - head
    assert shared_by(Shared("none"), task) == set()
    assert shared_by(Shared("head, first.bias"), task) == head | {"first.bias"}
    assert shared_by(Shared("body,head"), task) == set(task.shapes)
    given = assignments(["patterns=none"])  # which is read as no value
    assert get("fedper").with_options(given).slices == Shared("none") == Shared(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["body", "head"])
def test_a_word_that_means_nothing_is_refused(word: str) -> None:
    class Sheet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w

    with pytest.raises(UserError, match=f"patterns={word} needs a Linear layer .* Sheet has none; name parameters"):
        shared_by(Shared(word), classifier(Sheet()))


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        ("inner=", "unknown slices.inner part ''; choose one of: channel-dropout, feature-rows, shared, whole, width"),
        ("inner=channel-dropot", "did you mean 'channel-dropout'"),
        ("inner=shared", "shared blocks inside of shared blocks"),
        ("inner=3", "slices.inner=3: expected a part or a name, one of: whole, "),
        (
            "inner=channel-dropout budget=2",
            "slices.inner=channel-dropout: budget=2: input should be less than or equal",
        ),
        ("inner=channel-dropout bugdet=0.5", "unknown setting 'bugdet'; did you mean 'budget'"),
        ("inner=width slices.inner.widths=0.5,x", "slices.inner=width: widths='0.5,x': 'x' is no width"),
        ("inner=feature-rows slices.inner.rate=1", "unknown setting 'slices.inner.rate'; slices.inner has no settings"),
        ("slices.outer=whole", "unknown setting 'slices.outer'; slices has patterns, inner"),
    ],
)
def test_an_inner_part_that_cannot_be_is_refused(inner: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refusal:
        get("fdrl", **assignments(inner.split()))
    assert "\n" not in str(refusal.value)


def test_refusals_of_the_inner_part_are_its_own() -> None:
    with pytest.raises(UserError, match=r"uploads values of parts .* codec=subspace"):
        get("fdrl", codec="subspace", **{"slices.inner": "channel-dropout"})
    with pytest.raises(UserError, match="needs a task with tables"):
        Experiment(pair(), get("fdrl", inner="feature-rows", cohort=2), rounds=1)
    task = classifier(Discriminative(nn.Linear(4, 3), nn.Linear(4, 3), 3))
    with pytest.raises(UserError, match="would cut again in every round; leave drawn out"):
        Recipe(slices=Shared("body", inner=Width(widths="1,0.5", drawn=True)))
    with pytest.raises(UserError, match="Discriminative cannot be narrowed"):
        Experiment(task, get("fdrl", inner="width", widths="1,0.5", cohort=2), rounds=1)


# --- T61: what is private never travels -----------------------------------------------------------------------------

INNER: dict[str, tuple[Callable[[], Task], dict[str, Any]]] = {
    "whole": (pair, {}),
    "tables": (readers, {}),
    "rows": (readers, {"inner": "feature-rows", "combine": "heat"}),
    "channels": (pair, {"inner": "channel-dropout", "rate": 0.5, "full_every": 3, "combine": "coverage"}),
    "subspace": (pair, {"codec": "subspace", "rank": 2, "warmup": 1, "every": 2}),
    "rows+subspace": (
        readers,
        {"slices.inner": "feature-rows", "combine": "heat", "codec": "subspace", "rank": 2, "warmup": 2, "every": 2},
    ),
    "sign": (pair, {"codec": "sign"}),
    "topk": (readers, {"codec": "topk", "inner": "feature-rows"}),
}
every_inner = pytest.mark.parametrize("name", INNER)


def prepared(name: str, rounds: int, **options: Any) -> Experiment:
    task_of, own = INNER[name]
    return Experiment(task_of(), get("fdrl", cohort=4, **SMALL | own | options), rounds=rounds, eval_every=1)


class Packed(NamedTuple):
    """One client's message in bytes, and what its fields are about."""

    round: int
    client: int
    body: bytes
    about: dict[str, set[str]]


class Messages(Listener):
    """Every message of the rounds, in bytes."""

    def __init__(self, experiment: Experiment) -> None:
        self.ups: list[Packed] = []
        self.downs: list[Packed] = []
        self.parts: list[Slice] = []
        self._fingerprint = experiment.spec.fingerprint
        experiment.events.add(self)

    def requested(self, message: Message) -> None:
        self._pack(self.ups, message)

    def answered(self, message: Message) -> None:
        self._pack(self.downs, message)

    def taken(self, event: Taken) -> None:
        self._pack(self.ups, event.message)
        self.parts.append(event.part)

    def _pack(self, to: list[Packed], message: Message) -> None:
        about = {
            name: set(field.on.axes) if isinstance(field, Field) and field.on is not None else set()
            for name, field in message.fields.items()
        }
        for place, client in enumerate(message.head.clients.tolist()):
            data = message.pack(place, self._fingerprint)
            size = sum(int(each[place]) for each in message.sizes().values())
            assert len(data) == size + int(message.framing()[place])
            to.append(Packed(message.head.round, client, data[HEADER_BYTES:], about))


@pytest.mark.usefixtures("float64")
@every_inner
def test_what_is_private_is_in_no_message(name: str) -> None:
    """T61, on the bytes of every message, and on what its fields are about.

    No value of a client's private block, start, end or difference, has its eight bytes in a message, but for those with
    which everyone begins: the server knows them, and sends them once to whoever is new.
    """
    experiment = prepared(name, rounds=4)
    messages = Messages(experiment)
    shared = {n for n in experiment.task.shapes if n.startswith("shared.")}
    private = experiment.task.shapes.keys() - shared
    start = experiment.task.initial(0)
    secret: dict[int, Values] = {c: {n: v for n, v in start.items() if n not in shared} for c in range(CLIENTS)}
    met: set[int] = set()
    for row in experiment.stream():
        said, came = ([m for m in some if m.round == row["round"] - 1] for some in (messages.ups, messages.downs))
        assert bool(said) == bool(came) == (row["round"] > 0)
        for message in came:
            assert message.about["first"] == private
            assert shown(secret[message.client], message.body) == (message.client not in met)
        blocks = {}
        for client in {message.client for message in said}:
            now = {n: v for n, v in kept(experiment, client).items() if n not in shared}
            assert now.keys() == secret[client].keys() == private
            moved = {n: now[n] - secret[client][n] for n in now}
            assert any(bool(v.any()) for v in moved.values())
            blocks[client] = secret[client], now, moved
            secret[client] = now
        for message in said:
            assert not any(shown(block, message.body) for block in blocks[message.client])
        for message in (*said, *came):
            assert all(names <= shared for field, names in message.about.items() if field != "first")
        met |= blocks.keys()
    assert messages.parts
    assert all(part.axes.keys() == shared for part in messages.parts)
    assert any(message.about.get(VALUES) == shared for message in messages.downs)
    assert all(torch.equal(experiment.model[n], start[n]) for n in start if n not in shared), "nothing to learn from"


def shown(block: Values, body: bytes) -> bool:
    """Whether a value of a block, which is not zero, stands in a message."""
    values = torch.cat([v.flatten() for v in block.values()]).tolist()
    return any(value != 0 and struct.pack("<d", value) in body for value in values)


@every_inner
def test_private_values_survive_absence_and_a_restart(name: str, tmp_path: Path) -> None:
    experiment = prepared(name, rounds=5)
    before: dict[int, Values] = {}
    away = 0
    for row in experiment.stream():
        here = chosen(experiment.recipe, row["round"] - 1).clients.tolist() if row["round"] else []
        for client in range(CLIENTS):
            if client not in here and client in before:
                assert_same(kept(experiment, client), before[client])
                away += bool(before[client])
            before[client] = kept(experiment, client)
    assert away, "somebody with a memory must have been away"
    first = prepared(name, rounds=2)
    first.run()
    checkpoint.save(tmp_path / "state", *first.state_dict())
    second = prepared(name, rounds=5)
    second.load_state_dict(*checkpoint.load(tmp_path / "state"))
    second.run()
    assert_same(second.model, experiment.model)
    assert_same(second.population.memories.state_dict(), experiment.population.memories.state_dict())
    assert_same(second.server.state_dict(), experiment.server.state_dict())


@pytest.mark.usefixtures("float64")
@every_inner
def test_engines_and_chunks_agree(name: str) -> None:
    task_of, own = INNER[name]
    task, method = task_of(), get("fdrl", cohort=4, **SMALL | own)
    one = run(task, method, rounds=4, engine="vectorized", chunk=4)
    other = run(task, method, rounds=4, engine="sequential", chunk=3)
    assert_close(other.model, one.model, rtol=1e-8, atol=1e-11)
    for client in range(CLIENTS):
        assert_close(kept(other, client), kept(one, client), rtol=1e-8, atol=1e-11)
    assert (other.ledger.up_bytes, other.ledger.down_bytes) == (one.ledger.up_bytes, one.ledger.down_bytes)


# --- other slices inside --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "options", "task_of"),
    [
        ("whole", {}, pair),
        ("feature-rows", {"combine": HeatCorrected()}, recommender),
        ("channel-dropout rate=0.5 by=delta full_every=2", {"combine": Coverage()}, mlp),
        ("width widths=1,0.5", {"combine": Coverage()}, mlp),
    ],
)
@pytest.mark.usefixtures("float64")
def test_a_part_inside_of_which_all_is_shared_is_itself(
    inner: str, options: dict[str, Any], task_of: Callable[[], Task]
) -> None:
    task, (name, *words) = task_of(), inner.split()
    alone = Recipe(select=Uniform(cohort=4), **options).with_options({"slices": name, **assignments(words)} | SMALL)
    inside = Recipe(select=Uniform(cohort=4), slices=Shared("*", alone.slices), **options).with_options(SMALL)
    one, other = (run(task, method, rounds=4, engine="vectorized") for method in (inside, alone))
    assert_close(one.model, other.model, rtol=1e-12, atol=1e-14)
    assert (one.ledger.up_bytes, one.ledger.down_bytes) == (other.ledger.up_bytes, other.ledger.down_bytes)
    assert one.ledger.enrol_bytes == other.ledger.enrol_bytes
    for client in range(CLIENTS):
        assert_close(kept(one, client), kept(other, client), rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("float64")
def test_rows_of_both_encoders_are_the_whole_tables() -> None:
    """T09: a row without a gradient rests, so that own rows train as whole tables do, and cost less."""
    task = readers()
    options: dict[str, Any] = {"cohort": 4, "local": "plain", "combine": "heat", **SMALL}
    whole, rows = (run(task, get("fdrl", inner=inner, **options), rounds=4) for inner in ("whole", "feature-rows"))
    assert_close(rows.model, whole.model, rtol=1e-10, atol=1e-13)
    assert rows.ledger.up_bytes < whole.ledger.up_bytes
    assert rows.ledger.down_bytes < whole.ledger.down_bytes
    for client in range(CLIENTS):
        hold = rows.recipe.slices.hold(rows.population.parts["slices"], 0, torch.tensor([client]))
        mine, everything = kept(rows, client), kept(whole, client)
        assert mine.keys() == everything.keys()
        for name, value in everything.items():
            own = hold.inside(Slice.whole(1, task.shapes), name)[0].expand_as(value)
            torch.testing.assert_close(mine[name], torch.where(own, value, 0), rtol=1e-10, atol=1e-13)
            assert bool(own.all()) == (name not in task.tables)


@pytest.mark.usefixtures("float64")
def test_channels_of_the_shared_encoder_follow_feddd() -> None:
    """FedDD, equations 4 to 6, for W alone; Q and H are each client's own throughout."""
    task, every = pair(), 3
    inner = ChannelDropout(rate=0.5, full_every=every)
    method = Recipe(Everyone(), Shared("shared.*", inner), combine=Coverage()).with_options(SMALL)
    experiment = Experiment(task, method, rounds=5, eval_every=1)
    names, sizes = ("shared.weight", "shared.bias"), torch.tensor(SIZES)
    model, local = task.initial(0), [task.initial(0) for _ in SIZES]
    mask = torch.ones(CLIENTS, 3, dtype=torch.bool)
    for row in experiment.stream():
        t = row["round"] - 1
        if t < 0:
            continue
        for c in range(CLIENTS):
            sent = mask[c] if t % every else torch.ones(3, dtype=torch.bool)
            fresh = {n: torch.where(_column(sent, model[n]), model[n], local[c][n]) for n in names}
            local[c] = plain_training(task, method, local[c] | fresh, t, c)
        memory = experiment.population.parts["slices"].inner.get("mask/shared", ALL)
        server = experiment.server.states["slices"].inner.masks.get("mask/shared", ALL)
        assert memory is not None
        assert server is not None
        mask = memory[0]
        assert torch.equal(mask, server[0])
        assert mask.sum(1).tolist() == [2] * CLIENTS
        for n in names:
            weight = sizes.view(-1, *[1] * model[n].dim()) * torch.stack([_column(m, model[n]) for m in mask])
            merged = (weight * torch.stack([each[n] for each in local])).sum(0) / weight.sum(0)
            model[n] = torch.where(weight.sum(0) > 0, merged, model[n])
        assert_close(experiment.model, model, rtol=1e-9, atol=1e-12)
        for c in range(CLIENTS):
            assert_close(kept(experiment, c), local[c], rtol=1e-9, atol=1e-12)


def _column(flags: Tensor, like: Tensor) -> Tensor:
    return flags.view(-1, *[1] * (like.dim() - 1)).expand_as(like)


@pytest.mark.usefixtures("float64")
def test_narrow_bodies_with_heads_of_their_own() -> None:
    """FedPer on networks of two widths: a client's head has as many inputs as its body has outputs."""
    task = mlp()
    method = Recipe(Uniform(cohort=5), Shared("body", Width(widths="1,0.5")), combine=Coverage()).with_options(SMALL)
    one, other = (run(task, method, rounds=3, engine=engine) for engine in ("vectorized", "sequential"))
    assert_close(one.model, other.model, rtol=1e-9, atol=1e-12)
    narrow = next(kept(one, c)["second.weight"] for c in range(1, CLIENTS, 2) if kept(one, c))
    assert bool(narrow[:, :3].all())
    assert not bool(narrow[:, 3:].any())


def test_nothing_is_no_message() -> None:
    """But for the values with which everyone begins, once for each client that is met."""
    task, recipe = pair(), Recipe(Uniform(cohort=4), Shared("none")).with_options(SMALL)
    done = run(task, recipe, 3)
    met = {client for t in range(3) for client in chosen(recipe, t).clients.tolist()}
    first = 4 * len(met) * sum(shape.numel() for shape in task.shapes.values())
    assert (done.ledger.up_bytes, done.ledger.down_bytes, done.rejected) == (0, first, 0)
    assert done.ledger.down["values"] == 0
    with pytest.raises(UserError, match="patterns=none sends nothing, and codec=sign has nothing to compress"):
        get("local", codec="sign")
