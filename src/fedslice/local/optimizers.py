"""Local optimizers: from the gradient of a step to the step, for all clients of a chunk at once.

Every operation treats each value alone, so that clients side by side in one tensor take the steps that each would take
on its own. Moments begin at zero in every round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedslice.core.component import Component
from fedslice.core.entries import per_client
from fedslice.core.part import NonNegative, Positive
from fedslice.core.slice import Values

Momentum = Annotated[float, Field(ge=0, lt=1)]


@dataclasses.dataclass
class Moments:
    """The memory of an optimizer for one parameter during a round.

    Args:
        count: Number of steps taken; [clients] if some clients have taken fewer than others.
        values: Running averages or sums by name [clients, ...].
    """

    count: int | Tensor = 0
    values: Values = dataclasses.field(default_factory=dict)


class Optimizer(Component):
    """The rule ``x ← x − rate·d``, where d is the step that :meth:`direction` returns.

    A subclass has the settings ``lr`` and ``weight_decay`` and defines :meth:`direction`. Weights decay, that is
    parameters with more than one dimension, tables among them; biases do not.
    """

    place: ClassVar[str] = "optimizer"

    lr: Positive = 0.1
    weight_decay: NonNegative = 0.0

    def chosen(self, kinds: Sequence[type[Component]]) -> Component:
        """Return an optimizer with its own default settings: the learning rate of one is not another's."""
        (kind,) = kinds
        return self if kind is type(self) else kind()

    @property
    def provides(self) -> frozenset[str]:
        """``follows-gradient`` if a value without a gradient stays; ``plain-steps`` if d is the gradient.

        With moments that begin at zero the step of a value whose gradient is zero in all steps is zero. A weight that
        decays moves without a gradient.
        """
        return frozenset() if self.weight_decay else frozenset({"follows-gradient"})

    def decayed(self, gradient: Values, parameters: Values) -> Values:
        """Return the gradient with that of the penalty (weight_decay/2)·‖x‖² of the weights."""
        if not self.weight_decay:
            return gradient
        return {n: g.add(parameters[n], alpha=self.weight_decay) if is_weight(g) else g for n, g in gradient.items()}

    def step(self, gradient: Tensor, value: Tensor, moments: Moments, rest: Tensor | None = None) -> Tensor:
        """Return the step of one parameter [clients, ...], and advance its moments.

        Args:
            gradient: Its gradient [clients, ...].
            value: Its value [clients, ...].
            moments: Its memory, which is changed.
            rest: Clients that do not move it in this step [clients]: their step is zero, and their moments stay.
        """
        if rest is None:
            moments.count = moments.count + 1
            return self.direction(gradient, value, moments)
        flags, before = per_client(rest, gradient), {name: kept.clone() for name, kept in moments.values.items()}
        moments.count = moments.count + (~rest).to(torch.int64)
        step = self.direction(gradient, value, moments)
        for name, new in moments.values.items():
            moments.values[name] = torch.where(flags, before[name], new) if name in before else new * ~flags
        return step.masked_fill(flags, 0)

    def direction(self, gradient: Tensor, value: Tensor, moments: Moments) -> Tensor:
        """Return d [clients, ...] for step number ``moments.count``, which begins at one."""
        raise NotImplementedError


class SGD(Optimizer):
    """Step along the velocity, v ← momentum·v + g and d = v, as in ``torch.optim.SGD``.

    Args:
        lr: Learning rate.
        momentum: Share of the last step that is added to the gradient.
        weight_decay: Factor of the weights that is added to their gradient.
    """

    label = "sgd"

    lr: Positive = 0.1
    momentum: Momentum = 0.0
    weight_decay: NonNegative = 0.0

    @property
    def provides(self) -> frozenset[str]:
        """Without momentum a step is the rate times the gradient."""
        return super().provides | ({"plain-steps"} if not self.momentum else set()) | {"sums-gradients"}

    def direction(self, gradient: Tensor, value: Tensor, moments: Moments) -> Tensor:  # noqa: ARG002
        """Return the gradient, or the velocity."""
        if not self.momentum:
            return gradient
        if "velocity" not in moments.values:
            moments.values["velocity"] = gradient.clone()  # a gradient may be another parameter's too
        else:
            velocity = moments.values["velocity"]
            torch.add(gradient, velocity, alpha=self.momentum, out=velocity)
        return moments.values["velocity"]


class Adam(Optimizer):
    """Step along the mean gradient over the root of the mean square, as in ``torch.optim.Adam``.

    m ← β₁·m + (1 − β₁)·g, v ← β₂·v + (1 − β₂)·g², d = m̂/(√v̂ + ε), where m̂ and v̂ are m and v over
    1 − β^k in the client's step k of the round.

    Args:
        lr: Learning rate.
        beta1: β₁.
        beta2: β₂.
        eps: ε.
        weight_decay: Factor of the weights that is added to their gradient.
    """

    label = "adam"

    lr: Positive = 1e-3
    beta1: Momentum = 0.9
    beta2: Momentum = 0.999
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0

    def direction(self, gradient: Tensor, value: Tensor, moments: Moments) -> Tensor:  # noqa: ARG002
        """Return m̂/(√v̂ + ε)."""
        own = moments.values
        if not own:
            own |= {"mean": torch.zeros_like(gradient), "square": torch.zeros_like(gradient)}
        own["mean"].lerp_(gradient, 1 - self.beta1)
        own["square"].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        first, second = (_power(beta, moments.count, gradient) for beta in (self.beta1, self.beta2))
        return (own["mean"] / (1 - first)) / (own["square"] / (1 - second)).sqrt_().add_(self.eps)


class AdamW(Adam):
    """Adam whose weights decay beside the step, d = m̂/(√v̂ + ε) + weight_decay·x, as in ``torch.optim.AdamW``."""

    label = "adamw"

    weight_decay: NonNegative = 0.01

    def decayed(self, gradient: Values, parameters: Values) -> Values:  # noqa: ARG002
        """Return the gradient alone."""
        return gradient

    def direction(self, gradient: Tensor, value: Tensor, moments: Moments) -> Tensor:
        """Return Adam's step, and what decays."""
        step = super().direction(gradient, value, moments)
        return step.add_(value, alpha=self.weight_decay) if self.weight_decay and is_weight(value) else step


class Adagrad(Optimizer):
    """Step along the gradient over the root of the sum of squares, d = g/(√v + ε), as in ``torch.optim.Adagrad``.

    Args:
        lr: Learning rate.
        eps: ε.
        weight_decay: Factor of the weights that is added to their gradient.
    """

    label = "adagrad"

    lr: Positive = 0.01
    eps: Positive = 1e-10
    weight_decay: NonNegative = 0.0

    def direction(self, gradient: Tensor, value: Tensor, moments: Moments) -> Tensor:  # noqa: ARG002
        """Return g/(√v + ε)."""
        if not moments.values:
            moments.values["square"] = torch.zeros_like(gradient)
        total = moments.values["square"].addcmul_(gradient, gradient)
        return gradient / total.sqrt().add_(self.eps)


def is_weight(value: Tensor) -> bool:
    """Return whether a parameter [clients, ...] has more than one dimension, as weights and tables have."""
    return value.dim() > 2


def _power(base: float, count: int | Tensor, like: Tensor) -> float | Tensor:
    """Return base^count; where a client has taken no step yet, zero, so that nothing is divided by zero."""
    if isinstance(count, int):
        return float(base**count)
    powers = torch.where(count > 0, torch.pow(base, count.double()), 0)
    return per_client(powers.to(like), like)
