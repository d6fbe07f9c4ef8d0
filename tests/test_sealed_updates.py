"""Uploads under masks, of which the server opens the sum, as stages of the round loop."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedslice.codecs import Codec, SecAgg
from fedslice.core.errors import RunWarning, UserError
from fedslice.core.header import Kind
from fedslice.core.message import Message
from fedslice.recipe import Recipe, default
from fedslice.recipes import RECIPES
from fedslice.training.events import Listener
from fedslice.training.experiment import Experiment, spec_of
from fedslice.training.population import Population
from fedslice.training.rounds import Phase, enrol, play_round
from fedslice.training.server import Server
from fedslice.training.sum_stages import NOBODY
from fedslice.training.sums import Purpose, Step, place, placed
from fedslice.training.transports.memory import InMemory, Packed
from toys import assert_close, assert_same, double, fitting, recommender, run

SIZES = (3, 7, 1, 12, 5, 4, 6, 2)
SMALL: dict[str, Any] = {"cohort": 6, "iterations": 2, "batch_size": 4, "lr": 0.05}
EVERYONE: dict[str, Any] = {"iterations": 2, "batch_size": 4, "lr": 0.05, "select": "everyone"}
LINEAR = ("fedavg", "fedsubavg", "scaffold", "feddyn", "fetchsgd", "flss", "fedper", "fedadam")


def sealed(recipe: Recipe, **settings: Any) -> Recipe:
    """The recipe, with what it sends under masks; rounded so finely that nothing is lost."""
    fine = {"bits": 32, "bound": 16.0, "report_bound": 16.0}
    return recipe.with_options({"codec": SecAgg(inner=recipe.codec, **(fine | settings))})


def named(name: str) -> tuple[Any, Recipe]:
    task, recipe = fitting(name, SIZES)
    return task, recipe.with_options(SMALL)


class _Heard(Listener):
    def __init__(self) -> None:
        self.uploads: list[Message] = []
        self.parts: list[Message] = []
        self.refusals: list[Any] = []

    def summed(self, message: Message) -> None:
        if message.head.kind is Kind.PART:
            self.parts.append(message)

    def taken(self, event: Any) -> None:
        self.uploads.append(event.message)

    def refused(self, event: Any) -> None:
        self.refusals.append(event)


class _Losing(InMemory):
    """Some clients are never heard of again after some step."""

    def __init__(self, population: Population, lost: dict[Step, set[int]]):
        super().__init__(population)
        self.lost = lost

    def chunks(self, stage: Any, cohort: Any) -> Iterator[Any]:
        for one in range(len(cohort.clients)):
            yield type(cohort)(cohort.clients[one : one + 1], cohort.draws[one : one + 1])

    def exchange(self, server: Any, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
        for reply in super().exchange(server, phase, downs):
            head = reply.head
            step = Step.VECTORS if head.kind is Kind.UPLOAD else None
            step = placed(head.layout)[1] if head.kind is Kind.PART else step
            if step is None or int(head.clients[0]) not in self.lost.get(step, ()):
                yield reply


def played(
    recipe: Recipe, masked: bool, lost: dict[Step, set[int]] | None = None, rounds: int = 1
) -> tuple[Server, _Heard, Population]:
    task = recommender(SIZES)
    spec, heard = spec_of(task, recipe, 0, rounds), _Heard()
    server = Server(spec, {name: value.clone() for name, value in task.initial(0).items()}, masked=masked)
    server.events.add(heard)
    population = Population(spec, task, masked=masked)
    transport = Packed(population) if lost is None else _Losing(population, lost)
    enrol(server, transport, torch.arange(len(SIZES)))
    for _ in range(rounds):
        play_round(server, transport)
    return server, heard, population


@pytest.mark.parametrize("name", LINEAR)
def test_the_sum_is_that_of_the_updates(name: str) -> None:
    """With levels this fine the model is that of the recipe without masks."""
    with double():
        task, recipe = named(name)
        plain, under = run(task, recipe, rounds=3), run(task, sealed(recipe), rounds=3)
        assert_close(under.model, plain.model, rtol=1e-4, atol=1e-6)
        assert (
            max(float((a - b).abs().max()) for a, b in zip(plain.model.values(), task.initial(0).values(), strict=True))
            > 1e-3
        )


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "flss"])
def test_masks_change_no_bit_and_no_byte(name: str) -> None:
    task, recipe = named(name)
    runs = [
        run(task, sealed(recipe, simulate=simulate, bits=8, bound=0.5), rounds=3, wire=wire)
        for simulate, wire in ((True, False), (False, False), (False, True))
    ]
    for other in runs[1:]:
        assert_close(other.model, runs[0].model, rtol=1e-4, atol=1e-5) if other is runs[2] else assert_same(
            other.model, runs[0].model
        )
        assert other.ledger.up == runs[0].ledger.up
        assert other.ledger.down == runs[0].ledger.down


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("step", list(Step))
def test_the_sum_is_over_those_whose_vectors_arrive(step: Step, masked: bool) -> None:
    recipe = sealed(RECIPES["fedavg"].with_options(EVERYONE))
    server, heard, _ = played(recipe, masked, {step: {1, 4}})
    inside = [c for c in range(len(SIZES)) if step is Step.REVEAL or c not in (1, 4)]
    assert server.enrolled.upload_round(torch.arange(len(SIZES))).tolist() == [
        0 if c in inside else -1 for c in range(len(SIZES))
    ]
    task, chosen = recommender(SIZES), RECIPES["fedavg"].with_options(EVERYONE)
    plain = Experiment(task, chosen, rounds=1)
    gone = set(range(len(SIZES))) - set(inside)
    play_round(plain.server, _Losing(plain.population, {Step.VECTORS: gone}))
    assert_close(dict(server.model), dict(plain.model), rtol=1e-4, atol=1e-6)
    assert not heard.refusals


@pytest.mark.parametrize("masked", [False, True])
def test_too_few_that_remain_end_the_round_without_a_step(masked: bool) -> None:
    recipe = sealed(RECIPES["scaffold"].with_options(EVERYONE))
    server, heard, population = played(recipe, masked, {Step.VECTORS: {0, 1, 2, 3, 4}})
    assert_same(dict(server.model), recommender(SIZES).initial(0))
    assert server.round == 1
    assert [refusal.client for refusal in heard.refusals] == [NOBODY]
    assert "ended without a sum" in heard.refusals[0].reason
    assert not population.memories.store.state_dict() or all(
        "local" not in name for name in population.memories.store.state_dict()
    )


def test_what_arrives_tells_nothing_of_one_client() -> None:
    """Each masked vector differs from the client's own in about all places; their sum does not."""
    recipe = sealed(RECIPES["fedavg"].with_options(EVERYONE), bits=16, bound=1.0)
    heard = [played(recipe, masked)[1] for masked in (True, False)]
    own, hidden = (
        torch.stack([m.body["values"][0] for m in sorted(one.uploads, key=lambda m: int(m.head.clients[0]))])
        for one in reversed(heard)
    )
    assert own.shape == hidden.shape
    assert float((own != hidden).double().mean()) > 0.99
    bits = int(np.ceil(np.log2(len(SIZES) * 32767))) + 1
    spread = (hidden.long() % (1 << bits)).double() / (1 << bits)
    assert spread.mean() == pytest.approx(0.5, abs=0.05)
    assert spread.var() == pytest.approx(1 / 12, rel=0.15)
    names = {name for message in heard[0].uploads for name in message.fields}
    assert names == {"values"}


def test_a_client_reveals_shares_of_one_session_per_round() -> None:
    """A server that plays a round again, with some clients missing, would see the difference of two sums."""
    recipe = sealed(RECIPES["fedavg"].with_options(EVERYONE))
    first, _, population = played(recipe, True)
    again = Server(first.spec, {n: v.clone() for n, v in recommender(SIZES).initial(0).items()}, masked=True)
    heard = _Heard()
    again.events.add(heard)
    transport = _Losing(population, {})
    enrol(again, transport, torch.arange(len(SIZES)))
    play_round(again, transport)
    assert all(bool(message.head.declined.all()) for message in heard.parts if message.head.declined is not None)
    assert not heard.uploads
    assert_same(dict(again.model), recommender(SIZES).initial(0))
    play_round(again, transport)  # the next round is another one
    assert len(heard.uploads) == len(SIZES)


def test_an_answer_to_another_step_is_refused() -> None:
    server, heard, _ = played(sealed(RECIPES["fedavg"].with_options(SMALL)), True)
    head = server.head(Kind.PART, torch.tensor([0]), torch.tensor([0]), place(Purpose.UPDATES, Step.REVEAL))
    server.awaited.ask(head.clients, head.draws)
    assert server.read(Message(head).pack(0, server.spec.fingerprint), Kind.PART, 0) is None
    assert "not open" in heard.refusals[-1].reason


def test_large_values_are_clipped_and_rounding_is_fair() -> None:
    task, recipe = recommender(SIZES), RECIPES["fedavg"].with_options(EVERYONE)
    coarse: list[Tensor] = []
    for secret in range(200):
        spec = spec_of(task, sealed(recipe, bits=4, bound=0.3), 0, 1)
        server = Server(spec, {n: v.clone() for n, v in task.initial(0).items()})
        population = Population(spec, task, secret=secret)
        transport = InMemory(population)
        enrol(server, transport, torch.arange(len(SIZES)))
        play_round(server, transport)
        coarse.append(torch.cat([value.flatten() for value in server.model.values()]))
    exact = torch.cat([value.flatten() for value in run(task, recipe, rounds=1).model.values()])
    initial = torch.cat([value.flatten() for value in task.initial(0).values()])
    small = (exact - initial).abs() < 0.02  # no client's own change is near the bound there
    errors = (torch.stack(coarse) - exact)[:, small].double()
    deviation = errors.std(0).clamp(min=1e-6) / np.sqrt(len(coarse))
    assert float((errors.mean(0).abs() / deviation).max()) < 5.5


@pytest.mark.parametrize("inner", ["topk", "stc", "lbgm", "sign", "quantize"])
def test_what_cannot_be_summed_is_refused_by_name(inner: str) -> None:
    with pytest.raises(UserError, match=inner):
        RECIPES["fedavg"].with_options({"codec": "secagg", "codec.inner": inner})


@pytest.mark.parametrize(
    ("name", "word"), [("submodelavg", "coverage"), ("oort", "oort"), ("feddd", "feddd|channel|coverage|exact|values")]
)
def test_what_looks_at_single_clients_is_refused_by_name(name: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        RECIPES[name].with_options({"codec": "secagg"})


def test_linear_codecs_are_those_that_say_so() -> None:
    kinds = ("dense", "fetchsgd", "subspace")
    for label in ("dense", "sign", "topk", "stc", "quantize", "fetchsgd", "lbgm", "subspace"):
        codec = default("codec", label)
        assert isinstance(codec, Codec)
        assert ("linear" in codec.provides) == (label in kinds)


def test_a_run_resumes() -> None:
    task, recipe = named("flss")
    method = sealed(recipe, simulate=False)
    whole = run(task, method, rounds=6)
    first = Experiment(task, method, rounds=6)
    for _ in range(3):
        play_round(first.server, first.transport)
    half = Experiment(task, method, rounds=6)
    tensors, numbers = first.state_dict()
    half.load_state_dict(tensors, numbers)
    half.run()
    assert_same(half.model, whole.model)


def test_a_cohort_of_two_is_not_summed_and_the_run_says_so() -> None:
    task, recipe = recommender(SIZES), RECIPES["fedavg"].with_options(SMALL | {"cohort": 2})
    with pytest.warns(RunWarning, match="has 2 clients, 3 are needed"):
        experiment = run(task, sealed(recipe), rounds=2)
    assert_same(experiment.model, task.initial(0))


@pytest.mark.parametrize(
    ("size", "own", "scale"), [(2, 0, 1.0), ((1 << 32) - 1, 0, 1.0), (8, 8, 1.0), (8, 0, 1e300), (8, 0, 1.0)]
)
def test_a_client_takes_no_part_in_a_sum_that_is_none(size: int, own: int, scale: float) -> None:
    """Too few others, too many to be true, no place of its own, or a sum that fits no ring."""
    _, _, population = played(sealed(RECIPES["fedavg"].with_options(EVERYONE)), True)
    tallied = population.spec.recipe.with_options({"combine": "heat", "heat_source": "secure-sum"})
    other = Population(spec_of(population.task, tallied, 0, 1), population.task, masked=True)
    head = other._head(Kind.SUM, 1, torch.tensor([0]), layout=place(Purpose.TALLIES, Step.KEYS))
    body = {
        "sum/session": torch.zeros(1, 16, dtype=torch.int64),
        "sum/cohort": torch.tensor([[size, own, 0]]),
        "sum/scale": torch.tensor([[scale]], dtype=torch.float64),
    }
    answer = other.summed(Message(head, {}, body))
    assert answer.head.declined is not None
    assert bool(answer.head.declined[0]) == ((size, own, scale) != (8, 0, 1.0))


def test_a_client_whose_download_belongs_to_another_sum_declines() -> None:
    """The ring of the upload is that of the cohort that the client was told of, or there is no upload."""
    recipe = sealed(RECIPES["fedavg"].with_options(EVERYONE))
    task = recommender(SIZES)
    spec = spec_of(task, recipe, 0, 1)
    server = Server(spec, {n: v.clone() for n, v in task.initial(0).items()}, masked=True)
    heard, population = _Heard(), Population(spec, task, masked=True)
    server.events.add(heard)

    class Changing(InMemory):
        def exchange(self, server: Any, phase: Phase, downs: Iterable[Message]) -> Iterator[Message]:
            for down in downs:
                if down.head.kind is Kind.DOWNLOAD:
                    object.__setattr__(down.head, "layout", down.head.layout - 1)
                yield from super().exchange(server, phase, [down])

    transport = Changing(population)
    enrol(server, transport, torch.arange(len(SIZES)))
    play_round(server, transport)
    assert_same(dict(server.model), task.initial(0))
    assert all(bool(m.head.declined.all()) for m in heard.uploads if m.head.declined is not None)
