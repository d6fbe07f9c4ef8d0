"""FLSS: the basis against singular value decompositions, coefficients on slices, what absent clients cost, refusals."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exchange import Copies, Halves, heard
from fedslice.codecs import StreamingSubspace, TopK
from fedslice.codecs.basis import Basis, mixed, project, with_directions
from fedslice.codecs.subspace import Subspace
from fedslice.core.entries import OnSlice, View
from fedslice.core.errors import UserError
from fedslice.core.header import Header, Kind
from fedslice.core.message import Message
from fedslice.core.part import Round
from fedslice.core.slice import Slice, Values
from fedslice.core.update import RowDelta, Step, Update, flatten
from fedslice.recipes import get
from fedslice.training.experiment import Experiment
from toys import SIZES, assert_close, double, mlp, pair, recommender, run

CLIENTS = len(SIZES)


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def projector(columns: Tensor) -> Tensor:
    return columns @ columns.T


def basis(updates: Tensor, rank: int) -> Basis:
    found = Basis.of(updates, rank)
    assert found is not None
    return found


def state_of(experiment: Experiment) -> Subspace:
    state = experiment.server.states["codec"]
    assert isinstance(state, Subspace)
    return state


def basis_of(experiment: Experiment) -> Basis:
    found = state_of(experiment).basis
    assert found is not None
    return found


@settings(deadline=None)
@given(st.integers(5, 40), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_it_is_the_leading_subspace(size: int, count: int, rank: int, seed: int) -> None:
    """As torch's own decomposition, with the largest entry of each column positive."""
    updates = matrix(size, count, seed)
    found = basis(updates, rank)
    left, sigma, _ = torch.linalg.svd(updates, full_matrices=False)
    kept = min(rank, count)
    torch.testing.assert_close(found.sigma, sigma[:kept])
    torch.testing.assert_close(projector(found.columns), projector(left[:, :kept]), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.columns.T @ found.columns, torch.eye(kept, dtype=torch.float64))
    assert bool((found.columns.gather(0, found.columns.abs().argmax(0, keepdim=True)) > 0).all())


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_following_without_truncation_is_one_decomposition(decay: float) -> None:
    """The old directions weigh λ for every step since."""
    updates = matrix(30, 6)
    found = basis(updates[:, :3], 6)
    for column in (3, 4, 5):
        found = found.follow(updates[:, column], decay, 6).basis
    weights = torch.tensor([decay**3] * 3 + [decay**2, decay, 1.0], dtype=torch.float64)
    expected = basis(updates * weights, 6)
    torch.testing.assert_close(found.sigma, expected.sigma)
    torch.testing.assert_close(projector(found.columns), projector(expected.columns), rtol=0, atol=1e-9)


def test_without_a_past_the_basis_is_the_update() -> None:
    """λ = 0."""
    update = matrix(9, 1, 5)[:, 0]
    found = basis(matrix(9, 4), 3).follow(update, 0.0, 3).basis
    assert found.rank == 1
    torch.testing.assert_close(projector(found.columns), torch.outer(update, update) / update.square().sum())
    assert float(found.sigma) == pytest.approx(float(update.norm()))


def test_no_update_changes_nothing_and_a_known_one_adds_no_direction() -> None:
    first = basis(matrix(9, 2), 5)
    same = first.follow(torch.zeros(9, dtype=torch.float64), 0.9, 5)
    assert same.basis is first
    assert same.mix is None, "and nothing has to be sent"
    again = first.follow(first.columns @ torch.tensor([1.0, -2.0], dtype=torch.float64), 1.0, 5).basis
    assert again.rank == 2, "its energy lies in the two directions there are"
    assert Basis.of(torch.zeros(9, 3), 2) is None


def test_a_long_trajectory_keeps_the_basis_orthonormal_in_single_precision() -> None:
    """Over many truncated steps of very different size."""
    updates = matrix(200, 80).float() * torch.logspace(0, -4, 80)
    found = basis(updates[:, :10], 8)
    for column in range(10, 80):
        found = found.follow(updates[:, column], 0.95, 8).basis
        torch.testing.assert_close(found.columns.T @ found.columns, torch.eye(found.rank), rtol=0, atol=1e-5)


KNOWN = {"new": 1.0, "nearly known": 1e-2, "known but for rounding": 0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("rank", [8, 40])
def test_who_has_some_rows_of_the_basis_follows_it_by_the_mixes_alone(
    rank: int, share: float, dtype: torch.dtype
) -> None:
    """P_new = [P, g]·M on every row, over many steps, where directions are added, lost and made straight again."""
    draw = torch.Generator().manual_seed(1)
    size = 51
    found = basis(torch.randn(size, 5, generator=draw).to(dtype), rank)
    parts = [torch.arange(size)[first::4] for first in range(4)]
    rows = [found.columns[part].clone() for part in parts]
    ranks = set()
    for _ in range(80):
        inside = found.columns.float() @ torch.randn(found.rank, generator=draw)
        update = (inside + share * torch.randn(size, generator=draw)).to(dtype)
        found, mix = found.follow(update, 1.0, rank)
        assert mix is not None
        rows = [mixed(own, update[part], mix) for own, part in zip(rows, parts, strict=True)]
        ranks.add(found.rank)
        assert mix.shape[1] == found.rank
        for own, part in zip(rows, parts, strict=True):
            torch.testing.assert_close(own, found.columns[part], rtol=0, atol=1e-6)
    assert max(ranks) <= rank
    assert len(ranks) > 1 or share == 0 or rank == 8


def test_what_projection_loses_is_the_energy_of_the_directions_left_out() -> None:
    """Σ_{r>R} σ_r² over all updates; a projection is shorter, and repeating it does nothing."""
    updates = matrix(40, 12)
    found = basis(updates, 5)
    lost = sum(found.residual(update) * float(update.square().sum()) for update in updates.T)
    assert lost == pytest.approx(float(torch.linalg.svdvals(updates)[5:].square().sum()))
    once = projector(found.columns) @ updates[:, 0]
    assert float(once.norm()) <= float(updates[:, 0].norm())
    torch.testing.assert_close(projector(found.columns) @ once, once)
    assert found.residual(once) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("rank", [1, 40])
def test_coefficients_of_a_slice_are_those_of_the_whole_update(rank: int) -> None:
    """Rows of a table and whole layers, on either side of the choice between gathering and spreading."""
    with double():
        task = recommender()
        sizes = {name: shape.numel() for name, shape in task.shapes.items()}
        clients = torch.arange(4)
        rows = {table: sets.axis(clients) for sets in task.index_sets for table in sets.tables}
        part = Slice.whole(4, task.shapes).replace(rows)
        values: Values = {n: part.clear(n, torch.randn_like(v)) for n, v in part.gather(task.initial(0)).items()}
        update = Update(part, part, values)
        found = basis(matrix(sum(sizes.values()), rank), rank)
        read = View(found.rows(task.shapes), with_directions(part, rank))
        here = OnSlice(read.part, read.at(read.part))  # as a client has it that knows its own rows alone
        for client in range(4):
            spread = {name: RowDelta(None, part.spread(name, values[name])[client]) for name in task.shapes}
            expected = found.columns.T @ flatten(spread, task.shapes)
            for rows in (read, here):
                torch.testing.assert_close(project(rows, update, rank, torch.float64)[client], expected)


class Played:
    """The server's half of the codec in rounds that are told and not computed."""

    def __init__(self, codec: StreamingSubspace, size: int, clients: int):
        self.codec, self.both = codec, Halves(codec, {"w": torch.Size([size])}, dtype=torch.float32, clients=clients)
        self.draw = torch.Generator().manual_seed(0)
        self.size, self.t = size, 0
        self.seen = torch.full((clients,), -1)

    def change(self) -> Tensor:
        return torch.randn(self.size, generator=self.draw)

    def play(self, clients: list[int], code: Tensor | None = None) -> None:
        """A round in which these clients take part, with a full update, or coefficients."""
        state = self.both.state
        assert self.codec.is_full(state, self.t) == (code is None)
        if code is None:
            change: Step = {"w": RowDelta(None, self.change())}
        else:
            change = self.codec.expand(state, self.t, {"coefficients": RowDelta(None, code)})
        who = torch.tensor(clients)
        self.seen[who] = self.t
        self.both.server_run.enrolled.took(who, self.t)
        self.codec.observe(state, Round(self.t, who, who, {}, {}, change, {}))
        self.t += 1

    def bytes(self, client: int) -> dict[str, int]:
        """What a client would be sent now, by field."""
        one, state, spec = torch.tensor([client]), self.both.state, self.both.spec
        head = Header(Kind.REQUEST, self.t, one, 0 * one, self.seen[one], self.seen[one])
        part = Slice.whole(1, self.both.shapes)
        fields = self.codec.send_fields(spec, part, self.codec.layout(state, self.t))
        body = self.codec.send(state, head, View({"w": torch.zeros(self.size)}, part))
        sizes = Message(head, fields, body).sizes()
        return {name: int(size) for name, size in sizes.items() if int(size)}


def test_an_absent_client_is_sent_what_it_has_missed_or_all_of_it() -> None:
    """By hand: a model of 100 values, two rounds of warm-up, then a basis of rank 3 and a full round every third.

    A full step is 100 values, and M with (3 + 1)·3 numbers in float64; until there are three directions it is smaller.
    Coefficients are 3 values. The model with its basis are 100 + 300 values.
    """
    played = Played(StreamingSubspace(rank=3, warmup=2, every=3), 100, 4)
    whole = {"values": 4 * 100}
    both = {"values": 4 * 100, "basis": 4 * 100 * 3}
    assert played.bytes(0) == whole, "the model, at first"
    played.play([0, 1])
    assert played.bytes(0) == whole, "the first step would be as large as the model"
    played.play([0, 2])
    pair = {"values": 4 * 100, "basis": 4 * 100 * 2}
    assert [played.bytes(client) for client in range(4)] == [pair] * 4, "nobody has the basis, of two directions by now"
    played.play([0, 1, 2])
    full = 4 * 100 + 8 * (2 + 1) * 3
    assert played.bytes(0) == {"steps": full}, "a full step, and how the basis follows it to three directions"
    assert played.bytes(3) == both
    played.play([0], torch.ones(3))
    assert played.bytes(0) == {"steps": 4 * 3}, "coefficients"
    assert played.bytes(1) == {"steps": full + 4 * 3}, "a full step and coefficients"
    played.play([0, 1], torch.ones(3))
    played.play([0])
    assert played.t == 6
    later = 4 * 100 + 8 * (3 + 1) * 3
    assert played.bytes(0) == {"steps": later}
    assert played.bytes(1) == {"steps": 4 * 3 + later}, "what it has taken part in last it does not know yet"
    assert played.bytes(2) == {"steps": full + 2 * 4 * 3 + later}
    assert full + later < 4 * 400 < full + 3 * later
    for _ in range(2):
        played.play([0], torch.ones(3))
        played.play([0], torch.ones(3))
        played.play([0])
    assert played.t == 12
    assert played.bytes(1) == {"steps": 5 * 4 * 3 + 3 * later}, "three full steps and five of coefficients"
    assert 5 * 4 * 3 + 3 * later < 4 * 400
    assert played.bytes(2) == both, "the model and the basis are smaller than four full steps"
    assert played.bytes(3) == both


def test_a_step_that_clients_cannot_follow_by_coefficients_is_sent_in_values() -> None:
    """The server's momentum changes the step: its values go down, and the basis, which a full round moves, with M."""
    recipe = get("flss", select="everyone", rank=2, warmup=2, every=2, iterations=2, lr=0.1, server="momentum")
    with double():
        experiment = Experiment(mlp(), recipe, rounds=2, engine="vectorized", wire=True)
        copies = Copies(experiment)
        experiment.run()
        size, before, found = experiment.spec.size, experiment.ledger.down_bytes, []
        for t in range(2, 8):
            experiment.rounds = t + 1
            experiment.run()
            found.append((experiment.ledger.down_bytes - before) / CLIENTS)
            before = experiment.ledger.down_bytes
    whole, mix = 8 * size * 3, 8 * (2 + 1) * 2
    assert found == [whole, *[8 * size + mix, 8 * size] * 2, 8 * size + mix]
    assert copies.model <= 1e-9
    assert copies.basis <= 1e-9


DEVICES: dict[str, tuple[Any, dict[str, Any]]] = {
    "whole": (mlp, {}),
    "tables": (recommender, {}),
    "rows": (recommender, {"slices": "feature-rows"}),
    "rows, with heat": (recommender, {"slices": "feature-rows", "combine": "heat"}),
    "decay": (mlp, {"codec.decay": 0.6}),
    "rows, with decay": (recommender, {"slices": "feature-rows", "codec.decay": 0.6}),
    "fewer directions": (mlp, {"rank": 20, "warmup": 2}),
    "rows, with fewer directions": (recommender, {"slices": "feature-rows", "rank": 20, "warmup": 2}),
    "every direction": (mlp, {"rank": 51, "warmup": 1, "every": 1}),
    "a fixed basis": (mlp, {"every": 0}),
    "signs": (mlp, {"inner": "sign"}),
    "projected gradients": (mlp, {"local": "projected"}),
    "shared blocks": (pair, {"slices": "shared", "patterns": "shared.*"}),
}


@pytest.mark.parametrize("precise", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_client_that_keeps_copy_and_basis_has_those_of_the_server(name: str, precise: bool) -> None:
    """Over many rounds, two clients in each: they follow the steps of all the rounds in which they were absent."""
    task, options = DEVICES[name]
    common = {"cohort": 2, "rank": 3, "warmup": 3, "every": 4, "iterations": 2, "batch_size": 4, "lr": 0.05}
    recipe = get("flss", **common | options)

    def play() -> tuple[Experiment, Copies]:
        plain, packed = (Experiment(task(), recipe, rounds=50, eval_every=50, wire=wire) for wire in (False, True))
        copies = Copies(packed)
        packed.run()
        plain.run()
        assert plain.ledger.state_dict() == packed.ledger.state_dict()
        assert_close(packed.model, plain.model, atol=1e-8 if precise else 1e-4)
        return packed, copies

    if precise:
        with double():
            packed, copies = play()
    else:
        packed, copies = play()
    assert copies.model <= 1e-6
    assert copies.basis <= 1e-6
    assert len(copies.steps) > 20
    assert max(copies.steps) > 2
    if "fewer" in name:
        assert min(copies.ranks) < 5
        assert len(copies.ranks) > 5
    assert packed.rejected == 0


def test_the_words_of_a_run_are_those_that_the_paper_counts() -> None:
    """D on full rounds and R on the others, or D/32 with signs; here 2 + 2 full rounds of 12, as 7 = 2 + 5."""
    task = mlp()
    size = sum(shape.numel() for shape in task.shapes.values())
    common: dict[str, Any] = {"select": "everyone", "rank": 2, "warmup": 2, "every": 5, "iterations": 2, "lr": 0.1}
    for recipe, full in (("flss", size), ("sign+flss", size / 32)):
        done = run(task, get(recipe, **common), rounds=12)
        assert done.ledger.words == pytest.approx(CLIENTS * (4 * full + 8 * 2))
    done = run(task, get("flss", **common), rounds=12).ledger
    assert done.up_bytes == 4 * CLIENTS * (4 * size + 8 * 2)
    assert done.up == {"values": 4 * CLIENTS * 4 * size, "coefficients": 4 * CLIENTS * 8 * 2}


@pytest.mark.parametrize("weights", [None, "samples"])
@pytest.mark.parametrize("recipe", ["flss", "fedprox+flss", "sign+flss"])
def test_the_server_takes_the_plain_mean_of_coefficients(recipe: str, weights: str | None) -> None:
    """Algorithm 1, line 11: g̃ = 1/|M|·Σ g̃_k, however many samples a client has; weights=samples weighs by them."""
    with double():
        options: dict[str, Any] = {"cohort": 4, "rank": 2, "warmup": 2, "every": 0, "iterations": 2, "lr": 0.1}
        asked = get(recipe, **options | ({} if weights is None else {"weights": weights}))
        experiment = Experiment(mlp(), asked, rounds=6, eval_every=1, chunk=2)
        messages = heard(experiment)
        before, compared = None, 0
        for row in experiment.stream():
            after = torch.cat([value.flatten() for value in experiment.model.values()])
            if row["round"] > 2:
                codes = torch.cat([next(iter(one.update.values.values())) for one in messages])
                sizes = torch.tensor(SIZES)[[client for one in messages for client in one.clients]].double()
                shares = sizes / sizes.sum() if weights == "samples" else torch.full((4,), 0.25)
                assert before is not None
                torch.testing.assert_close(after - before, basis_of(experiment).columns @ (shares @ codes))
                assert len(set(sizes.tolist())) > 1
                compared += 1
            before = after
            messages.clear()
        assert compared == 4


def test_a_fixed_subspace_is_never_left() -> None:
    """F-Sub of table 4: without full rounds the basis of the warm-up stays, and 2 + 10 rounds of 12 send D and R."""
    task = mlp()
    size = sum(shape.numel() for shape in task.shapes.values())
    recipe = get("flss", select="everyone", rank=2, warmup=2, every=0, iterations=2, lr=0.1)
    experiment = Experiment(task, recipe, rounds=12, eval_every=1)
    places, codec = [], recipe.codec
    assert isinstance(codec, StreamingSubspace)
    for row in experiment.stream():
        places.append(torch.cat([value.flatten() for value in experiment.model.values()]))
        if row["round"] == 2:
            first = basis_of(experiment).columns.clone()
    assert torch.equal(basis_of(experiment).columns, first)
    assert experiment.ledger.words == CLIENTS * (2 * size + 10 * 2)
    for before, after in pairwise(places[2:]):
        step = after - before
        assert float(step.norm()) > 0
        torch.testing.assert_close(projector(first) @ step, step, rtol=1e-4, atol=1e-6)
    assert not any(codec.is_full(state_of(experiment), t) for t in range(2, 12))


def test_full_rounds_alone_with_signs_are_signs() -> None:
    options: dict[str, Any] = {"select": "everyone", "iterations": 2, "lr": 0.1, "weights": "uniform"}
    plain = run(mlp(), get("sign", **options), rounds=5)
    wrapped = run(mlp(), get("sign+flss", **options, rank=2, warmup=1, every=1), rounds=5)
    assert_close(wrapped.model, plain.model, rtol=1e-6, atol=1e-7)


def test_it_wraps_feature_rows_with_heat() -> None:
    task = recommender()
    recipe = get("fedsubavg", codec="subspace", rank=3, warmup=2, every=3, cohort=4, iterations=3, lr=0.05)
    done = run(task, recipe, rounds=8)
    assert done.rejected == 0
    assert {panel.title for panel in done.recipe.codec.panels(state_of(done))} == {
        "Spectrum of the subspace",
        "What projection misses",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 10**4}, "rank=10000 but the model has"),
        ({"rank": 10**6}, "rank=1000000: input should be less than or equal to 32766"),
        ({"warmup": 4}, "warmup=4 is longer than the run of 3 rounds"),
        ({"warmup": 999_999_999, "rounds": 10**9}, "999,999,999 updates of 51 .* GiB, where there are .* GiB"),
    ],
)
def test_what_can_never_become_a_subspace_is_refused(options: dict[str, Any], words: str) -> None:
    rounds = options.pop("rounds", 3)
    with pytest.raises(UserError, match=words):
        Experiment(pair(), get("flss", cohort=2, **{"warmup": 1, "rank": 2} | options), rounds=rounds)


def test_the_inner_codec_is_checked_too() -> None:
    with pytest.raises(UserError, match="codec=sign keeps a memory per client"):
        get("sign+flss", replacement=True)
    assert StreamingSubspace(inner=TopK()).settings()["inner"]["name"] == "topk"
