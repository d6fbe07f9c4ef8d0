"""Channel dropout: every client uploads some output channels of each layer (S3, algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice import rng
from fedslice.allocate import allocate, check_budget, regularizers, scale_delta
from fedslice.channels import Layer
from fedslice.errors import UserError
from fedslice.panel import Panel, histogram
from fedslice.parts import CHECKED, Count, NonNegative, RoundEnd, World
from fedslice.slice import Axis, Slice, Values
from fedslice.slices.importance import SCORES
from fedslice.slices.narrow import Narrow

Share = Annotated[float, Field(ge=0, le=1)]
_UNKNOWN = -1.0  # the loss of a client that has not taken part


@dataclass(config=CHECKED)
class ChannelDropout(Narrow):
    """A share of each layer's output channels stays at home; which clients drop how much, and what, may change.

    What went up comes down again, merged, at the client's next round; the rest of its model stays as it trained it
    (equation 5). Every ``full_every`` rounds the whole model comes down instead (equation 6).

    ``rate`` is every client's dropout rate. Without it, rates are allocated after every round such that the share
    ``budget`` (A) of all parameters goes up, nobody drops more than ``most`` (D_max), and slow clients with little to
    tell drop more (equations 13 to 17); in the first round nobody drops anything. That needs devices: without, every
    client drops 1 − A. ``delta`` weighs what is lost against the time of a round. Its unit is a ``round`` (at 1,
    dropping everything counts as much as the round of a median client, as FedDD's paper gives no number), or a
    ``second``, for δ as it stands in equation 14.

    ``by`` says which channels go up: by importance (equation 21), by the ratio of norms that stands for it, the
    largest, those that changed most, the first ones, or at random. ``keep_last`` always sends the whole output layer.
    Parameters of other layers always go up.
    """

    label = "channel-dropout"
    stale = True
    remembers = True

    rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    budget: Share = 0.6
    most: Annotated[float, Field(ge=0, lt=1)] = 0.8
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

    def setup(self, world: World) -> None:
        """Find the layers, and what the allocation needs to know of every client."""
        super().setup(world)
        self._seed, self._store = world.seed, world.store
        self._open = [layer for layer in self._layers.values() if not (self.keep_last and layer.last)]
        self._coverage = {layer.name: self.coverage(layer).to(world.device, world.dtype) for layer in self._open}
        clients = self._population
        self._rates = torch.full((clients,), self.rate or 0.0, dtype=torch.float64)
        self._losses = torch.full((clients,), _UNKNOWN, dtype=torch.float64)
        self._devices = world.devices
        if self.rate is None and world.devices is not None:
            everyone, size = np.arange(clients), world.round_bytes().numpy()
            self._seconds = world.devices.seconds(everyone, 0, size, size)
            self._compute = world.devices.seconds(everyone, world.round_samples().numpy(), 0, 0)
            train = world.task.federation.train
            self._samples, self._shares = train.sizes.cpu().numpy(), train.label_shares().numpy()

    def observe(self, end: RoundEnd) -> None:
        """Rates for the next round (algorithm 1, line 14), from the losses that clients reported last."""
        if self.rate is not None:
            return
        losses = end.losses.detach().cpu().double()
        sound = losses.isfinite()
        self._losses[end.clients.cpu()[sound]] = losses[sound].clamp(min=0)
        if self._devices is None:
            self._rates.fill_(1 - self.budget)
            return
        known = self._losses != _UNKNOWN
        if not bool(known.any()):  # nothing is known of anybody: as in the first round
            return
        size, losses = self.held().numpy(), torch.where(known, self._losses, self._losses[known].mean())
        lost = regularizers(self._samples, self._shares, size, losses.numpy())
        relative = self.delta_unit == "round"
        delta = scale_delta(self.delta, self._seconds, self._compute, lost) if relative else self.delta
        found = allocate(size, self._seconds, self._compute, lost, self.budget, self.most, delta)
        self._rates = torch.from_numpy(found.rates)

    def down(self, t: int, clients: Tensor, hold: Slice) -> Slice:
        """The client's last mask, or everything: on full rounds and for who has not taken part yet."""
        if t % self.full_every == 0:
            return hold
        changes: dict[str, Axis | None] = {}
        for layer in self._open:
            memory = self._store.get(f"mask/{layer.name}", clients)
            if memory is None:
                return hold
            mask, known = memory
            changes |= self._axes(layer, hold, mask | ~known[:, None])
        return hold.replace(changes)

    def up(self, t: int, clients: Tensor, hold: Slice, start: Values, end: Values) -> Slice:
        """n_up = N_l·(1 − D) channels of each layer, at least one (algorithm 2)."""
        rates = self._rates[clients.cpu()].to(clients.device)
        changes: dict[str, Axis | None] = {}
        for number, layer in enumerate(self._open):
            mine = self._held(layer, hold)
            held = mine.sum(1)
            sent = (held * (1 - rates)).round().clamp(min=1).minimum(held)
            score = self._score(t, clients, number, layer, hold, start, end)
            place = score.masked_fill(~mine, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(1)
            changes |= self._axes(layer, hold, place < sent[:, None])
        return hold.replace(changes)

    def sent(self, clients: Tensor, up: Slice, taken: Tensor) -> None:
        """Remember the mask; a client whose upload was refused has no merged channels to look forward to."""
        for layer in self._open:
            self._store.put(f"mask/{layer.name}", clients[taken], self._held(layer, up)[taken])

    def kept(self) -> frozenset[str]:
        """The whole local model."""
        return frozenset(self._shapes)

    def panels(self) -> list[Panel]:
        """What clients hold, and how much of it they drop."""
        low, high = (float(rate) for rate in self._rates.aminmax())
        if low == high:
            return super().panels()
        mean = float(self._rates.mean())
        note = f"Shares of channels that stay at home: {low:.1%} to {high:.1%}, {mean:.1%} on average."
        return [*super().panels(), histogram("Dropout rates", self._rates, "dropout rate", note=note)]

    def state_dict(self) -> Values:
        """Rates, and the losses they came from; masks are in the store."""
        return {"rates": self._rates, "losses": self._losses}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved rates."""
        own = self._own(state, ("rates", "losses"))
        self._rates, self._losses = own["rates"].cpu(), own["losses"].cpu()

    def _score(
        self, t: int, clients: Tensor, number: int, layer: Layer, hold: Slice, start: Values, end: Values
    ) -> Tensor:
        """[clients, outputs]: channels with a higher score go first."""
        if self.by == "ordered":
            return -torch.arange(layer.outputs, device=clients.device).double().expand(len(clients), -1)
        if self.by == "random":
            who = clients.cpu().numpy()[:, None]
            drawn = rng.uniform(self._seed, rng.Purpose.SLICE, t, number, who, np.arange(layer.outputs)[None])
            return torch.from_numpy(drawn).to(clients.device)
        before, after = (
            torch.cat(
                [
                    values[name].flatten(2) if values[name].dim() > 2 else values[name][..., None]
                    for name in layer.parameters
                ],
                2,
            )
            for values in (start, end)
        )
        sizes = hold.only(layer.parameters).numbers().to(clients.device)
        found = SCORES[self.by](before, after, sizes)
        if self.by in ("importance", "norm-ratio"):  # equation 21
            found = found / self._coverage[layer.name][: found.shape[1]]
        return F.pad(torch.nan_to_num(found, nan=torch.inf), (0, layer.outputs - found.shape[1]))

    @staticmethod
    def _held(layer: Layer, part: Slice) -> Tensor:
        """[clients, outputs]: the channels of a layer that are in this slice."""
        axis = part.axes[layer.parameters[0]][0]
        if axis is None:
            return torch.ones(part.clients, layer.outputs, dtype=torch.bool)
        every = torch.arange(layer.outputs, device=axis.counts.device).expand(part.clients, -1)
        return axis.contains(every.contiguous())

    def _axes(self, layer: Layer, hold: Slice, mask: Tensor) -> dict[str, Axis | None]:
        """The masked channels as positions of the layer's parameters, or those of ``hold`` if none is left out."""
        mine = self._held(layer, hold)
        all_of_it = (mask | ~mine).all(1)
        axis = hold.axes[layer.parameters[0]][0]
        if not bool(all_of_it.all()):
            axis = Axis.from_mask(mask & mine)
            if axis is not None:
                axis.first = all_of_it  # the first channels, as many as the client has
        return dict.fromkeys(layer.parameters, axis)
