"""FedGen: a generator of features teaches every client the classes it lacks (Zhu et al. 2021; FLSS, appendix D)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field as Setting
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedslice.core import rng
from fedslice.core.capabilities import Rule
from fedslice.core.encodings import Floats
from fedslice.core.errors import UserError
from fedslice.core.facts import facts
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Field, Fields
from fedslice.core.part import ClientRun, Count, NonNegative, Positive, Round, ServerRun, State
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.local.term import Step, Term
from fedslice.network.head import Head, class_head, head

if TYPE_CHECKING:
    from fedslice.training.work import Work

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam remembers of a parameter


def generator_shapes(last: Head, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a generator's parameters, in the order in which :func:`generate` takes them.

    A Linear layer, a normalisation over the batch at hand, on the server and with every client, and another Linear
    layer after a ReLU.
    """
    return {
        "0.weight": (width, width + last.classes),
        "0.bias": (width,),
        "1.weight": (width,),
        "1.bias": (width,),
        "3.weight": (last.features, width),
        "3.bias": (last.features,),
    }


def generate(values: Sequence[Tensor], given: Tensor) -> Tensor:
    """Return features [samples, features] from noise with the class beside it [samples, width + classes]."""
    inner, inner_bias, scale, shift, outer, outer_bias = values
    hidden = F.batch_norm(F.linear(given, inner, inner_bias), None, None, scale, shift, training=True)
    return F.linear(F.relu(hidden), outer, outer_bias)


def draw(key: Sequence[rng.Words], shares: Tensor, samples: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return what enters a generator: classes [..., samples], and uniform noise with the class beside it.

    Args:
        key: What the draws depend on, of which arrays [..., 1] are drawn for one by one.
        shares: How often each class is to be drawn; they need not sum to one.
        samples: How many samples.
        width: How many numbers of noise for each.
        like: A tensor of the type and on the device that the noise is to have.
    """
    until = shares.cpu().double().cumsum(0)
    until = until / until[-1].clamp(min=torch.finfo(until.dtype).tiny)
    place = np.searchsorted(until.numpy(), rng.uniform(*key, 0, np.arange(samples)), side="right")
    classes = torch.from_numpy(place).clamp(max=len(shares) - 1).to(like.device)
    noise = torch.from_numpy(rng.uniform(*key, 1, np.arange(samples * width))).to(like)
    return classes, torch.cat([noise.view(*classes.shape, width), F.one_hot(classes, len(shares)).to(like)], -1)


class GeneratorState(State):
    """The generator, and Adam's averages of its gradients.

    Args:
        run: The server's side of the run.
        last: The model's last Linear layer.
        part: The settings.
    """

    saved = ("generator", "moments")

    def __init__(self, run: ServerRun, last: Head, part: FedGen):
        super().__init__(run)
        self.head = last.parameters(run.spec)
        shapes = generator_shapes(last, part.width)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.torch_seed(run.spec.seed, rng.Purpose.GENERATOR))
            layers = (
                nn.Linear(part.width + last.classes, part.width),
                nn.BatchNorm1d(part.width),
                nn.Linear(part.width, last.features),
            )
        values = (value.detach().to(run.device, run.spec.dtype) for layer in layers for value in layer.parameters())
        self._values = {name: value.requires_grad_() for name, value in zip(shapes, values, strict=True)}
        self.adam = torch.optim.Adam(self._values.values(), lr=part.generator_lr)

    @property
    def shares(self) -> Tensor:
        """Return the number of samples of each class over all enrolled clients [classes]."""
        counts = self.run.enrolled.sums("labels")
        return (counts / counts.sum().clamp(min=1)).float()

    @property
    def generator(self) -> Values:
        """The generator's parameters by name; those that are set are copied."""
        return self._values

    @generator.setter
    def generator(self, saved: Values) -> None:
        with torch.no_grad():
            for name, value in self._values.items():
                value.copy_(saved[name])

    @property
    def moments(self) -> Values:
        """The moments of Adam, by kind and parameter."""
        memories = {name: self.adam.state.get(value, {}) for name, value in self._values.items()}
        return {f"{kind}.{name}": memory[kind] for name, memory in memories.items() for kind in memory}

    @moments.setter
    def moments(self, saved: Values) -> None:
        for name, value in self._values.items():
            own = {kind: saved[f"{kind}.{name}"] for kind in _MOMENTS if f"{kind}.{name}" in saved}
            if own:
                moved = {kind: moment.to(value.device, copy=True) for kind, moment in own.items()}
                self.adam.state[value] = moved | {"step": own["step"].cpu().clone()}

    def state_dict(self) -> Values:
        """The generator and the moments."""
        return {name: value.detach() for name, value in super().state_dict().items()}


class GeneratorMemory(Memory):
    """Knows the last Linear layer, and how a generator is cut out of the values that come down.

    Args:
        run: The client's side of the run.
        place: The part's place in the recipe.
        last: The model's last Linear layer.
        part: The settings.
    """

    def __init__(self, run: ClientRun, place: str, last: Head, part: FedGen):
        super().__init__(run, place)
        self.head = last.parameters(run.spec)
        self.shapes = list(generator_shapes(last, part.width).values())

    def generator(self, line: Tensor, like: Tensor) -> list[Tensor]:
        """Return a generator's parameters from all its values in a line."""
        parts = line.to(like).split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class FedGen(Term):
    """Adds the loss of the client's last layer on generated features: F_i(x) + λ·mean[ℓ(head_x(G(y, ε)), y)].

    The classes y are drawn as often as all clients' labels, ε is uniform. After each round the server trains G by Adam
    so that the clients' heads together give y. Their weighted mean is linear, as they are: it is the head of the mean
    model, and the server needs no client's own. This is the simplified form in which benchmarks run the method: no
    diversity loss, no weights by class, and clients meet the generator before it was trained.

    A client tells once how often each class occurs among its samples.

    Args:
        weight: Weight of the loss on generated features, λ; 0 is FedAvg.
        generated (samples): Generated samples beside each batch, and in each step of the server.
        server_steps (steps): Steps in which the server trains the generator after every round.
        generator_lr: Learning rate of the generator's Adam.
        width: Size of the noise and of the generator's hidden layer.
    """

    label = "fedgen"

    weight: NonNegative = 1.0
    generated: Annotated[int, Setting(ge=2, le=10**6)] = 128  # generated samples beside a batch, and in a server's step
    server_steps: Annotated[int, Setting(ge=0, le=10**9)] = 1000
    generator_lr: Positive = 0.005
    width: Count = 512  # of the noise and of the generator's hidden layer

    def rules(self) -> Iterable[Rule]:
        """Refuse slices with which clients have heads that the server does not know."""
        for capability in ("remembers", "narrows"):
            yield Rule(
                "slices",
                capability,
                False,
                "local=fedgen trains its generator on the last layer that all clients share, but with slices={label} "
                "clients may have layers of their own; use slices=whole or slices=feature-rows.",
            )

    # --- the server's side

    def server_state(self, run: ServerRun) -> GeneratorState:
        """Begin with an untrained generator."""
        if run.spec.loss is None:
            raise UserError("local=fedgen trains its generator by the task's loss, which the server was not given.")
        return GeneratorState(run, _last(run.spec), self)

    def tell(self, state: GeneratorState, t: int, clients: Tensor, part: Slice) -> Body:  # noqa: ARG002
        """Return the generator and how often each class is to be drawn, the same for all clients."""
        line = torch.cat([value.detach().flatten() for value in state.generator.values()])
        return {name: value.expand(len(clients), -1) for name, value in (("generator", line), ("shares", state.shares))}

    def observe(self, state: GeneratorState, end: Round) -> None:
        """Train the generator on the head of the model."""
        spec, shares = state.run.spec, state.shares
        assert spec.loss is not None
        last = [end.model[name] for name in state.head]
        for s in range(self.server_steps):
            key = spec.seed, rng.Purpose.GENERATOR, end.number, s
            classes, given = draw(key, shares, self.generated, self.width, last[0])
            state.adam.zero_grad()
            output = F.linear(generate(list(state.generator.values()), given), *last)
            spec.loss(output, classes).mean().backward()
            state.adam.step()

    # --- the client's side

    def client_memory(self, run: ClientRun, place: str) -> GeneratorMemory:
        """Refuse labels that are not the numbers of the last layer's outputs."""
        return GeneratorMemory(run, place, class_head(run.task, least=2, method=f"local={self.label}"), self)

    def penalty(self, step: Step, work: Work) -> Tensor:
        """Return the loss on generated features."""
        memory = work.memory
        weight, *bias = (step.parameters[name] for name in memory.head)
        key = memory.run.seed, rng.Purpose.NOISE, work.round, work.clients.cpu().numpy()[:, None], step.number
        classes, given = draw(key, work.came["shares"][0], self.generated, self.width, weight.detach())
        values = memory.generator(work.came["generator"][0], weight.detach())  # all clients are sent the same one
        with torch.no_grad():
            features = vmap(lambda one: generate(values, one))(given)
        output = features @ weight.mT
        output = output + bias[0][:, None] if bias else output
        extra = step.loss(output.flatten(0, 1), classes.flatten()).view(classes.shape).mean(1)
        return self.weight * extra

    # --- what both sides derive

    def facts(self, spec: Spec) -> Fields:
        """The number of samples of each class."""
        return facts(["labels"], spec)

    def down_fields(self, spec: Spec, part: Slice) -> Fields:  # noqa: ARG002
        """The values of the generator, and the shares of the classes."""
        last = _last(spec)
        size = sum(math.prod(shape) for shape in generator_shapes(last, self.width).values())
        return {
            "generator": Field(Floats(spec.dtype), shape=(size,), about="values of the generator"),
            "shares": Field(
                Floats(torch.float32, negative=False),
                shape=(max(2, last.classes),),
                about="how often each class occurs with all clients",
            ),
        }


def _last(spec: Spec) -> Head:
    return head(spec, f"local={FedGen.label}")
