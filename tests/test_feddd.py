"""FedDD with allocated rates, channels chosen by what they have to tell, and clients of different widths."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from command import execute, without_seconds
from fedslice.combine import Coverage
from fedslice.config import request, resolve
from fedslice.core.errors import UserError
from fedslice.core.part import Round
from fedslice.core.slice import Slice, Values
from fedslice.recipe import Recipe
from fedslice.recipes import get
from fedslice.select import Everyone
from fedslice.slices import ChannelDropout, Width
from fedslice.slices.allocation import allocate, regularizers, scale_delta
from fedslice.slices.channel_dropout import DropoutState
from fedslice.task import Task
from fedslice.training.devices import Devices
from fedslice.training.experiment import Experiment
from fedslice.training.schema import WELCOME
from toys import (
    MLP,
    SIZES,
    assert_close,
    assert_same,
    chosen,
    classifier,
    double,
    mlp,
    plain_training,
    recommender,
    run,
)

TRAINING = {"iterations": 3, "batch_size": 4, "lr": 0.05}
CLIENTS = len(SIZES)
ALL = torch.arange(CLIENTS)
WAYS = ("importance", "norm-ratio", "max", "delta", "ordered", "random")


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


def feddd(**options: Any) -> Recipe:
    return get("feddd", **TRAINING | options)


def hardware(seed: int = 0) -> Devices:
    return Devices.drawn(CLIENTS, seed)


def dropout(experiment: Experiment) -> tuple[ChannelDropout, DropoutState]:
    """The part, and its state on the server."""
    part, state = experiment.recipe.slices, experiment.server.states["slices"]
    assert isinstance(part, ChannelDropout)
    assert isinstance(state, DropoutState)
    return part, state


def rates(experiment: Experiment) -> Tensor:
    _, state = dropout(experiment)
    state.grow()
    return state.rates.clone()


# --- masks --------------------------------------------------------------------------------------------------------


def ready(task: Task, dropped: list[float], **options: Any) -> Experiment:
    """An experiment whose server has a rate for every client."""
    experiment = Experiment(task, feddd(**options), rounds=1)
    state = {"rates": torch.tensor(dropped, dtype=torch.float64), "losses": torch.zeros(CLIENTS).double()}
    dropout(experiment)[1].load_state_dict(state)
    return experiment


def trained(task: Task, seed: int) -> tuple[Values, Values]:
    """A model for each client before and after training: [clients, …]; a few weights are zero."""
    draw = np.random.default_rng(seed)
    start, end = {}, {}
    for name, shape in task.shapes.items():
        before = draw.normal(size=(CLIENTS, *shape)) * draw.choice([0, 1, 1, 1], (CLIENTS, *shape))
        start[name] = torch.from_numpy(before)
        end[name] = torch.from_numpy(before + draw.normal(size=before.shape))
    return start, end


def channels(
    experiment: Experiment, clients: Tensor, start: Values, end: Values, t: int = 1
) -> dict[str, list[list[int]]]:
    """Per layer and client, the channels that go up."""
    (part, state), memory = dropout(experiment), experiment.population.parts["slices"]
    hold = part.hold(memory, t, clients)
    everything = Slice.whole(len(clients), hold.shapes)
    before, after = ({n: hold.clear(n, v) for n, v in hold.pick(values, everything).items()} for values in (start, end))
    up, ids = part.up(memory, t, clients, hold, before, after, part.tell(state, t, clients, hold))
    read = part.sent(state, t, clients, hold, ids)
    for name in hold.shapes:
        assert torch.equal(up.inside(everything, name), read.inside(everything, name)), "what the server reads of them"
    found = {name: up.inside(everything, f"{name}.bias") for name in ("first", "second")}
    for name, mask in found.items():
        shape = hold.shapes[f"{name}.bias"]
        found[name] = (mask & hold.inside(everything, f"{name}.bias")).expand(-1, *shape)
        rows = up.inside(everything, f"{name}.weight")[:, :, 0].expand(-1, *shape)
        assert torch.equal(found[name], rows), "a channel is its weights and its bias"
    return {name: [row.nonzero()[:, 0].tolist() for row in mask] for name, mask in found.items()}


def best(before: np.ndarray, after: np.ndarray, cover: np.ndarray, by: str, rate: float) -> list[int]:
    """Algorithm 2 on one layer [channels, entries] of one client, in plain NumPy."""
    moved = after - before
    floor = 1e-3 * math.sqrt((before**2).mean())
    norm = partial(np.linalg.norm, axis=1)
    sign = np.where(before < 0, -1, 1)
    score = {
        "importance": lambda: norm(moved * after / (sign * np.maximum(abs(before), floor))) / cover,
        "norm-ratio": lambda: norm(moved) * norm(after) / np.maximum(norm(before), floor) / cover,
        "max": lambda: norm(after),
        "delta": lambda: norm(moved),
        "ordered": lambda: -np.arange(len(before)),
    }[by]()
    count = min(max(round(len(before) * (1 - rate)), 1), len(before))
    order = sorted(range(len(before)), key=lambda k: (-score[k], k))
    return sorted(order[:count])


@given(
    st.sampled_from(WAYS[:-1]),
    st.lists(st.floats(0, 0.99), min_size=CLIENTS, max_size=CLIENTS),
    st.sampled_from(["1", "1,0.5", "0.34,0.84,1"]),
    st.integers(0, 999),
)
@settings(deadline=None, max_examples=60)
def test_the_best_channels_go_up(by: Any, dropped: list[float], widths: str, seed: int) -> None:
    """Equation 21 with the coverage of each channel, T32's numbers, for each client as if it were alone."""
    task = mlp()
    part = ready(task, dropped, by=by, widths=widths)
    start, end = trained(task, seed)
    hidden = [math.ceil(6 * float(widths.split(",")[c % len(widths.split(","))])) for c in range(CLIENTS)]
    found = channels(part, ALL, start, end)
    for c, outputs in enumerate(hidden):
        for layer, (rows, inputs) in {"first": (outputs, 4), "second": (3, outputs)}.items():
            before, after = (
                np.column_stack([v[f"{layer}.weight"][c][:rows, :inputs], v[f"{layer}.bias"][c][:rows]])
                for v in (start, end)
            )
            cover = np.array([np.mean([k < each for each in hidden]) for k in range(rows)])
            expected = best(before, after, cover if layer == "first" else np.ones(3), by, dropped[c])
            assert found[layer][c] == expected


@given(st.sampled_from(WAYS), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_who_drops_more_sends_a_part_of_what_it_would_send(by: Any, one: float, other: float, seed: int) -> None:
    """T32: the number of channels falls with D and is never zero; which ones does not depend on the chunk."""
    task = mlp()
    start, end = trained(task, seed)
    low, high = sorted((one, other))
    more, less = (channels(ready(task, [rate] * CLIENTS, by=by), ALL, start, end) for rate in (low, high))
    part = ready(task, [high] * CLIENTS, by=by)
    for layer, extent in (("first", 6), ("second", 3)):
        for c in range(CLIENTS):
            assert set(less[layer][c]) <= set(more[layer][c])
            assert len(less[layer][c]) == max(round(extent * (1 - high)), 1)
            alone = channels(part, torch.tensor([c]), *({n: v[[c]] for n, v in each.items()} for each in (start, end)))
            assert alone[layer] == [less[layer][c]]


@pytest.mark.parametrize("by", ["importance", "norm-ratio", "max", "delta"])
def test_equal_channels_go_up_from_the_first(by: Any) -> None:
    task = mlp()
    same = {n: torch.ones(CLIENTS, *shape).double() for n, shape in task.shapes.items()}
    part = ready(task, [0.5] * CLIENTS, by=by)
    assert channels(part, ALL, same, same) == {"first": [[0, 1, 2]] * CLIENTS, "second": [[0, 1]] * CLIENTS}


def test_with_the_same_coverage_for_all_equation_21_is_equation_20() -> None:
    """T38, CR = 1: Δ·(1 + Δ) falls from 2 to 0.85; with a narrow neighbour the last three count twice."""
    task = mlp()
    change = torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6, 0.55]).double()
    start = {n: torch.ones(CLIENTS, *shape).double() for n, shape in task.shapes.items()}
    end = {n: v.clone() for n, v in start.items()}
    end["first.bias"] += change
    half = [0.5] * CLIENTS
    assert channels(ready(task, half), ALL, start, end)["first"] == [[0, 1, 2]] * CLIENTS
    assert channels(ready(task, half, widths="1,0.5"), ALL, start, end)["first"] == [[0, 3, 4], [0, 1]] * 3


def test_the_output_layer_can_be_kept() -> None:
    task = mlp()
    found = channels(ready(task, [0.9] * CLIENTS, keep_last=True), ALL, *trained(task, 0))
    assert [len(one) for one in found["first"]] == [1] * CLIENTS
    assert found["second"] == [[0, 1, 2]] * CLIENTS


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).sigmoid())


@pytest.mark.parametrize(
    ("task", "values"),
    [(lambda: classifier(Mixed()), 1 * 5 + 2 * 6 + 1 * 7), (recommender, 14 * 3 + 6 * 3 + 10)],
    ids=["norm", "tables"],
)
def test_what_has_no_channels_always_goes_up(task: Any, values: int) -> None:
    experiment = Experiment(task(), feddd(rate=0.9), rounds=2)
    part, memory = experiment.recipe.slices, experiment.population.parts["slices"]
    hold = part.hold(memory, 0, ALL)
    start = hold.gather(experiment.model)
    assert part.up(memory, 0, ALL, hold, start, start, {})[0].numbers().tolist() == [values] * CLIENTS
    experiment.run()
    assert all(bool(torch.isfinite(v).all()) for v in experiment.model.values())


# --- rounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full_every", [1, 2, 5])
@pytest.mark.parametrize("widths", ["1", "1,0.5"])
def test_with_the_whole_budget_nothing_is_dropped(full_every: int, widths: str) -> None:
    """T30 with allocated rates, to the bit: FedAvg, or with clients of different widths the mean over holders.

    What the allocation needs travels besides: a loss up, a rate down, and where widths differ who holds what.
    """
    task = mlp()
    plain = Recipe(select=Everyone(), slices=Width(widths=widths), combine=Coverage()).with_options(TRAINING)
    recipe = feddd(budget=1.0, full_every=full_every, widths=widths)
    one, two = (run(task, each, rounds=4, devices=hardware()) for each in (recipe, plain))
    assert_same(one.model, two.model)
    held = np.array([51] * CLIENTS if widths == "1" else [51, 27] * (CLIENTS // 2)) * 4
    rate, cover, loss = 8, 0 if widths == "1" else 4 * (6 + 3), 4
    for done, down, up in ((one, held + rate + cover, held + loss), (two, held, held)):
        assert (done.ledger.up_bytes, done.ledger.down_bytes) == (4 * up.sum(), 4 * down.sum())
        assert done.ledger.clock == sum([hardware().seconds(ALL, 12, up, down).max()] * 4)
    if widths == "1":
        assert_same(one.model, run(task, get("fedavg", select="everyone", **TRAINING), rounds=4).model)


def masks(experiment: Experiment) -> dict[str, Tensor]:
    """Per parameter, what each client sent when it last took part, broadcast: [clients, …]; false if it never did."""
    out = {}
    for name, shape in experiment.task.shapes.items():
        layer = f"mask/{name.rpartition('.')[0]}"
        memory = experiment.population.parts["slices"].get(layer, ALL)
        server = dropout(experiment)[1].masks.get(layer, ALL)
        assert memory is not None
        assert server is not None
        assert torch.equal(memory[1], server[1])
        assert torch.equal(memory[0][memory[1]], server[0][server[1]])
        out[name] = (memory[0] & memory[1][:, None]).view(CLIENTS, -1, *[1] * (len(shape) - 1))
    return out


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("hidden", "options", "chunk"),
    [
        ((6,), {"full_every": 3}, None),
        ((6,), {"full_every": 2, "select": "uniform", "cohort": 3}, None),
        ((6, 3, 2), {"full_every": 3}, 1),
        ((6, 2), {"full_every": 5, "select": "uniform", "cohort": 4, "by": "random"}, 1),
        ((6, 3, 2), {"full_every": 3}, None),
    ],
    ids=["everyone", "some", "narrow", "some narrow", "narrow side by side"],
)
def test_every_round_is_what_the_equations_say(hidden: tuple[int, ...], options: dict[str, Any], chunk: int) -> None:
    """Equations 4 to 6 with a plain module of its own size for each client, and the bytes that they mean."""
    task, widths = mlp(), ",".join("1" if h == 6 else str(h) for h in hidden)
    own = [task if h == 6 else Task(task.federation, MLP(hidden=h), task.loss) for h in hidden]
    recipe = feddd(budget=0.25, widths=widths, **options)
    experiment = Experiment(task, recipe, rounds=6, eval_every=1, chunk=chunk, devices=hardware())
    model: Values = task.initial(0)
    local: dict[int, Values] = {}
    last: dict[str, Tensor] = {}
    down, lonely = 0, 0
    covered = 6 + 3 if len(hidden) > 1 and "by" not in options else 0  # of each channel, who holds it
    for row in experiment.stream():
        if row["round"] == 0:
            continue
        t = row["round"] - 1
        cohort = chosen(recipe, t).clients.tolist()
        total, cover = ({n: torch.zeros_like(v) for n, v in model.items()} for _ in range(2))
        ends = {}
        for c in cohort:
            alone = own[c % len(own)]
            cut = {n: tuple(map(slice, shape)) for n, shape in alone.shapes.items()}
            start = {n: model[n][cut[n]] for n in cut}
            if c in local and t % recipe.settings()["slices"]["full_every"]:  # equation 5
                mine = {n: last[n][c][cut[n][0]].expand_as(start[n]) for n in cut}
                start = {n: torch.where(mine[n], start[n], local[c][n]) for n in cut}
                down += sum(int(each.sum()) for each in mine.values())
            else:  # equation 6
                down += sum(each.numel() for each in start.values())
            down += 1 + covered  # a rate
            ends[c] = plain_training(alone, recipe, start, t, c)
        local |= ends
        last = masks(experiment)
        for c, (name, value) in ((c, item) for c, end in ends.items() for item in end.items()):  # equation 4
            cut_ = tuple(map(slice, value.shape))
            sent = SIZES[c] * last[name][c][cut_[0]].expand_as(value)
            total[name][cut_] += sent * value
            cover[name][cut_] += sent
        lonely += sum(int((each == 0).sum()) for each in cover.values())
        model = {n: torch.where(cover[n] > 0, total[n] / cover[n], v) for n, v in model.items()}
        assert_close(experiment.model, model, rtol=0, atol=1e-12)
    assert lonely, "some value must have had no sender"
    assert experiment.ledger.down_bytes == 8 * down


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("widths", ["1", "1,0.5"])
def test_chunks_and_engines_agree(widths: str) -> None:
    task, recipe = mlp(), feddd(budget=0.5, widths=widths, full_every=4)
    found = [
        run(task, recipe, rounds=5, engine=engine, chunk=chunk, devices=hardware())
        for engine, chunk in (("vectorized", 6), ("vectorized", 1), ("vectorized", 4), ("sequential", 6))
    ]
    for other in found[1:]:
        assert_close(other.model, found[0].model, rtol=0, atol=1e-12)
        torch.testing.assert_close(rates(other), rates(found[0]), rtol=0, atol=1e-9)
        assert other.ledger.down_bytes == found[0].ledger.down_bytes


@pytest.mark.parametrize(("widths", "budget"), [("1", 0.6), ("1,0.5", 0.9)])
def test_bytes_do_not_depend_on_the_chunk(widths: str, budget: float) -> None:
    task, recipe = mlp(), feddd(budget=budget, widths=widths)
    one, two = (run(task, recipe, rounds=2, chunk=chunk, devices=hardware()) for chunk in (1, 6))
    assert 0 in rates(one), "somebody must send everything"
    assert one.ledger.up_bytes == two.ledger.up_bytes
    assert one.ledger.clock == two.ledger.clock


def test_bytes_are_those_of_the_channels_and_their_names() -> None:
    """4·‖M‖₀ and, per layer that is not sent whole, the smaller of a bitmap and packed numbers; down no names at all.

    A bitmap over all layers together would take 2 bytes here, as these do. Besides, every client sends a loss of 4
    bytes, and is sent a rate of 8.
    """
    task = mlp()
    experiment = Experiment(task, feddd(budget=0.5, full_every=3), rounds=7, eval_every=1, chunk=1, devices=hardware())
    up = down = 0
    sent = [51] * CLIENTS
    for row in experiment.stream():
        if row["round"] == 0:
            continue
        down += 4 * (sum(sent) if (row["round"] - 1) % 3 else 51 * CLIENTS) + 8 * CLIENTS
        first, second = (masks(experiment)[f"{layer}.bias"].sum(1).tolist() for layer in ("first", "second"))
        sent = [5 * a + 7 * b for a, b in zip(first, second, strict=True)]
        up += 4 * sum(sent) + sum(n < 6 for n in first) + sum(n < 3 for n in second) + 4 * CLIENTS
        assert (row["up_bytes"], row["down_bytes"]) == (up, down)
    assert min(sent) < max(sent)


# --- allocation ---------------------------------------------------------------------------------------------------


def terms(task: Task, devices: Devices, held: list[int], losses: list[float]) -> tuple[np.ndarray, ...]:
    """a_n, t_cmp,n and re_n (equations 7 to 13): 12 samples a round, values of 8 bytes each way."""
    bits = 8 * 8 * np.array(held)
    share = bits / devices.uplink + bits / devices.downlink
    compute = devices.cycles * 12 / devices.speed
    labels = task.federation.train.label.numpy()
    parts = np.split(labels, np.cumsum(SIZES)[:-1])
    dis = np.array([[np.mean(part == c) for c in range(3)] for part in parts])
    size = np.array(held) / 51
    lost = np.array(SIZES) / sum(SIZES) * np.minimum(3 * dis, 1).sum(1) * size * losses
    np.testing.assert_allclose(regularizers(SIZES, dis, held, losses), lost, rtol=1e-12)
    return share, compute, lost


def by_hand(task: Task, devices: Devices, held: list[int], losses: list[float], **said: float) -> Any:
    """Equations 14 to 17."""
    share, compute, lost = terms(task, devices, held, losses)
    delta = said["delta"] * np.median(share + compute) / lost.sum()
    assert scale_delta(said["delta"], share, compute, lost) == pytest.approx(delta)
    return allocate(held, share, compute, lost, said["budget"], said["most"], delta)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("hidden", "said"),
    [
        ((6,), {"budget": 0.6, "most": 0.8, "delta": 1.0}),
        ((6,), {"budget": 0.85, "most": 0.2, "delta": 5.0}),
        ((6, 3), {"budget": 0.4, "most": 0.9, "delta": 1.0}),
        ((6, 3), {"budget": 0.4, "most": 0.9, "delta": 30.0}),
    ],
)
def test_rates_come_from_devices_losses_and_labels(hidden: tuple[int, ...], said: dict[str, float]) -> None:
    task, devices = mlp(), hardware(seed=3)
    own = [task if h == 6 else Task(task.federation, MLP(hidden=h), task.loss) for h in hidden]
    recipe = feddd(**said, widths=",".join("1" if h == 6 else str(h) for h in hidden))
    experiment = Experiment(task, recipe, rounds=1, devices=devices)
    assert not rates(experiment).any()
    experiment.run()
    held = [8 * hidden[c % len(hidden)] + 3 for c in range(CLIENTS)]
    assert experiment.ledger.up_bytes == 8 * (sum(held) + CLIENTS), "in the first round everything goes up"
    facts = {"samples": 4, "pace": 3 * 8, "labels": 3 * 4} | ({"width": 1} if len(hidden) > 1 else {})
    enrol = {name: size for name, size in experiment.ledger.enrol.items() if name not in WELCOME}
    assert enrol == {name: CLIENTS * size for name, size in facts.items()}
    losses: list[float] = []
    for c in range(CLIENTS):
        alone, each = own[c % len(own)], []
        start = {n: task.initial(0)[n][tuple(map(slice, shape))] for n, shape in alone.shapes.items()}
        plain_training(alone, recipe, start, 0, c, losses=each)
        losses.append(float(np.mean(each)))
    found = rates(experiment).numpy()
    np.testing.assert_allclose(found, by_hand(task, devices, held, losses, **said).rates, rtol=0, atol=1e-9)
    assert found @ np.array(held) == pytest.approx((1 - said["budget"]) * sum(held), rel=1e-12)
    assert len(set(found)) > 1


def told(experiment: Experiment, losses: list[float], clients: Tensor = ALL) -> np.ndarray:
    """The rates after a round with these losses."""
    part, state = dropout(experiment)
    loss = torch.tensor(losses)[:, None]
    part.observe(state, Round(0, clients, clients, {"loss": loss}, {}, {}, experiment.model))
    return rates(experiment).numpy()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seconds", [0.0, 5.0, 50.0])
def test_a_delta_in_seconds_stands_in_the_program_as_it_is(seconds: float) -> None:
    """Equation 14: t + δ·Σ re_n·D_n. As a relative δ the same number of seconds is divided by the median client's."""
    task, losses = mlp(), [0.5, 1.0, 2.0, 0.3, 0.9, 1.3]
    said = {"budget": 0.6, "most": 0.8}
    round_ = scale_delta(1.0, *terms(task, hardware(), [51] * CLIENTS, losses))
    expected = by_hand(task, hardware(), [51] * CLIENTS, losses, delta=seconds / round_, **said).rates
    for delta, unit in ((seconds, "second"), (seconds / round_, "round")):
        recipe = feddd(**said, delta=delta, delta_unit=unit)
        experiment = Experiment(task, recipe, rounds=1, devices=hardware())
        np.testing.assert_allclose(told(experiment, losses), expected, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("float64")
def test_a_loss_that_is_not_finite_disturbs_nobody() -> None:
    """Who has never told a sound loss counts with the mean of the others; who has, with the last it told."""
    task, losses = mlp(), [0.5, 1.0, 2.0, 0.3, 0.9, 1.3]
    said = {"budget": 0.6, "most": 0.8, "delta": 30.0}  # so that losses matter
    expected = partial(by_hand, task, hardware(), [51] * CLIENTS, **said)
    experiment = Experiment(task, feddd(**said), rounds=1, devices=hardware())
    assert not told(experiment, [math.nan] * CLIENTS).any(), "as in the first round"
    others = [*losses[:2], float(np.mean(losses[:2] + losses[3:])), *losses[3:]]
    for broken in (math.nan, math.inf, -math.inf):
        found = told(experiment, [*losses[:2], broken, *losses[3:]])
        np.testing.assert_allclose(found, expected(losses=others).rates, rtol=0, atol=1e-9)
    before, found = found, told(experiment, [50.0], torch.tensor([2]))
    np.testing.assert_allclose(found, expected(losses=[*losses[:2], 50.0, *losses[3:]]).rates, rtol=0, atol=1e-9)
    assert found[2] < before[2], "who has more to tell drops less"
    assert np.array_equal(told(experiment, [math.nan], torch.tensor([2])), found)


def test_without_devices_everybody_drops_the_same() -> None:
    experiment = Experiment(mlp(), feddd(budget=0.7), rounds=2, eval_every=1)
    up = [row["up_bytes"] for row in experiment.stream()]
    assert rates(experiment).tolist() == [1 - 0.7] * CLIENTS
    assert np.diff(up).tolist() == [4 * 51 * CLIENTS, CLIENTS * (4 * (4 * 5 + 2 * 7) + 2)]


@pytest.mark.parametrize(("budget", "most"), [(0.2, 0.8), (0.9, 0.1), (0.65, 0.35)])
def test_a_budget_that_just_suffices_leaves_no_choice(budget: float, most: float) -> None:
    done = run(mlp(), feddd(budget=budget, most=most), devices=hardware())
    assert rates(done).tolist() == [most] * CLIENTS


@pytest.mark.parametrize(
    "build", [partial(get, "feddd"), lambda **said: resolve(request({"task": "mnist", "recipe": "feddd", "set": said}))]
)
def test_a_budget_that_cannot_be_met_is_refused_with_the_arithmetic(build: Any) -> None:
    with pytest.raises(
        UserError, match=r"slices=channel-dropout: .*0\.9 .*0\.8 .*at least 0\.2 .*at least 0\.9\.$"
    ) as told:
        build(budget=0.1)
    assert "\n" not in str(told.value)
    assert get("feddd", budget=0.1, rate=0.5).slices.settings()["rate"] == 0.5, "a given rate needs no budget"


# --- resuming -----------------------------------------------------------------------------------------------------


def test_a_saved_experiment_goes_on_to_the_bit() -> None:
    options = {"budget": 0.5, "full_every": 4, "widths": "1,0.5", "select": "uniform", "cohort": 4}
    task, recipe = mlp(), feddd(delta=30.0, **options)  # rates follow the losses, of those who are away too
    whole = run(task, recipe, rounds=7, devices=hardware())
    for stop in range(1, 7):
        first = run(task, recipe, rounds=stop, devices=hardware())
        second = Experiment(task, recipe, rounds=7, devices=hardware())
        second.load_state_dict(*first.state_dict())
        second.run()
        assert_same(second.model, whole.model)
        assert torch.equal(rates(second), rates(whole))
        assert (second.ledger.up_bytes, second.ledger.down_bytes, second.ledger.clock) == (
            whole.ledger.up_bytes,
            whole.ledger.down_bytes,
            whole.ledger.clock,
        )


def test_a_stopped_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    said = {"clients": 4, "train": 40, "widths": "1,0.5", "by": "norm-ratio", "epochs": 1, "full_every": 3}
    plan = resolve(
        request({"task": "mnist", "recipe": "feddd", "rounds": 5, "devices": "feddd", "eval_every": 5, "set": said})
    )
    expected = execute(plan, tmp_path / "whole", resume=False)
    for last in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            execute(plan, tmp_path / "stopped", resume=True, checkpoint_seconds=0, on_round=partial(stop, last))
    assert without_seconds(execute(plan, tmp_path / "stopped", resume=True)) == without_seconds(expected)


def stop(last: int, done: int) -> None:
    if done == last:
        raise KeyboardInterrupt
