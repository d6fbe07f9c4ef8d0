"""Terms: what local methods add to the loss of a client's batch, to its gradient, and to what a client remembers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from fedslice.core import trees
from fedslice.core.capabilities import Rule
from fedslice.core.entries import OnSlice, View
from fedslice.core.message import Body
from fedslice.core.part import Part
from fedslice.core.slice import Axis, Slice, Values
from fedslice.task import Loss

if TYPE_CHECKING:
    from fedslice.local.base import Local
    from fedslice.training.work import Batch, Work


class Pass(NamedTuple):
    """The tensors of a forward pass, each with a leading client axis.

    Args:
        output: The network's outputs [clients, batch, ...]: a tensor, or several as ``forward`` returns them.
        head_inputs: What enters the last Linear layer [clients, batch, ...], if that was asked for.
        activations: The outputs of the submodules that were asked for, by name.
    """

    output: Any
    head_inputs: Tensor | None
    activations: Mapping[str, Tensor]


class Network(Protocol):
    """The network, run for all clients of a chunk at once: every tensor has a leading client axis."""

    def __call__(self, parameters: Values, features: dict[str, Tensor]) -> Any:
        """Return the outputs."""
        ...

    def watch(
        self, parameters: Values, features: dict[str, Tensor], head_inputs: bool, activations: tuple[str, ...] = ()
    ) -> Pass:
        """Return the outputs together with what is seen on the way to them."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which networks are only evaluated: no gradient, no dropout."""
        ...


@dataclass(frozen=True)
class Step:
    """A step of local training, at the place where its loss is computed.

    Args:
        number: Its number in the round, from zero.
        parameters: The model [clients, ...], by parameter.
        extra: The values that terms train beside the model (:meth:`Term.extra_parameters`), by name.
        batch: The samples.
        seen: The forward pass of the model on the batch.
        network: The network, for passes with other parameters.
        loss: The task's loss per sample.
    """

    number: int
    parameters: Values
    extra: Values
    batch: Batch
    seen: Pass
    network: Network
    loss: Loss

    def mean_loss(self, parameters: Values) -> Tensor:
        """Return the mean loss of each client's batch under other parameters [clients]."""
        return mean_over(
            sample_losses(self.loss, self.network(parameters, self.batch.features), self.batch), self.batch
        )


class Term(Part):
    """A piece of a local method. Every hook has a default that does nothing.

    =================== ========================== ===============================================================
    when                hook                       purpose
    =================== ========================== ===============================================================
    before the steps    ``constants``              tensors per client that its steps use, as ``work.constants``
    ..                  ``extra_parameters``       values that are trained beside the model
    in every step       ``frozen``                 parameters that must not move
    ..                  ``loss``                   added to the mean loss of the batch
    ..                  ``penalty``                added to the loss, whatever the batch
    ..                  ``gradient``               changes the gradient of the loss, before it is clipped
    ..                  ``correct``                changes the clipped gradient, before the optimizer
    after the steps     ``report``                 entries of ``up_fields``
    ..                  ``update_memory``          what clients remember
    for evaluation      ``personal``, ``tuning``   the client's own model, and how it is fine-tuned
    for tables          ``moved_rows``             rows that move without a gradient
    ..                  ``drift_direction``        the common drift of all others
    =================== ========================== ===============================================================

    What happens on the server, and fields of messages, are those of any :class:`~fedslice.core.part.Part`.
    ``work.memory`` is the term's own.

    Example:
        >>> class Smooth(Term):
        ...     label = "smooth"
        ...     def loss(self, step, work):
        ...         return 0.1 * (step.seen.output.square().mean(-1) * step.batch.share).sum(1)
    """

    place: ClassVar[str] = "local"
    follows_gradient: ClassVar[bool] = False  # see ``provides``
    head_inputs: ClassVar[bool] = False  # whether ``loss`` looks at ``step.seen.head_inputs``
    activations: ClassVar[tuple[str, ...]] = ()  # submodules at whose outputs ``loss`` looks

    @property
    def provides(self) -> frozenset[str]:
        """``follows-gradient`` if the term moves no table row that has no gradient, but for :meth:`moved_rows`.

        The engine then trains only the rows that a client's batches name: the same result at the cost of the batches.
        It is not inherited: a class says ``follows_gradient = True`` in its own body.
        """
        return frozenset({"follows-gradient"}) if vars(type(self)).get("follows_gradient", False) else frozenset()

    def check(self, local: Local) -> None:
        """Raise ``ValueError`` if the term does not go with the other settings of local training."""

    # --- before the steps

    def constants(self, memory: Any, clients: Tensor, layout: Slice, down: Slice, came: Body) -> Values:  # noqa: ARG002
        """Return tensors that stay the same in all steps, by parameter, on the layout: ``work.constants``.

        Args:
            memory: What :meth:`client_memory` returned.
            clients: The clients' numbers [clients].
            layout: Where the trained values sit.
            down: What came down.
            came: Everything that came down.
        """
        return {}

    def extra_parameters(self, work: Work) -> Values:  # noqa: ARG002
        """Return the first values of what is trained beside the model.

        A name ``LABEL/PARAMETER`` is for a second value of a parameter: those of one label are clipped together, as a
        model is. A value whose name begins with a slash stands for no parameter, and is not clipped.
        """
        return {}

    # --- in every step

    def frozen(self, work: Work, s: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return which clients must not move a parameter in step ``s``: flags [clients], by parameter."""
        return {}

    def loss(self, step: Step, work: Work) -> Tensor | None:  # noqa: ARG002
        """Return what is added to each client's loss [clients], a sum over samples by ``step.batch.share``."""
        return None

    def penalty(self, step: Step, work: Work) -> Tensor | None:  # noqa: ARG002
        """Return what is added to each client's loss [clients] once per step, whatever the samples.

        With gradient accumulation :meth:`loss` is called for every part of a batch, and this once.
        """
        return None

    def gradient(self, gradient: Values, parameters: Values, work: Work) -> Values:  # noqa: ARG002
        """Return the gradient with that of what the term adds to the loss; it is clipped afterwards."""
        return gradient

    def correct(self, gradient: Values, parameters: Values, work: Work) -> Values:  # noqa: ARG002
        """Return the corrected gradient, from which the optimizer makes a step. What does not move is not among it."""
        return gradient

    # --- after the steps

    def report(self, work: Work, end: Values) -> Mapping[str, Values | Tensor]:  # noqa: ARG002
        """Return the entries of :meth:`up_fields`: values on the layout by parameter, or a tensor [clients, ...].

        The server sums values over the cohort, with the weights of the merge (:attr:`Round.sums`), and has tensors by
        client (:attr:`Round.told`).
        """
        return {}

    def update_memory(self, work: Work, end: Values) -> None:
        """Write what clients remember of this round into ``work.memory``. It counts if their upload is taken."""

    # --- for evaluation

    def personal(self, memory: Any, clients: Tensor, layout: Slice, start: Values, came: Body) -> Values:  # noqa: ARG002
        """Return the model with which clients are tested, given what they start from, on a layout with any rows."""
        return start

    def tuning(self) -> tuple[Term, ...]:
        """Return the terms that take this one's place when a client fits its own model before it is tested."""
        return (self,)

    # --- for tables

    def moved_rows(self, memory: Any, table: str, clients: Tensor) -> Axis | None:  # noqa: ARG002
        """Return rows of a table that these clients' steps move, whatever their batches name."""
        return None

    def drift_direction(self, came: Body) -> View | OnSlice | None:  # noqa: ARG002
        """Return the direction against which each step moves all coordinates without a gradient alike.

        For a term with the capability ``uniform-drift``.
        """
        return None


def needs_summed_gradients(label: str) -> Rule:
    """Return the rule of a term that counts on an update being a sum of gradients times their rates."""
    return Rule(
        "local",
        "sums-gradients",
        True,
        f"local={label} takes a client's update for the sum of its gradients, which it is not with this optimizer; use "
        "optimizer=sgd.",
    )


def sample_losses(loss: Loss, output: Any, batch: Batch) -> Tensor:
    """Return the loss of every sample [clients, batch]."""
    flat = trees.each(lambda part: part.flatten(0, 1), output)
    return loss(flat, batch.label.flatten(0, 1)).view(batch.label.shape[:2])


def mean_over(each: Tensor, batch: Batch) -> Tensor:
    """Return the mean of numbers per sample [clients, batch] by the samples' shares [clients]."""
    return (each * batch.share).sum(1) / batch.share.sum(1).clamp(min=1)
