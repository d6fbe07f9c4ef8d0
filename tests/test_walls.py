"""Methods that lean on the walls between parts: FedDD, FLSS, FDRL, and recipes that are refused."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedslice.codecs import StreamingSubspace
from fedslice.codecs.basis import Basis
from fedslice.codecs.subspace import Subspace
from fedslice.combine import Coverage, Mean
from fedslice.core.errors import UserError
from fedslice.core.message import Field, Message
from fedslice.core.part import Round, ServerRun
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec
from fedslice.core.update import RowDelta
from fedslice.data.federation import Federation
from fedslice.recipe import PARTS, Recipe
from fedslice.recipes import RECIPES, get
from fedslice.select import Everyone, Uniform
from fedslice.slices import ChannelDropout, Shared, Slices
from fedslice.task import Task
from fedslice.training.enrolled import Enrolled
from fedslice.training.events import Listener, Taken
from fedslice.training.experiment import Experiment, spec_of
from toys import (
    SIZES,
    assert_close,
    assert_same,
    chosen,
    double,
    fitting,
    kept,
    mlp,
    pair,
    plain_training,
    recommender,
    run,
    watched,
)

TRAINING = {"iterations": 3, "batch_size": 4, "lr": 0.05}


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


def each_round(experiment: Experiment) -> Iterator[int]:
    """The number of every round that is done."""
    for row in experiment.stream():
        if row["round"]:
            yield row["round"] - 1


# --- FedDD --------------------------------------------------------------------------------------------------------


def feddd(rate: float, full_every: int, **options: Any) -> Recipe:
    return RECIPES["feddd"].with_options(TRAINING | {"rate": rate, "full_every": full_every} | options)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("full_every", [1, 2, 5])
def test_without_dropout_feddd_is_fedavg_to_the_bit(full_every: int, weights: Any) -> None:
    """T30."""
    task = mlp()
    plain = Recipe(select=Everyone(), combine=Mean(weights=weights)).with_options(TRAINING)
    one, two = run(task, feddd(0.0, full_every, weights=weights), rounds=4), run(task, plain, rounds=4)
    assert_same(one.model, two.model)
    assert (one.ledger.up_bytes, one.ledger.down_bytes) == (two.ledger.up_bytes, two.ledger.down_bytes)
    assert one.ledger.enrol_bytes == two.ledger.enrol_bytes


def masks(experiment: Experiment, clients: int) -> dict[str, Tensor]:
    """Per parameter, which coordinates each client sent in the last round: [clients, …]; both sides know them."""
    out = {}
    for name, shape in experiment.task.shapes.items():
        layer, who = f"mask/{name.rpartition('.')[0]}", torch.arange(clients)
        memory = experiment.population.parts["slices"].get(layer, who)
        server = experiment.server.states["slices"].masks.get(layer, who)
        assert memory is not None
        assert server is not None
        channels, known = memory
        assert bool(known.all())
        assert bool(server[1].all())
        assert torch.equal(channels, server[0])
        out[name] = channels.view(clients, -1, *[1] * (len(shape) - 1)).expand(clients, *shape)
    return out


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize(("rate", "full_every"), [(0.5, 3), (0.8, 2), (0.34, 1)])
def test_feddd_is_what_its_equations_say(rate: float, full_every: int, chunk: int | None) -> None:
    """T31, T39: equations 4 to 6 of FedDD, client by client, with a local model of its own for each."""
    task, recipe = mlp(), feddd(rate, full_every)
    experiment = Experiment(task, recipe, rounds=6, eval_every=1, chunk=chunk)
    clients, sizes = len(SIZES), torch.tensor(SIZES)
    model, was = task.initial(0), task.initial(0)
    local = [dict(model) for _ in range(clients)]
    last: dict[str, Tensor] = {}
    lonely = 0
    for t in each_round(experiment):
        for c in range(clients):
            mixed = {n: torch.where(last[n][c], model[n], local[c][n]) for n in last}  # equation 5
            start = mixed if t % full_every else model  # equation 6
            local[c] = plain_training(task, recipe, start, t, c)
        last = masks(experiment, clients)
        after = {}
        for name, old in model.items():
            weight = sizes.view(-1, *[1] * old.dim()) * last[name]
            total = weight.sum(0)
            lonely += int((total == 0).sum())
            merged = (weight * torch.stack([each[name] for each in local])).sum(0) / total
            after[name] = torch.where(total > 0, merged, old)
            assert torch.equal(experiment.model[name][total == 0], was[name][total == 0]), "to the bit"
        model, was = after, {n: v.clone() for n, v in experiment.model.items()}
        assert_close(experiment.model, model, rtol=1e-9, atol=1e-12)
        for c in range(clients):
            assert_close(kept(experiment, c), local[c], rtol=1e-9, atol=1e-12)
    assert lonely or rate < 0.8, "some coordinate must have had no sender"


@pytest.mark.parametrize(("rate", "sent"), [(0.0, (6, 3)), (0.5, (3, 2)), (0.8, (1, 1)), (0.99, (1, 1))])
def test_a_client_sends_so_many_channels_and_pays_for_them(rate: float, sent: tuple[int, int]) -> None:
    """n_up = round(N_l·(1 − D)), at least one; a channel is its weights and its bias, named once."""
    task = mlp()
    done = run(task, feddd(rate, 5), rounds=2)
    found = {n: m.flatten(2)[:, :, 0].sum(1) if m.dim() > 2 else m.sum(1) for n, m in masks(done, len(SIZES)).items()}
    for layer, count in zip(("first", "second"), sent, strict=True):
        assert found[f"{layer}.weight"].tolist() == found[f"{layer}.bias"].tolist() == [count] * len(SIZES)
    values = 4 * (sent[0] * (4 + 1) + sent[1] * (6 + 1))
    ids = 0 if rate == 0 else 2  # a bitmap or packed numbers of 6 and of 3 channels: a byte each
    whole = 4 * sum(shape.numel() for shape in task.shapes.values())
    assert done.ledger.up_bytes == 2 * len(SIZES) * (values + ids)
    assert done.ledger.down_bytes == len(SIZES) * (whole + values), "everything at first, then what went up"


def test_channels_are_drawn_anew_for_every_client_and_round() -> None:
    experiment = Experiment(mlp(), feddd(0.5, 3, by="random"), rounds=3, eval_every=1)
    seen = set()
    for _ in each_round(experiment):
        drawn = masks(experiment, len(SIZES))["first.bias"]
        seen |= {tuple(row.tolist()) for row in drawn}
    assert len(seen) > 6, "18 draws of 3 out of 6 channels"


class Overflowing(torch.nn.Module):
    """Overflows on large inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().square().sum(-1)


def with_a_broken_client() -> Task:
    """Client 0 is sound, client 1 always overflows."""
    x = np.where(np.arange(4) < 2, 1.0, 1e20)[:, None].repeat(2, 1)
    data = Federation.from_arrays(client=[0, 0, 1, 1], features={"x": x}, label=np.zeros(4), test=0.0)
    return Task(data, Overflowing(), lambda out, label: out - label)


@pytest.mark.parametrize(
    "slices", [ChannelDropout(rate=0.5, full_every=5), Shared(patterns="layer.weight")], ids=["feddd", "fdrl"]
)
def test_a_client_whose_upload_was_refused_keeps_nothing_of_it(slices: Slices) -> None:
    done = run(with_a_broken_client(), Recipe(slices=slices, select=Everyone()).with_options({"lr": 1e-3}), rounds=3)
    assert done.rejected == 3
    assert kept(done, 1) == {}
    assert "layer.bias" in kept(done, 0)
    assert all(bool(torch.isfinite(v).all()) for v in [*kept(done, 0).values(), *done.model.values()])


def test_a_client_whose_first_upload_was_refused_downloads_the_whole_model_next() -> None:
    """It has no local model that the last mask could be laid over: what it starts from must have come down."""
    done = run(with_a_broken_client(), feddd(0.5, 5), rounds=1)
    assert done.rejected == 1
    download = done.server.glimpse(done.population.ask(1, torch.tensor([0, 1])))
    assert download.sizes()["values"].tolist() == [4 * 6, 4 * 12]
    slices, memory, broken = done.recipe.slices, done.population.parts["slices"], torch.tensor([1])
    assert slices.came(memory, 1, broken, slices.hold(memory, 1, broken)).numbers().tolist() == [12]


# --- FLSS ---------------------------------------------------------------------------------------------------------


def flss(**options: Any) -> Recipe:
    return Recipe(select=Everyone(), codec=StreamingSubspace(**options)).with_options(TRAINING)


def numbers_in(task: Any) -> int:
    return sum(shape.numel() for shape in task.shapes.values())


def test_full_updates_in_every_round_are_fedavg_to_the_bit() -> None:
    """T40, s = 1. The basis comes down although nothing is projected: whole after round 2, then what leads it on."""
    task = mlp()
    one = run(task, flss(rank=2, warmup=2, every=1), rounds=6)
    two = run(task, Recipe(select=Everyone()).with_options(TRAINING), rounds=6)
    assert_same(one.model, two.model)
    assert one.ledger.up_bytes == two.ledger.up_bytes
    basis = 4 * 2 * numbers_in(task) + 3 * 8 * (2 + 1) * 2
    assert one.ledger.down_bytes == two.ledger.down_bytes + len(SIZES) * basis


def test_with_the_identity_for_a_basis_flss_is_fedavg() -> None:
    """T40, P = I: set after the first full round, before any update is projected."""
    task = mlp()
    size = numbers_in(task)
    plain = run(task, Recipe(select=Everyone()).with_options(TRAINING), rounds=6)
    experiment = Experiment(task, flss(rank=size, warmup=1, every=9), rounds=6, eval_every=1)
    codec = experiment.recipe.codec
    assert isinstance(codec, StreamingSubspace)
    for t in each_round(experiment):
        state = experiment.server.states["codec"]
        if t == 1:
            state.basis = Basis(torch.eye(size), torch.ones(size).double())
        assert t < 2 or not codec.is_full(state, t)
    assert_same(experiment.model, plain.model)


@pytest.mark.usefixtures("float64")
def test_any_square_orthogonal_basis_is_as_good() -> None:
    task = mlp()
    size = numbers_in(task)
    plain = run(task, Recipe(select=Everyone()).with_options(TRAINING), rounds=5)
    turned = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(0))).Q
    experiment = Experiment(task, flss(rank=size, warmup=1, every=9), rounds=5, eval_every=1)
    for t in each_round(experiment):
        if t == 1:
            experiment.server.states["codec"].basis = Basis(turned, torch.ones(size))
    assert_close(experiment.model, plain.model, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_a_projected_round_moves_the_model_by_the_projected_mean() -> None:
    """X += P·Pᵀ·(mean update), with the basis that made the codes."""
    task, recipe = mlp(), flss(rank=2, warmup=3, every=4)
    experiment = Experiment(task, recipe, rounds=7, eval_every=1)
    model, basis = task.initial(0), None
    for t in each_round(experiment):
        ends = [plain_training(task, recipe, model, t, c) for c in range(len(SIZES))]
        step = {
            n: sum(w * (end[n] - old) for w, end in zip(SIZES, ends, strict=True)) / sum(SIZES)
            for n, old in model.items()
        }
        flat = torch.cat([v.flatten() for v in step.values()])
        if t in (4, 5, 6):
            assert basis is not None
            assert basis.shape == (len(flat), 2)
            moved = basis @ (basis.T @ flat)
            assert not torch.allclose(moved, flat, rtol=1e-3), "something must be lost"
            parts = moved.split([v.numel() for v in step.values()])
            step = {n: part.view_as(step[n]) for n, part in zip(step, parts, strict=True)}
        assert_close(experiment.model, {n: model[n] + step[n] for n in model}, rtol=1e-8, atol=1e-11)
        model = {n: v.clone() for n, v in experiment.model.items()}
        basis = experiment.server.states["codec"].state_dict().get("space.columns")
        basis = None if basis is None else basis.clone()  # which changes in place


def test_codes_are_rank_words_on_the_wire() -> None:
    """Up, and down again as the step that clients have missed; a full step brings the matrix that leads the basis."""
    task = mlp()
    size, clients, rank, warmup = numbers_in(task), len(SIZES), 3, 3
    experiment = Experiment(task, flss(rank=rank, warmup=warmup, every=3), rounds=9, eval_every=1)
    mix = 8 * (rank + 1) * rank  # of M, which takes a basis and an update to the next basis
    up, down = 0, 0
    for t in each_round(experiment):
        full, then = (at < warmup or (at - warmup) % 3 == 0 for at in (t, t - 1))
        if t < warmup:
            came = 4 * size
        elif t == warmup:  # the model, and the first basis
            came = 4 * size * (1 + rank)
        else:
            came = 4 * size + mix if then else 4 * rank
        assert experiment.ledger.up_bytes - up == clients * 4 * (size if full else rank)
        assert experiment.ledger.down_bytes - down == clients * came
        up, down = experiment.ledger.up_bytes, experiment.ledger.down_bytes


class Line(torch.nn.Module):
    """A model of one vector."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(size, dtype=dtype))


def observed(updates: Tensor, rank: int, warmup: int) -> Subspace:
    """The server's side of a codec that has seen these updates [rounds, size], each of them in full."""
    codec, module = StreamingSubspace(rank=rank, warmup=warmup, every=1), Line(updates.shape[1], updates.dtype)
    state = codec.server_state(ServerRun(Spec(module, None, (), Recipe(codec=codec)), Enrolled(), torch.device("cpu")))
    who = torch.arange(1)
    for t, update in enumerate(updates):
        codec.observe(state, Round(t, who, who, {}, {}, {"w": RowDelta(None, update)}, {}))
    return state


def spread_of(low: float, rounds: int) -> Tensor:
    """Updates whose singular values fall from 1 to 10^low."""
    chance = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(40, 8, generator=chance, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(rounds, 8, generator=chance, dtype=torch.float64)).Q
    return (right * torch.logspace(0, low, 8, dtype=torch.float64)) @ left.T


def skewness(state: Subspace) -> float:
    """The largest entry of PᵀP − I."""
    basis = state.state_dict()["space.columns"]
    gram = basis.T @ basis
    return float((gram - torch.eye(len(gram), dtype=gram.dtype)).abs().max())


@pytest.mark.parametrize("low", [-1, -3])
@pytest.mark.parametrize("rounds", [8, 12])
def test_the_basis_is_orthonormal(low: float, rounds: int) -> None:
    """T43."""
    assert skewness(observed(spread_of(low, rounds), rank=8, warmup=8)) < 1e-9


@pytest.mark.parametrize("low", [-6, -6.5])
def test_the_basis_is_orthonormal_however_little_energy_a_direction_has(low: float) -> None:
    """T43, to the 1e-6 beyond which a basis is to be orthonormalised again; directions above 1e-7 are kept."""
    assert skewness(observed(spread_of(low, 8), rank=8, warmup=8)) < 1e-6


def test_the_basis_is_the_leading_singular_subspace() -> None:
    """T41, T42: a batch of updates, or the same followed one by one; nothing is truncated before the end."""
    updates = spread_of(-2, 12)
    for warmup in (12, 8):
        found = observed(updates, rank=8, warmup=warmup).basis
        left, sigma, _ = torch.linalg.svd(updates.T, full_matrices=False)
        assert found is not None
        torch.testing.assert_close(found.sigma, sigma[:8], rtol=1e-6, atol=1e-9)
        cosines = torch.linalg.svdvals(found.columns.T @ left[:, :8])
        torch.testing.assert_close(cosines, torch.ones(8).double(), rtol=0, atol=1e-6)


# --- FDRL ---------------------------------------------------------------------------------------------------------

SHARED = {"shared.weight", "shared.bias"}


class Messages(Listener):
    """Every message of the rounds."""

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self.downloads: list[Message] = []
        self.uploads: list[Message] = []

    def requested(self, message: Message) -> None:
        self.requests.append(message)

    def answered(self, message: Message) -> None:
        self.downloads.append(message)

    def taken(self, event: Taken) -> None:
        self.uploads.append(event.message)


def about(message: Message) -> dict[str, set[str]]:
    """The parameters that each field of a message is about."""
    found = {}
    for name, field in message.fields.items():
        assert isinstance(field, Field)
        found[name] = set() if field.on is None else set(field.on.axes)
    return found


@pytest.mark.parametrize("wire", [False, True], ids=["in memory", "packed"])
def test_what_is_private_is_never_in_a_message(wire: bool) -> None:
    """T61. Of private parameters a newcomer is sent the values with which everyone begins, and nothing ever again."""
    task, recipe = fitting("fdrl")
    experiment = Experiment(task, recipe, rounds=4, wire=wire)
    seen, messages = watched(experiment), Messages()
    experiment.events.add(messages)
    experiment.run()
    assert len(seen) >= 4
    for update in seen:
        assert update.values.keys() == update.slice.axes.keys() == update.layout.axes.keys() == SHARED
    assert all(not about(message) for message in messages.requests)
    assert all(about(message) == {"values": SHARED} for message in messages.uploads)
    start, private = task.initial(0), task.shapes.keys() - SHARED
    met: set[int] = set()
    for message in messages.downloads:
        assert about(message) == {"values": SHARED, "first": private}
        first = message.body["first"]
        assert first.present.tolist() == [client not in met for client in message.head.clients.tolist()]
        met |= set(message.head.clients.tolist())
        sent = first.entries.at(Slice.whole(message.clients, task.shapes, private))
        for client in range(message.clients):
            assert_same({name: value[client] for name, value in sent.items()}, {name: start[name] for name in sent})
    shared = sum(shape.numel() for name, shape in task.shapes.items() if name in SHARED)
    assert experiment.ledger.up_bytes == 4 * 4 * 4 * shared, "4 rounds, 4 clients, 4 bytes"
    assert experiment.ledger.down_bytes == 4 * (4 * 4 * shared + len(met) * (numbers_in(task) - shared))
    for name in task.shapes:
        assert torch.equal(experiment.model[name], start[name]) == (name not in SHARED)


@pytest.mark.usefixtures("float64")
def test_private_values_persist_and_belong_to_one_client() -> None:
    """A plain loop with a private part per client reproduces the rounds; who is absent keeps what it had."""
    task, recipe = fitting("fdrl", cohort=3, local="sgd", weights="samples")
    experiment = Experiment(task, recipe, rounds=5, eval_every=1)
    model, own = task.initial(0), [{} for _ in SIZES]
    absent = 0
    for t in each_round(experiment):
        clients = chosen(recipe, t).clients.tolist()
        ends = {c: plain_training(task, recipe, model | own[c], t, c) for c in clients}
        total = sum(SIZES[c] for c in clients)
        model = model | {n: sum(SIZES[c] * ends[c][n] for c in clients) / total for n in SHARED}
        for c in clients:
            own[c] = {n: v for n, v in ends[c].items() if n not in SHARED}
        assert_close(experiment.model, model, rtol=1e-9, atol=1e-12)
        for c in range(len(SIZES)):
            absent += bool(own[c]) and c not in clients
            assert_close(kept(experiment, c), own[c], rtol=1e-9, atol=1e-12)
    assert absent, "somebody with a memory must have been away"
    heads = [mine["head.weight"] for mine in own if mine]
    assert len(heads) > 1
    assert all(not torch.allclose(heads[0], other) for other in heads[1:])


def test_patterns_choose_what_is_shared() -> None:
    task = pair()
    for patterns, names in {"shared.*": SHARED, "*": set(task.shapes), "head.*, *.bias": None}.items():
        wanted = names or {n for n in task.shapes if n.startswith("head.") or n.endswith(".bias")}
        experiment = Experiment(task, Recipe(slices=Shared(patterns=patterns), select=Everyone()), rounds=1)
        seen = watched(experiment)
        experiment.run()
        assert set(seen[0].values) == wanted
    with pytest.raises(UserError, match=r"no parameter matches 'body\.\*'; the model has shared\.weight"):
        Experiment(task, Recipe(slices=Shared(patterns="shared.*,body.*"), select=Everyone()), rounds=1)


def test_sharing_everything_is_fedavg() -> None:
    task = pair()
    one = run(task, Recipe(slices=Shared(patterns="*"), select=Everyone()).with_options(TRAINING), rounds=3)
    two = run(task, Recipe(select=Everyone()).with_options(TRAINING), rounds=3)
    assert_same(one.model, two.model)


# --- recipes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_named_recipe_runs(name: str) -> None:
    task, recipe = fitting(name)
    done = run(task, recipe)
    assert done.round == 1
    assert done.rejected == 0
    moved = any(not torch.equal(done.model[n], task.initial(0)[n]) for n in done.model)
    assert moved == (name != "local"), "what never travels changes no model but the clients' own"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"combine": Coverage(), "codec": StreamingSubspace()}, "combine=coverage .* codec=subspace"),
        (
            {"slices": ChannelDropout(), "codec": StreamingSubspace()},
            "slices=channel-dropout .* codec=subspace .*use codec=dense",
        ),
        (
            {"slices": ChannelDropout(), "select": Uniform(replacement=True)},
            "slices=channel-dropout keeps a memory .* select=uniform with replacement",
        ),
        ({"slices": Shared(), "select": Uniform(replacement=True)}, "slices=shared keeps a memory"),
    ],
)
def test_parts_that_cannot_go_together_are_refused_by_name(parts: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        Recipe(**parts)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavg", {"combine": "coverage", "codec": "subspace"}, "combine=coverage"),
        ("feddd", {"codec": "subspace"}, "slices=channel-dropout"),
        ("fdrl", {"replacement": True}, "draw without replacement"),
        ("fedavg", {"combine": "haet"}, "unknown combine part 'haet'; did you mean 'heat'"),
        ("fedavg", {"slices": "zzz"}, "unknown slices part 'zzz'; choose one of: channel-dropout, feature-rows"),
        ("fedavg", {"learning_rat": 1}, "unknown setting 'learning_rat'"),
        ("fedavg", {"cohrot": 1}, "unknown setting 'cohrot'; did you mean 'cohort'"),
        ("fedavg", {"local.mu": 1}, "unknown setting 'local.mu'"),
        ("fedavg", {"slices.lr": 1}, "unknown setting 'slices.lr'"),
        ("fedavg", {"cohort": 0}, "select=uniform: cohort=0"),
        ("feddd", {"rate": 1.0}, "slices=channel-dropout: rate=1.0"),
        ("feddd", {"full_every": 0}, "full_every=0"),
        ("flss", {"rank": 0}, "codec=subspace: rank=0"),
        ("fedsubavg", {"estimator": "exact"}, "combine=heat: estimator='exact'"),
        ("fedsubavg", {"max_coef": -1.0}, "max_coef=-1.0"),
        ("fedavg", {"server_lr": 0.0}, "server=sgd: server_lr=0.0"),
        ("fedprox", {"mu": -0.1}, "local=prox: mu=-0.1"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        get(name).with_options(options)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value)[-1] in ".?"


def test_an_unknown_recipe_is_told_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown recipe 'fedsubavrg'; did you mean 'fedsubavg'"):
        get("fedsubavrg")


def test_another_part_takes_over_the_settings_both_have() -> None:
    recipe = get("fedavg").with_options({"lr": 0.7, "cohort": 3})
    pulled = recipe.with_options({"local": "prox", "local.mu": 0.2, "weights": "uniform"})
    assert pulled.settings()["local"] == recipe.settings()["local"] | {"name": "prox", "mu": 0.2}
    assert pulled.settings()["combine"] == {"name": "mean", "weights": "uniform"}
    assert chosen(pulled, 0, 9).clients.tolist() == chosen(recipe, 0, 9).clients.tolist()
    assert recipe.settings()["local"]["name"] == "sgd", "the recipe itself stays as it is"
    assert get("fedavg").settings()["local"]["lr"] == 0.1


@pytest.mark.parametrize(("place", "label"), [(place, label) for place, kinds in PARTS.items() for label in kinds])
def test_every_part_can_be_named_and_refuses_a_state_it_does_not_know(place: str, label: str) -> None:
    part = PARTS[place][label]()
    assert part.label == label
    task = {"feature-rows": recommender, "shared": pair, "fdrl": pair}.get(label, mlp)()
    state = part.server_state(ServerRun(spec_of(task, Recipe(), 0, None), Enrolled(), torch.device("cpu")))
    for load in (state.load_state_dict, state.load_facts_dict):
        with pytest.raises((ValueError, KeyError)):
            load({"nonsense": torch.zeros(1)})
