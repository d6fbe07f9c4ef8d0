"""Local training: a loss with terms, an optimizer, a schedule and a sampler of batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, model_validator
from torch import Tensor
from torch.linalg import vector_norm

from fedslice.core.capabilities import Rule
from fedslice.core.component import Component
from fedslice.core.entries import OnSlice, View, per_client
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Fields
from fedslice.core.part import ClientRun, Count, Part, Positive, Round, ServerRun, State
from fedslice.core.slice import Axis, Slice, Values
from fedslice.core.spec import Spec
from fedslice.local.optimizers import SGD, Optimizer
from fedslice.local.sampler import Sampler
from fedslice.local.schedules import Exponential, Schedule
from fedslice.local.term import Term
from fedslice.panel import Panel

if TYPE_CHECKING:
    from fedslice.training.work import Work


class LocalState(State):
    """The states of all terms on the server.

    Args:
        run: The server's side of the run.
        terms: The terms.
    """

    def __init__(self, run: ServerRun, terms: Iterable[Term]):
        super().__init__(run)
        self.terms: dict[str, Any] = {term.label: term.server_state(run) for term in terms}

    def state_dict(self) -> Values:
        """Return as tensors what rounds have changed."""
        return {f"{name}.{key}": value for name, own in self.terms.items() for key, value in own.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        for name, own in self._split(state).items():
            self.terms[name].load_state_dict(own)

    def facts_dict(self) -> Values:
        """Return as tensors what enrolments have changed."""
        return {f"{name}.{key}": value for name, own in self.terms.items() for key, value in own.facts_dict().items()}

    def load_facts_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved facts."""
        for name, own in self._split(state).items():
            self.terms[name].load_facts_dict(own)

    def _split(self, state: Mapping[str, Tensor]) -> dict[str, Values]:
        out: dict[str, Values] = {name: {} for name in self.terms}
        for key, value in state.items():
            name, _, own = key.partition(".")
            if name not in out:
                raise ValueError(f"local has no state {key!r}; it has {', '.join(self.terms) or 'none'}")
            out[name][own] = value
        return out


class LocalMemory(Memory):
    """The memories of all terms, on the client's side.

    Args:
        run: The client's side of the run.
        place: The part's place in the recipe.
        terms: The terms.
    """

    def __init__(self, run: ClientRun, place: str, terms: Iterable[Term]):
        super().__init__(run, place)
        self.terms: dict[str, Any] = {term.label: term.client_memory(run, f"{place}.{term.label}") for term in terms}


class _Label:
    """The name of local training: those of its terms, or ``plain``."""

    def __get__(self, local: Local | None, owner: type[Local]) -> str:
        return "+".join(term.label for term in local.terms) or "plain" if local is not None else "plain"


def _as_terms(given: Any) -> Any:
    """Accept one term, or a list of them."""
    return (given,) if isinstance(given, Term) else tuple(given) if isinstance(given, list) else given


class Local(Part):
    """Minimise the mean loss of batches, and what ``terms`` add to it, by ``optimizer``.

    In every step: the gradient of the losses; ``terms`` add theirs; it is clipped; weights decay; ``terms`` correct it;
    the optimizer makes a step of it.

    Args:
        terms: What a method adds to plain training, as :class:`~fedslice.local.Prox`; one or several.
        optimizer: From a gradient to a step.
        schedule: How the step size changes.
        sampler: The batches.
        clip: Largest norm of each client's gradient; ``None`` for any.
        accumulate: Number of parts of a batch that are run one after the other, for batches that do not fit into
            memory. The step is that of the whole batch.

    Example:
        >>> from fedslice.local import Adam, Local, Prox
        >>> Local(Prox(mu=0.1), optimizer=Adam(lr=1e-3)).label
        'prox'
    """

    place: ClassVar[str] = "local"
    joined: ClassVar[bool] = True
    label = _Label()  # of an object the names of its terms

    terms: Annotated[tuple[Term, ...], BeforeValidator(_as_terms)] = ()
    optimizer: Optimizer = SGD()
    schedule: Schedule = Exponential()
    sampler: Sampler = Sampler()
    clip: Positive | None = None
    accumulate: Count = 1

    if TYPE_CHECKING:

        def __init__(
            self,
            terms: Term | Sequence[Term] = (),
            optimizer: Optimizer = ...,
            schedule: Schedule = ...,
            sampler: Sampler = ...,
            clip: float | None = None,
            accumulate: int = 1,
        ) -> None: ...

    @model_validator(mode="after")
    def _fitting(self) -> Local:
        labels = [term.label for term in self.terms]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"terms has {label!r} {labels.count(label)} times; name each term once")
        for term in self.terms:
            term.check(self)
        return self

    # --- settings

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the settings; terms are named by the part itself, as ``local=prox``."""
        return [name for name in super().setting_names() if name != "terms"]

    def values(self) -> dict[str, Any]:
        """Return the settings as the constructor takes them."""
        return {"terms": self.terms, **super().values()}

    def settings(self) -> dict[str, Any]:
        """Return the settings as a document, those of each term by its name."""
        own = {name: value for name, value in super().settings().items() if name != "terms"}
        return own | {term.label: said for term in self.terms if (said := term.settings())}

    def inside(self) -> dict[str, Component]:
        """Return optimizer, schedule and sampler, and the terms by their names."""
        return {**super().inside(), **{term.label: term for term in self.terms}}

    def arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the constructor takes for a copy with other settings; terms go by their names."""
        given = {name: value for name, value in settings.items() if name not in {term.label for term in self.terms}}
        terms = tuple(settings.get(term.label, term) for term in self.terms)
        return {**self.values(), "terms": terms, **given}

    def chosen(self, kinds: Sequence[type[Component]]) -> Component:
        """Return a copy with terms of these classes; ``plain`` stands for none."""
        mine = {type(term): term for term in self.terms}
        terms = [mine.get(kind) or kind() for kind in kinds if issubclass(kind, Term)]
        return dataclasses.replace(self, terms=tuple(terms))

    def adopted(self, given: Component) -> Component:
        """Return a copy with this term alone, or the other local training."""
        return dataclasses.replace(self, terms=(given,)) if isinstance(given, Term) else given

    @property
    def provides(self) -> frozenset[str]:
        """Capabilities of the terms and of the optimizer.

        Rows that drift alike do so under plain steps, and as long as no other term moves them too.
        """
        pieces: list[Optimizer | Term] = [self.optimizer, *self.terms]
        known = frozenset[str]().union(*(piece.provides for piece in pieces))
        alone = len(self.terms) == 1 and "plain-steps" in known
        followed = all("follows-gradient" in piece.provides for piece in pieces)
        if not followed or ("uniform-drift" in known and not alone):
            known -= {"follows-gradient", "uniform-drift"}
        return known

    def rules(self) -> Iterable[Rule]:
        """Return the rules of all terms."""
        for term in self.terms:
            yield from term.rules()

    # --- the steps

    def rates(self, t: int, steps: Tensor, rounds: int | None = None) -> Tensor:
        """Return the step size of each client in each step of round ``t`` [clients, most steps], in float64.

        Args:
            t: The round.
            steps: Number of steps of each client [clients].
            rounds: Length of the run, if that is known.
        """
        return self.optimizer.lr * self.schedule.factors(t, steps, rounds)

    def bound(self, work: Work) -> list[tuple[Term, Work]]:
        """Return each term with the work as it sees it: with its own memory and constants."""
        return [(term, work.of_term(term.label)) for term in self.terms]

    def direction(
        self,
        gradient: Values,
        parameters: Values,
        terms: Sequence[tuple[Term, Work]] = (),
        extra: Collection[str] = (),
    ) -> Values:
        """Return what the optimizer makes a step of, from the gradient of what moves.

        Args:
            gradient: Gradient of the losses [clients, ...], by name.
            parameters: Values of all that is trained.
            terms: The terms, as :meth:`bound` returns them.
            extra: Names that terms train beside the model.
        """
        for term, work in terms:
            gradient = term.gradient(gradient, parameters, work)
        if self.clip is not None:
            gradient = clipped(gradient, self.clip, extra)
        gradient = self.optimizer.decayed(gradient, parameters)
        for term, work in terms:
            gradient = term.correct(gradient, parameters, work)
        return gradient

    # --- on the client, around the steps

    def client_memory(self, run: ClientRun, place: str) -> LocalMemory:
        """Return the memories of all terms."""
        return LocalMemory(run, place, self.terms)

    def introduce(self, memory: Any, clients: Tensor) -> Body:
        """Return the entries of :meth:`facts`."""
        told: Body = {}
        for term, own in self._with(memory):
            told |= term.introduce(own, clients)
        return told

    def constants(self, memory: Any, clients: Tensor, layout: Slice, down: Slice, came: Body) -> dict[str, Values]:
        """Return the constants of each term, by its label."""
        return {term.label: term.constants(own, clients, layout, down, came) for term, own in self._with(memory)}

    def report(self, work: Work, end: Values) -> dict[str, Values | Tensor]:
        """Return what terms report."""
        return {name: entries for term, own in self.bound(work) for name, entries in term.report(own, end).items()}

    def update_memory(self, work: Work, end: Values) -> None:
        """Write what clients remember of this round into the memories of the terms."""
        for term, own in self.bound(work):
            term.update_memory(own, end)

    def personal(self, memory: Any, clients: Tensor, layout: Slice, start: Values, came: Body) -> Values:
        """Return the model with which clients are tested, given what they start from, on a layout with any rows."""
        for term, own in self._with(memory):
            start = term.personal(own, clients, layout, start, came)
        return start

    def tuner(self) -> Local:
        """Return how a client fits its own model to its data before it is tested."""
        terms = tuple(each for term in self.terms for each in term.tuning())
        return self if terms == self.terms else dataclasses.replace(self, terms=terms)

    def moved_rows(self, memory: Any, table: str, clients: Tensor) -> Axis | None:
        """Return rows of a table that these clients' steps move, whatever their batches name."""
        rows = None
        for term, own in self._with(memory):
            more = term.moved_rows(own, table, clients)
            rows = more if rows is None else rows if more is None else rows.union(more)
        return rows

    def drift_direction(self, came: Body) -> View | OnSlice | None:
        """Return the direction against which each step moves all coordinates without a gradient alike."""
        return next((found for term in self.terms if (found := term.drift_direction(came)) is not None), None)

    def _with(self, memory: Any) -> Iterable[tuple[Term, Any]]:
        return ((term, memory.terms[term.label]) for term in self.terms)

    # --- on the server

    def server_state(self, run: ServerRun) -> LocalState:
        """Return the states of all terms."""
        return LocalState(run, self.terms)

    def enrol(self, state: LocalState, clients: Tensor, facts: Body) -> None:
        """Learn the facts of clients that enrol."""
        for term in self.terms:
            term.enrol(state.terms[term.label], clients, facts)

    def leave(self, state: LocalState, clients: Tensor, facts: Body) -> None:
        """Forget clients that leave, and their facts."""
        for term in self.terms:
            term.leave(state.terms[term.label], clients, facts)

    def tell(self, state: LocalState, t: int, clients: Tensor, part: Slice) -> Body:
        """Return the entries of :meth:`down_fields`."""
        told: Body = {}
        for term in self.terms:
            told |= term.tell(state.terms[term.label], t, clients, part)
        return told

    def forget(self, state: LocalState, clients: Tensor) -> None:
        """Forget what is paired with memories of these clients."""
        for term in self.terms:
            term.forget(state.terms[term.label], clients)

    def observe(self, state: LocalState, end: Round) -> None:
        """Look at a finished round."""
        for term in self.terms:
            term.observe(state.terms[term.label], end)

    def panels(self, state: LocalState) -> list[Panel]:
        """Return the panels of all terms."""
        return [panel for term in self.terms for panel in term.panels(state.terms[term.label])]

    # --- what both sides derive

    def facts(self, spec: Spec) -> Fields:
        """Return the fields of the enrolment message that terms need."""
        return {name: each for term in self.terms for name, each in term.facts(spec).items()}

    def initial(self, spec: Spec) -> frozenset[str]:
        """Return the parameters of whose initial values a newcomer is sent what it holds."""
        return frozenset().union(*(term.initial(spec) for term in self.terms))

    def down_fields(self, spec: Spec, part: Slice) -> Fields:
        """Return the fields that terms send down beside the values."""
        return {name: each for term in self.terms for name, each in term.down_fields(spec, part).items()}

    def up_fields(self, spec: Spec, part: Slice) -> Fields:
        """Return the fields that terms send up beside the update."""
        return {name: each for term in self.terms for name, each in term.up_fields(spec, part).items()}


def clipped(gradient: Values, bound: float, extra: Collection[str] = ()) -> Values:
    """Return a gradient whose norm is at most ``bound`` with each client.

    Values beside the model are clipped apart from it, those of one label together, and a name that begins with a slash
    not at all (:meth:`~fedslice.local.Term.extra_parameters`).
    """
    groups: dict[str, list[str]] = {}
    for name in gradient:
        groups.setdefault(name.partition("/")[0] if name in extra else "the model", []).append(name)
    groups.pop("", None)
    out = dict(gradient)
    for names in groups.values():
        norms = [vector_norm(gradient[n].reshape(len(gradient[n]), -1), dim=1) for n in names]
        norm = vector_norm(torch.stack(norms), dim=0)
        factor = bound / norm.clamp(min=bound)
        out |= {n: gradient[n] * per_client(factor, gradient[n]) for n in names}
    return out
