"""Clients that enrol in a later round, leave, and come back: the server knows what it would know without the detour."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import fedslice as fs
from fedslice.core.entries import View
from fedslice.core.header import Kind
from fedslice.training.rounds import Phase, play_round
from mutations import Device
from test_hostile import Town, patched
from toys import assert_close, assert_same, double, index_set
from two_sides import EIGHT, Case, Timed, alone
from wire import Losing

ONE, WHEN, END = 7, 2, 5  # the client, the round before which it comes or in which it goes, and when it is over
FACTS = {
    "fedavg": Case("fedavg"),
    "fedsubavg": Case("fedsubavg"),
    "scaffold": Case("scaffold"),
    "fedgen": Case("fedgen"),
    "feddd": Timed("feddd", options={"rate": None}),
    "heterofl": Case("heterofl", options={"widths": "1,0.5"}),
    "oort": Timed("oort", options={"budget": 1.0}),
}
# Recipes whose rounds depend on nobody but those who take part in them.
ALONE = {
    "fedavg": Case("fedavg"),
    "submodelavg": Case("submodelavg"),
    "sign": Case("sign"),
    "lbgm": Case("lbgm", options={"delta": 0.6}),
    "stc": Case("stc", options={"share": 0.2}),
    "flss": Case("flss", options={"warmup": 2, "every": 2}),
    "feddd": Case("feddd"),
    "fedrep": Case("fedrep"),
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with double():
        yield


class Leaving(Losing):
    """A wire on which one client says farewell in place of a message."""

    def __init__(self, phase: Kind) -> None:
        super().__init__()
        self._phase = phase

    def carry(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> bytes | None:
        if (server.round, number, phase.kind) == (WHEN, ONE, self._phase):
            client = self.devices.pop(number).client
            client.reply(data)
            return client.farewell()
        return super().carry(server, phase, number, data)


def known(town: Town) -> dict[str, Tensor]:
    """What the server knows of all who are enrolled."""
    enrolled = town.server.enrolled
    out = {f"{name} of all": enrolled.all_facts(name) for name in sorted(enrolled._facts)}
    out |= {f"sum of {name}": enrolled.sums(name) for name in enrolled._facts if name != "pace"}  # of whole numbers
    out["numbers"], out["count"] = enrolled.numbers(), torch.tensor(enrolled.count)
    for place, state in town.server.states.items():
        out |= {f"{place}.{name}": value.clone() for name, value in state.facts_dict().items()}
    return out


def come(town: Town) -> fs.Client:
    """Let the client enrol."""
    client = alone(town.task, town.recipe, ONE, END, town.case.devices())
    town.clients[ONE] = client
    town.wire.connect(town.server, Device(client))
    return client


@pytest.mark.parametrize("name", FACTS)
def test_who_enrols_late_is_known_as_if_from_the_start(name: str) -> None:
    late = Town(FACTS[name], Losing(), who=range(ONE)).play(WHEN)
    come(late)
    assert_same(known(late), known(Town(FACTS[name], Losing())))
    assert ONE in late.play(1).took[-1]
    assert not late.refusals


@pytest.mark.parametrize("name", ALONE)
def test_who_enrols_late_was_not_missed(name: str) -> None:
    """The run is the one in which the client was enrolled from the start and silent."""
    late = Town(ALONE[name], Losing(), who=range(ONE)).play(WHEN)
    come(late)
    late.play(END - WHEN)
    silent = Town(ALONE[name], Losing({(t, ONE) for t in range(WHEN)})).play(END)
    assert late.took == silent.took
    assert ONE in late.took[-1]
    assert_same(dict(late.server.model), dict(silent.server.model))
    assert late.ledger.state_dict() | {"framing": 0} == silent.ledger.state_dict() | {"framing": 0}


def common(town: Town) -> dict[str, Tensor]:
    """SCAFFOLD's c, as the server sends it."""
    state = town.server.states["local"]
    view = state.terms["scaffold"].view(town.server.round, _everything(town))
    assert isinstance(view, View)
    return {name: value[0] for name, value in view.at(view.part).items()}


def _everything(town: Town) -> fs.core.slice.Slice:
    return fs.core.slice.Slice.whole(1, town.server.spec.shapes)


def own_variates(town: Town) -> dict[int, dict[str, Tensor]]:
    """c_i of every client, in full."""
    out: dict[int, dict[str, Tensor]] = {}
    for number, client in town.clients.items():
        memories = client.population.memories
        who = torch.tensor([number])
        memories.settle(who, town.server.taken_rounds(who))
        memory, out[number] = client.population.parts["local"].terms["scaffold"], {}
        for name, shape in town.server.spec.shapes.items():
            rows, dense = memory.get_rows(f"variate/{name}", who), memory.get(f"variate/{name}", who)
            out[number][name] = torch.zeros(shape) if dense is None else dense[0][0]
            if rows is not None:
                held, values = rows
                out[number][name].index_add_(0, held.ids[0], values[0])
    return out


def test_c_is_the_mean_of_all_variates_whoever_enrols_and_is_kept_when_somebody_leaves() -> None:
    """Σ w_i·c_i / W, to which a newcomer adds a zero, and from which somebody who leaves takes a mean one."""
    town = Town(Case("scaffold", options={"weights": "samples"}), Losing(), who=range(ONE)).play(WHEN)

    def closed() -> dict[str, Tensor]:
        mine = own_variates(town)
        weight = {number: float(EIGHT[number]) for number in mine}
        return {name: sum(weight[n] * mine[n][name] for n in mine) / sum(weight.values()) for name in town.server.model}

    assert_close(common(town), closed(), rtol=1e-9, atol=1e-12)
    before = common(town)
    come(town)
    share = sum(EIGHT[:ONE]) / sum(EIGHT)
    assert_close(common(town), {name: share * value for name, value in before.items()}, rtol=1e-12, atol=1e-15)
    assert_close(common(town), closed(), rtol=1e-9, atol=1e-12)
    town.play(1)
    assert_close(common(town), closed(), rtol=1e-9, atol=1e-12)
    before = common(town)
    town.server.leave(town.clients[ONE].population.introduce(torch.tensor([ONE])))
    assert_close(common(town), before, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("phase", [Kind.REQUEST, Kind.UPLOAD])
def test_who_leaves_takes_its_facts_back(name: str, phase: Kind) -> None:
    """Before it has been answered, or with the model in its hands."""
    town = Town(FACTS[name], Leaving(phase)).play(WHEN + 1)
    assert not town.refusals
    assert ONE not in town.took[-1]
    assert_same(known(town), known(Town(FACTS[name], Losing(), who=range(ONE))))
    if name == "fedsubavg":
        weight = town.server.states["combine"].weight["item.weight"]
        held = [index_set(town.task, "item.weight", client) for client in range(ONE)]
        assert weight.tolist() == [
            sum(EIGHT[c] for c, own in enumerate(held) if row in own) for row in range(len(weight))
        ]
    town.play(2)
    assert ONE not in town.took[-1]


@pytest.mark.parametrize("name", ALONE)
def test_who_has_left_is_not_missed(name: str) -> None:
    gone = Town(ALONE[name], Leaving(Kind.REQUEST)).play(END)
    silent = Town(ALONE[name], Losing({(t, ONE) for t in range(WHEN, END)})).play(END)
    assert gone.took == silent.took
    assert_same(dict(gone.server.model), dict(silent.server.model))


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "scaffold", "feddd"])
def test_who_has_left_cannot_answer(name: str) -> None:
    """Neither in the round at hand nor later, and not with a farewell."""
    said: dict[Kind, bytes] = {}

    class Staying(Losing):
        """One client leaves with the model in its hands, and then uploads nevertheless."""

        def read(self, server: fs.Server, phase: Phase, number: int, data: bytes) -> object:
            if (server.round, number, phase.kind) == (WHEN, ONE, Kind.UPLOAD):
                said[Kind.UPLOAD], said[Kind.LEAVE] = data, self.devices[ONE].client.farewell()
                assert server.read(said[Kind.LEAVE], Kind.UPLOAD, ONE) is None
            return super().read(server, phase, number, data)

    town = Town(FACTS[name], Staying()).play(WHEN + 1)
    assert [one.reason for one in town.refusals] == ["is from a client that is not enrolled"]
    assert ONE not in town.took[-1]
    server = town.server
    server.invite()
    for kind, data in said.items():
        assert server.read(patched(data, round=server.round), kind, ONE) is None
    server.finish()
    assert len(town.refusals) == 3
    assert {one.client for one in town.refusals} == {ONE}
    assert_same(known(town), known(Town(FACTS[name], Losing(), who=range(ONE))))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "lbgm", "fedrep", "feddd"])
def test_who_comes_back_is_new(name: str) -> None:
    """It has another number and remembers nothing; its old number is nobody's, also after a restart of the server."""
    case = ALONE.get(name) or FACTS[name]
    town = Town(case, Leaving(Kind.REQUEST)).play(WHEN + 1)
    client = town.clients[ONE]
    assert client.number == ONE
    assert client.population.memories.state_dict(pending=True)["rounds.clients"].numel()
    saved = {key: value.clone() for key, value in town.server.state_dict().items()}
    town.server.load_state_dict(saved)
    assert town.wire.connect(town.server, Device(client)) == client.number == len(EIGHT)
    assert town.server.enrolled.numbers().tolist() == [*range(ONE), len(EIGHT)]
    assert not client.population.memories.state_dict(pending=True)["rounds.clients"].numel()
    town.play(2)
    assert not town.refusals
    assert len(EIGHT) in town.took[-1]
    assert ONE not in town.took[-1]


def test_everybody_may_leave() -> None:
    """A round of nobody changes nothing, and newcomers go on."""
    for name in ("fedavg", "fedsubavg", "scaffold"):
        town = Town(FACTS[name], Losing(), who=range(3)).play(1)
        for client in town.clients.values():
            town.server.read(client.farewell(), Kind.REQUEST, client.number or 0)
        assert town.server.enrolled.count == 0
        before = {key: value.clone() for key, value in town.server.model.items()}
        end = play_round(town.server, town.wire)
        assert not len(end.taken)
        assert_same(dict(town.server.model), before)
        come(town)
        assert town.play(1).took[-1] == [3]
