"""Channel dropout: every client uploads some output channels of each layer (FedDD, algorithms 1 and 2).

FedDD: Toward Communication-efficient Federated Learning with Differential Parameter Dropout
    Zhiying Feng, Xu Chen, Qiong Wu, Wen Wu, Xiaoxi Zhang, Qianyi Huang. IEEE Transactions on Mobile Computing 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field as Setting
from pydantic import model_validator
from torch import Tensor

from fedslice.core import rng
from fedslice.core.encodings import Floats
from fedslice.core.errors import UserError
from fedslice.core.facts import facts
from fedslice.core.message import Body, Field, Fields
from fedslice.core.part import ClientRun, Count, NonNegative, Round, ServerRun
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.spec import Spec
from fedslice.core.store import Store
from fedslice.network.graph import Layer
from fedslice.panel import Panel, histogram
from fedslice.slices.allocation import allocate, check_budget, regularizers, scale_delta
from fedslice.slices.importance import SCORES
from fedslice.slices.narrow import Narrow, NarrowMemory, NarrowState
from fedslice.slices.networks import Networks
from fedslice.slices.outputs import held_outputs, ids_field, parameters, positions, restricted

Share = Annotated[float, Setting(ge=0, le=1)]
_UNKNOWN = -1.0  # the loss of a client that has not taken part
_MASK = "mask"


class DropoutState(NarrowState):
    """Rates, the losses they come from, and of each client the channels that were taken last.

    Args:
        run: The server's side of the run.
        networks: What clients may hold.
        rate: Every client's rate, or 0 while none is allocated.
    """

    saved = ("rates", "losses")

    def __init__(self, run: ServerRun, networks: Networks, rate: float):
        super().__init__(run, networks)
        self._first = rate
        self.rates = torch.zeros(0, dtype=torch.float64)
        self.losses = torch.zeros(0, dtype=torch.float64)
        self.masks = Store(None, run.device)

    def grow(self) -> None:
        """Make room for clients that have enrolled."""
        more = self.run.enrolled.next - len(self.rates)
        if more > 0:
            self.rates = torch.cat([self.rates, self.rates.new_full((more,), self._first)])
            self.losses = torch.cat([self.losses, self.losses.new_full((more,), _UNKNOWN)])

    def remove(self, clients: Tensor) -> None:
        """Forget what these clients reported."""
        self.grow()
        self.rates[clients], self.losses[clients] = self._first, _UNKNOWN

    def state_dict(self) -> Values:
        """Rates, losses and masks."""
        masks = {f"masks.{name}": value for name, value in self.masks.state_dict().items()}
        return super().state_dict() | masks

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with them."""
        start = "masks."
        super().load_state_dict({name: value for name, value in state.items() if not name.startswith(start)})
        self.masks = Store(None, self.run.device)
        self.masks.load_state_dict({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})


class _Open(NamedTuple):
    """A layer of which channels may stay at home, and its number among these."""

    number: int
    layer: Layer

    @property
    def mask(self) -> str:
        """The name of the memory of its channels that went up."""
        return f"{_MASK}/{self.layer.name}"

    @property
    def channels(self) -> str:
        """The field that names its channels that go up."""
        return f"channels/{self.layer.name}"

    @property
    def cover(self) -> str:
        """The field of its channels' coverage."""
        return f"cover/{self.layer.name}"


class ChannelDropout(Narrow):
    """A share of each layer's output channels stays at home; which clients drop how much, and what, may change.

    What went up comes down again, merged, at the client's next round; the rest of its model stays as it trained it
    (equation 5). Every ``full_every`` rounds the whole model comes down instead (equation 6).

    Without a ``rate``, rates are allocated after every round such that slow clients with little to tell drop more
    (equations 13 to 17); in the first round nobody drops anything. That needs devices: without, every client drops
    1 − A. Parameters that belong to no layer always go up.

    Args:
        rate: Dropout rate of every client; if not given, rates are allocated after every round.
        budget: Share of all parameters that goes up, A, when rates are allocated.
        most: Largest dropout rate that a client is given, D_max.
        delta: Weight of what is lost against the time of a round, δ; larger values spare informative clients.
        delta_unit: Unit of delta: ``round`` is relative to the round of a median client, ``second`` as in equation 14.
        by: What ranks channels: their ``importance`` (equation 21), its stand-in ``norm-ratio``, the ``max``
            weight, the change ``delta``, the first ones (``ordered``), or nothing (``random``).
        keep_last: Whether the whole output layer always goes up.
        full_every (rounds): How often the whole model comes down, h.
    """

    label = "channel-dropout"

    rate: Annotated[float, Setting(ge=0, lt=1)] | None = None
    budget: Share = 0.6
    most: Annotated[float, Setting(ge=0, lt=1)] = 0.8
    delta: NonNegative = 1.0
    delta_unit: Literal["round", "second"] = "round"
    by: Literal["importance", "norm-ratio", "max", "delta", "ordered", "random"] = "importance"
    keep_last: bool = False
    full_every: Count = 5

    @model_validator(mode="after")
    def _can_be_met(self) -> ChannelDropout:
        if self.rate is None:
            try:
                check_budget(self.budget, self.most)
            except UserError as error:
                raise ValueError(str(error).rstrip(".")) from None
        return self

    @property
    def provides(self) -> frozenset[str]:
        """Clients keep their models, of which the server knows what came up last."""
        return super().provides | {"remembers", "stale"}

    # --- the client's side

    def client_memory(self, run: ClientRun, place: str) -> NarrowMemory:
        """Masks are worth nothing once the server does not know them."""
        memory = super().client_memory(run, place)
        memory.pair(_MASK)
        return memory

    def came(self, memory: NarrowMemory, t: int, clients: Tensor, hold: Slice) -> Slice:
        """The channels that went up last, or everything: on full rounds and for who has no mask."""
        return self._merged(memory.networks, t, hold, lambda name: memory.get(name, clients))

    def up(
        self,
        memory: NarrowMemory,
        t: int,
        clients: Tensor,
        hold: Slice,
        start: Values,
        end: Values,
        came: Body,
    ) -> tuple[Slice, Body]:
        """n_up = N_l·(1 − D) channels of each layer, at least one (algorithm 2)."""
        rates = came["rate"][:, 0] if self.rate is None else torch.full((len(clients),), self.rate, dtype=torch.float64)
        axes: dict[Layer, Axis] = {}
        ids: Body = {}
        for each in self._open(memory.networks, hold):
            mine = held_outputs(each.layer, hold, clients.device)
            held = mine.sum(1)
            sent = (held * (1 - rates.to(clients.device))).round().clamp(min=1).minimum(held)
            score = self._score(memory, t, clients, each, hold, start, end, came)
            place = score.masked_fill(~mine, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(1)
            mask = place < sent[:, None]
            axes[each.layer] = ids[each.channels] = positions(each.layer, hold, mask)
            memory.put(each.mask, clients, mask & mine)
        return restricted(hold, axes), ids

    def _score(
        self,
        memory: NarrowMemory,
        t: int,
        clients: Tensor,
        each: _Open,
        hold: Slice,
        start: Values,
        end: Values,
        came: Body,
    ) -> Tensor:
        """[clients, outputs]: channels with a higher score go first."""
        outputs = each.layer.outputs
        if self.by == "ordered":
            return -torch.arange(outputs, device=clients.device).double().expand(len(clients), -1)
        if self.by == "random":
            who = clients.cpu().numpy()[:, None]
            drawn = rng.uniform(memory.run.seed, rng.Purpose.SLICE, t, each.number, who, np.arange(outputs)[None])
            return torch.from_numpy(drawn).to(clients.device)
        names = parameters(each.layer, hold)
        before, after = (torch.cat([_rows(values[name]) for name in names], 2) for values in (start, end))
        sizes = hold.only(names).numbers().to(clients.device)
        found = SCORES[self.by](before, after, sizes)
        if each.cover in came:  # equation 21
            found = found / came[each.cover][:, : found.shape[1]].to(found)
        return F.pad(torch.nan_to_num(found, nan=torch.inf), (0, outputs - found.shape[1]))

    # --- the server's side

    def server_state(self, run: ServerRun) -> DropoutState:
        """Nothing is known of anybody, so that nobody drops anything unless the rate is given."""
        return DropoutState(run, self.networks(run.spec), self.rate or 0.0)

    def enrol(self, state: DropoutState, clients: Tensor, facts: Body) -> None:  # noqa: ARG002
        """Make room for what is known of them."""
        state.grow()

    def leave(self, state: DropoutState, clients: Tensor, facts: Body) -> None:  # noqa: ARG002
        """Allocate without them."""
        state.remove(clients)

    def down(self, state: DropoutState, t: int, clients: Tensor, hold: Slice) -> Slice:
        """The channels that were taken last, or everything: on full rounds and for who has no mask."""
        return self._merged(state.networks, t, hold, lambda name: state.masks.get(name, clients))

    def tell(self, state: DropoutState, t: int, clients: Tensor, part: Slice) -> Body:  # noqa: ARG002
        """The rates of the last allocation, and what of their networks others hold."""
        state.grow()
        told: Body = {} if self.rate is not None else {"rate": state.rates[clients.cpu()][:, None]}
        for each in self._covered(state.networks, part):
            told[each.cover] = state.coverage(each.layer).expand(len(clients), -1)
        return told

    def sent(self, state: DropoutState, t: int, clients: Tensor, hold: Slice, upload: Body) -> Slice:  # noqa: ARG002
        """The channels that the upload names."""
        return restricted(hold, {one.layer: upload[one.channels] for one in self._open(state.networks, hold)})

    def taken(self, state: DropoutState, clients: Tensor, up: Slice, taken: Tensor) -> None:
        """Remember the masks; a client whose upload was refused has no merged channels to look forward to."""
        for each in self._open(state.networks, up):
            mask = held_outputs(each.layer, up, state.run.device)
            state.masks.put(each.mask, clients[taken], mask[taken.to(mask.device)])

    def forget(self, state: DropoutState, clients: Tensor) -> None:
        """Forget the masks of clients that have forgotten theirs."""
        state.masks.forget(_MASK, clients)

    def observe(self, state: DropoutState, end: Round) -> None:
        """Rates for the next round (algorithm 1, line 14), from the losses that clients reported last."""
        if self.rate is not None:
            return
        state.grow()
        if not state.run.spec.timed:
            state.rates.fill_(1 - self.budget)
            return
        if "loss" in end.told:
            losses = end.told["loss"][:, 0].detach().cpu().double()
            sound = losses.isfinite()
            state.losses[end.taken[sound]] = losses[sound].clamp(min=0)
        self._allocate(state)

    def _allocate(self, state: DropoutState) -> None:
        """Rates of all who are enrolled. A loss that is not known counts as the mean of those that are."""
        enrolled = state.run.enrolled
        who = enrolled.numbers()
        losses = state.losses[who]
        known = losses != _UNKNOWN
        if not bool(known.any()) or not enrolled.sum("samples"):  # nothing is known of anybody: as in the first round
            return
        losses = torch.where(known, losses, losses[known].mean())
        size, shares = state.held().numpy(), _shares(enrolled.all_facts("labels"))
        lost = regularizers(enrolled.all_facts("samples")[:, 0].numpy(), shares.numpy(), size, losses.numpy())
        down, compute, up = enrolled.all_facts("pace").numpy().T
        seconds = down + up
        relative = self.delta_unit == "round"
        delta = scale_delta(self.delta, seconds, compute, lost) if relative else self.delta
        found = allocate(size, seconds, compute, lost, self.budget, self.most, delta)
        state.rates[who] = torch.from_numpy(found.rates)

    def panels(self, state: DropoutState) -> list[Panel]:
        """Return a panel of the share that clients drop of what they hold."""
        state.grow()
        rates = state.rates[state.run.enrolled.numbers()]
        if not len(rates) or bool((rates == rates[0]).all()):
            return []
        low, high, mean = float(rates.min()), float(rates.max()), float(rates.mean())
        note = f"Shares of channels that stay at home: {low:.1%} to {high:.1%}, {mean:.1%} on average."
        return [histogram("Dropout rates", rates, "dropout rate", note=note)]

    # --- what both sides derive

    def facts(self, spec: Spec) -> Fields:
        """Return the facts of every client that the allocation needs."""
        known = facts(("pace", "samples", "labels"), spec) if self._allocates(spec) else {}
        return {**super().facts(spec), **known}

    def down_fields(self, spec: Spec, part: Slice) -> Fields:
        """A rate, and CR(k) of equation 21 where it weighs channels. In float32 a rate would move channels by one."""
        about = "the share of channels that it is to keep back"
        allocated = Field(Floats(torch.float64, negative=False), shape=(1,), about=about)
        rate = {} if self.rate is not None else {"rate": allocated}
        about = "the share of clients that hold each channel"
        cover = {
            each.cover: Field(Floats(spec.dtype, negative=False), shape=(each.layer.outputs,), about=about)
            for each in self._covered(self.networks(spec), part)
        }
        return {**rate, **cover}

    def up_ids(self, spec: Spec, hold: Slice) -> Fields:
        """The channels of each layer."""
        return {each.channels: ids_field(each.layer, hold) for each in self._open(self.networks(spec), hold)}

    def up_fields(self, spec: Spec, part: Slice) -> Fields:  # noqa: ARG002
        """The loss, for the allocation."""
        loss = Field(Floats(spec.dtype, finite=False), shape=(1,), about="the mean loss of its training")
        return {"loss": loss} if self._allocates(spec) else {}

    def kept(self, spec: Spec) -> frozenset[str]:
        """The whole local model."""
        return frozenset(spec.shapes)

    def _allocates(self, spec: Spec) -> bool:
        return self.rate is None and spec.timed

    def _merged(
        self, networks: Networks, t: int, hold: Slice, recall: Callable[[str], tuple[Tensor, Tensor] | None]
    ) -> Slice:
        """Return the slice that comes down in round ``t``, given masks and their clients."""
        if t % self.full_every == 0:
            return hold
        axes: dict[Layer, Axis] = {}
        for each in self._open(networks, hold):
            found = recall(each.mask)
            if found is not None:
                mask, known = found
                axes[each.layer] = positions(each.layer, hold, mask | ~known[:, None])
        return restricted(hold, axes)

    def _open(self, networks: Networks, part: Slice) -> list[_Open]:
        """The layers in a slice of which channels may stay at home."""
        layers = [layer for layer in networks.layers.values() if not (self.keep_last and layer.last)]
        return [_Open(number, layer) for number, layer in enumerate(layers) if parameters(layer, part)]

    def _covered(self, networks: Networks, part: Slice) -> list[_Open]:
        """Those whose channels are weighed by how many clients hold them; where all clients do, that is 1."""
        weighed = self.by in ("importance", "norm-ratio") and networks.differ
        return self._open(networks, part) if weighed else []


def _rows(values: Tensor) -> Tensor:
    """Values of a layer's parameter as [clients, outputs, entries]."""
    return values.flatten(2) if values.dim() > 2 else values[..., None]


def _shares(labels: Tensor) -> Tensor:
    """Return the shares of the classes in each client's samples, from their numbers [clients, classes]."""
    total = labels.sum(1, keepdim=True)
    return torch.where(total > 0, labels / total.clamp(min=1).double(), 1 / labels.shape[1])
