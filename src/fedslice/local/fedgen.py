"""FedGen: a generator of features teaches every client the classes it lacks (Zhu et al. 2021; S4, appendix D)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedslice import rng
from fedslice.errors import UserError
from fedslice.local.head import class_head
from fedslice.local.sgd import SGD, Forward
from fedslice.parts import CHECKED, Count, NonNegative, Positive, RoundEnd, World
from fedslice.slice import Slice, Values
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.recipe import Recipe
    from fedslice.work import Batch, Work

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam remembers of a parameter


class Generator(nn.Sequential):
    """Features of a class from noise and the class; normalised over the batch at hand, here and with every client."""

    def __init__(self, classes: int, features: int, width: int) -> None:
        super().__init__(
            nn.Linear(width + classes, width),
            nn.BatchNorm1d(width, track_running_stats=False),
            nn.ReLU(),
            nn.Linear(width, features),
        )


@dataclass(config=CHECKED)
class FedGen(SGD):
    """Adds the loss of the client's last layer on generated features: F_i(x) + λ·mean[ℓ(head_x(G(y, ε)), y)].

    The classes y are drawn as often as all clients' labels, ε is uniform. After each round the server trains G by Adam
    so that the clients' heads together give y. Their weighted mean is linear, as they are: it is the head of the mean
    model, and the server needs no client's own. This is the simplified form in which benchmarks run the method: no
    diversity loss, no weights by class, and clients meet the generator before it was trained.
    """

    label = "fedgen"

    weight: NonNegative = 1.0
    generated: Annotated[int, Field(ge=2, le=10**6)] = 128  # generated samples beside a batch, and in a server's step
    server_steps: Annotated[int, Field(ge=0, le=10**9)] = 1000
    generator_lr: Positive = 0.005
    width: Count = 512  # of the noise and of the generator's hidden layer

    def check(self, recipe: Recipe) -> None:
        """Refuse slices with which clients have heads that the server does not know."""
        if recipe.slices.remembers or recipe.slices.narrows:
            raise UserError(
                "local=fedgen trains its generator on the last layer that all clients share, but with "
                f"slices={recipe.slices.label} clients may have layers of their own; use slices=whole or "
                "slices=feature-rows."
            )

    def setup(self, world: World) -> None:
        """Count the labels, and begin with an untrained generator."""
        last = class_head(world.task, least=2, method=f"local={self.label}")
        self._seed, self._loss = world.seed, world.task.loss
        label = world.task.federation.train.label.cpu()
        self._server = len(world.task.federation)  # draws as a client would, under a number that no client has
        counts = torch.bincount(label.long(), minlength=last.classes).numpy()
        self._until = counts.cumsum() / counts.sum()
        names = last.parameters(world.task)
        initial = world.task.initial(world.seed)
        self._head = {name: initial[name].to(world.device) for name in names}
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.torch_seed(world.seed, rng.Purpose.MODEL, self._server))
            generator = Generator(last.classes, last.features, self.width)
        self._generator = generator.to(world.device, world.dtype)
        self._adam = torch.optim.Adam(self._generator.parameters(), lr=self.generator_lr)

    def objective(self, forward: Forward, loss: Loss, parameters: Values, batch: Batch, work: Work, s: int) -> Tensor:
        """The loss on the batch, and on generated features."""
        label, given = self._drawn(work.round, work.clients.cpu().numpy(), s)
        with torch.no_grad():
            features = vmap(self._generator)(given)
        weight, *bias = (parameters[name] for name in self._head)
        output = features @ weight.mT
        output = output + bias[0][:, None] if bias else output
        extra = loss(output.flatten(0, 1), label.flatten()).view(label.shape).mean(1)
        return super().objective(forward, loss, parameters, batch, work, s) + self.weight * extra

    def _drawn(self, t: int, who: np.ndarray, s: int) -> tuple[Tensor, Tensor]:
        """What enters the generator in a step: classes [who, generated], and noise with the class beside it."""
        key = (self._seed, rng.Purpose.NOISE, t, who[:, None], s)
        label = np.searchsorted(self._until, rng.uniform(*key, 0, np.arange(self.generated)), side="right")
        noise = rng.uniform(*key, 1, np.arange(self.generated * self.width))
        like = self._head[next(iter(self._head))]
        classes = torch.from_numpy(label).to(like.device)
        drawn = torch.from_numpy(noise).to(like).view(*label.shape, self.width)
        return classes, torch.cat([drawn, F.one_hot(classes, len(self._until)).to(like)], -1)

    def observe(self, end: RoundEnd) -> None:
        """Follow the model's head, then train the generator on it."""
        for name in self._head.keys() & end.change.keys():
            rows, change = end.change[name]
            assert rows is None, "a head is exchanged whole"
            self._head[name].add_(change)
        for s in range(self.server_steps):
            label, given = self._drawn(end.round, np.array([self._server]), s)
            self._adam.zero_grad()
            output = F.linear(self._generator(given[0]), *self._head.values())
            self._loss(output, label[0]).mean().backward()
            self._adam.step()

    def down_bytes(self, down: Slice, itemsize: int) -> Mapping[str, Tensor]:
        """The generator and the shares of the labels come down with the model."""
        generator = torch.full((down.clients,), sum(p.numel() for p in self._generator.parameters()) * itemsize)
        return {"generator": generator, "shares": torch.full((down.clients,), 4 * len(self._until))}

    def up_bytes(self, up: Slice, itemsize: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """The client's label counts go up with the update, four bytes each; like ids, in every round."""
        return {"labels": torch.full((up.clients,), 4 * len(self._until))}

    def state_dict(self) -> Values:
        """The head as the server knows it, the generator, and Adam's moments."""
        state = {f"head.{name}": value for name, value in self._head.items()}
        for name, value in self._generator.named_parameters():
            state[f"generator.{name}"] = value.detach()
            state |= {f"{kind}.{name}": moment for kind, moment in self._adam.state.get(value, {}).items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved generator."""
        own = self._own(state, ("head", "generator", *_MOMENTS))
        self._head = {name: own[f"head.{name}"] for name in self._head}
        for name, value in self._generator.named_parameters():
            with torch.no_grad():
                value.copy_(own[f"generator.{name}"])
            moments = {kind: own[f"{kind}.{name}"] for kind in _MOMENTS if f"{kind}.{name}" in own}
            if moments:
                self._adam.state[value] = moments | {"step": moments["step"].cpu()}
