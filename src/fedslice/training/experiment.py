"""A simulation: server and clients in one process, and what watches them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedslice.core.errors import RunWarning, UserError, shown, unknown
from fedslice.core.slice import Values
from fedslice.core.spec import Spec, TableGroup
from fedslice.measure.base import Moment, Scene
from fedslice.measure.heat import heat_panels
from fedslice.measure.instruments import Instruments
from fedslice.measure.sizes import size_panels
from fedslice.panel import Panel
from fedslice.recipe import Recipe
from fedslice.select.base import Cohort
from fedslice.signals import Stopwatch
from fedslice.task import Task
from fedslice.training.devices import Devices
from fedslice.training.divergence import Divergence
from fedslice.training.engines.choose import ENGINES, Choice
from fedslice.training.engines.scope import threads
from fedslice.training.evaluate import client_metrics, evaluate
from fedslice.training.events import Events
from fedslice.training.ledger import Ledger
from fedslice.training.population import Population
from fedslice.training.rounds import enrol, play_round
from fedslice.training.server import Server
from fedslice.training.settings import ExperimentSettings, checked
from fedslice.training.state import AMOUNTS, COUNTS, check_numbers, check_tensors, inventory
from fedslice.training.sum_stages import NOBODY
from fedslice.training.transports.memory import InMemory, Packed

Row = dict[str, Any]
_NUMBERS = (*COUNTS, *AMOUNTS, "diverged_round", "sound", "ended")  # of an experiment's state


def spec_of(task: Task, recipe: Recipe, seed: int, rounds: int | None, timed: bool = False) -> Spec:
    """Return what server and clients of a task agree on."""
    groups = tuple(TableGroup(sets.features, sets.tables, sets.rows) for sets in task.index_sets)
    return Spec(task.module, task.loss, groups, recipe, seed, rounds, task.name, timed, tuple(client_metrics(task)))


class Experiment:
    """A task trained by a recipe for a number of rounds, with all clients in this process.

    ``run`` gives the metrics at every evaluation: ``round``, losses and scores, ``up_bytes`` and ``down_bytes``
    (cumulative over all clients), ``enrol_bytes`` and ``framing_bytes`` (facts that clients tell once, and headers),
    ``rejected`` (updates that contain NaN or infinity), ``seconds`` (of computing the rounds, without evaluations; of a
    round during which the program was stopped, as :class:`Stopwatch` says), and what the instruments named in
    ``measure`` find; with a codec that compresses also ``up_words``, the 32-bit words that FLSS's paper counts; with
    ``devices`` the ``clock``: seconds that the rounds would have taken on them, each as long as its slowest client
    (FedDD, equation 12).

    The first round with rejected updates is told by a :class:`RunWarning`, and so is a run that ends diverged.

    Args:
        task: The network with all clients' data.
        recipe: The method.
        devices: Simulated devices.
        scratch: A folder for what grows with the rounds beyond a checkpoint's size; a saved experiment is continued
            with the same one.
        warm_start: Values of all trained parameters to start from, in place of those of a new module.
        settings: ``rounds``, ``seed``, ``eval_every`` and the other fields of :class:`ExperimentSettings`.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        *,
        devices: Devices | None = None,
        scratch: Path | None = None,
        warm_start: Mapping[str, Tensor] | None = None,
        **settings: Any,
    ):
        given = checked(ExperimentSettings, settings)
        if given.engine not in ("auto", *ENGINES):
            raise unknown("engine", given.engine, ("auto", *ENGINES))
        self._instruments = Instruments(given.measure)
        self.rounds = given.rounds
        self.seed = seed = given.seed
        self.eval_every = given.eval_every
        self.recipe = recipe
        place = device_by_name(given.device)
        whole = task if place.type == "cpu" else task.to(place)
        self.task = recipe.select.population(whole)
        if devices is not None and len(devices) != len(task.federation):
            raise UserError(f"devices are {len(devices)}, clients {len(task.federation)}; give one device per client.")
        travels = "pools" not in recipe.select.provides
        self._devices = devices if travels else None
        self.spec = spec_of(self.task, recipe, seed, given.rounds, self._devices is not None)
        masked = {"sealed", "unmasked"} & recipe.codec.provides == {"sealed"}
        self.events = Events()
        self.population = Population(
            self.spec,
            self.task,
            masked=masked,
            device=place,
            devices=self._devices,
            engine=given.engine,
            chunk=given.chunk,
            events=self.events,
        )
        start = self.task.initial(seed) if warm_start is None else warm_start
        initial = {name: value.to(place, copy=True) for name, value in start.items()}
        self.server = Server(self.spec, initial, scratch=scratch, events=self.events, masked=masked)
        samples = None if self._devices is None else self.population.run.samples(torch.arange(len(self.population)))
        self.ledger = Ledger(self.spec, self._devices, samples)
        self.events.add(self.ledger)
        self.transport = (Packed if given.wire else InMemory)(self.population)
        enrol(self.server, self.transport, torch.arange(len(self.population)))
        recipe.select.check(self.server.states["select"])
        self._scene = Scene(self.spec, whole, self.population, self.server, scratch)
        self._instruments.setup(self._scene)
        self.events.add(self._instruments)
        self.updates_before = self.rejected_before = 0  # at the last evaluation
        self.diverged_round: int | None = None
        self.sound = True  # loss and model were finite at the last evaluation
        self.seconds = 0.0
        self.ended: str | None = None  # why no further round is played
        self._warned = self._warned_of_sums = False

    @property
    def model(self) -> Values:
        """The server's model."""
        return self.server.model

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return self.server.round

    @property
    def rejected(self) -> int:
        """Updates that were rejected so far."""
        return self.ledger.rejected

    @property
    def updates(self) -> int:
        """Updates so far, rejected ones among them."""
        return self.ledger.updates

    @property
    def engine(self) -> Choice:
        """The engine this experiment runs on; chosen when first asked for, by the next round's cohort."""
        if not self.population.ready:
            cohort = self.recipe.select.choose(self.server.states["select"], self.round)
            self.population.choose_engine(Cohort(cohort.clients[:2], cohort.draws[:2]), len(cohort.clients))
        return self.population.engine

    @property
    def moment(self) -> Moment:
        """The experiment as an instrument sees it."""
        return Moment(self._scene, self.round, self.model, self.engine)

    @property
    def diverged(self) -> Divergence | None:
        """Whether the last evaluation found the run diverged, and since when."""
        at = self.diverged_round
        return None if at is None else Divergence(at, self.rejected, self.updates, self.sound)

    @property
    def evaluates(self) -> bool:
        """Whether the metrics are measured after the rounds done so far."""
        return self.round % self.eval_every == 0 or self.round == self.rounds or self.ended is not None

    def end(self, reason: str) -> None:
        """Play no further round. If the one at hand is not evaluated yet, it still is."""
        self.ended = self.ended or reason

    def run(self, tick: Callable[[int], None] = lambda _: None) -> list[Row]:
        """All remaining rounds; ``tick`` is told the number of each that is done."""
        return list(self.stream(tick))

    def stream(self, tick: Callable[[int], None] = lambda _: None) -> Iterator[Row]:
        """The same, one row at a time: between rows the experiment can be saved, and in a tick without a row."""
        if self.round == 0:
            yield self._row()
        while self.round < self.rounds and self.ended is None:
            watch = Stopwatch()
            with threads(self.engine.round_threads):
                before = self.rejected, self.updates
                end = play_round(self.server, self.transport)
                self._warn(self.rejected - before[0], self.updates - before[1])
                self._warn_of_sums()
            self.seconds += watch.seconds()
            with threads(self.engine.threads):
                self._instruments.observe(end)
            tick(self.round)
            if self.evaluates:
                yield self._row()
        if self.diverged is not None:
            warnings.warn(f"{self.diverged}.", RunWarning, stacklevel=2)

    def _warn(self, rejected: int, updates: int) -> None:
        """Tell of the first updates that are rejected."""
        if rejected and not self._warned:
            self._warned = True
            warnings.warn(
                f"round {self.round}: {rejected:,} of {updates:,} updates rejected because they contain NaN or "
                "infinity; the run goes on without them, and counts later ones in 'rejected'.",
                RunWarning,
                stacklevel=4,
            )

    def _warn_of_sums(self) -> None:
        """Tell of the first secure sum that ended without a result."""
        ended = [refusal.reason for refusal in self.ledger.refusals if refusal.client == NOBODY]
        if ended and not self._warned_of_sums:
            self._warned_of_sums = True
            warnings.warn(f"{ended[0].rstrip('.')}; the run goes on without it.", RunWarning, stacklevel=4)

    def _judge(self, scores: Mapping[str, float]) -> None:
        """Note whether the run is diverged at this evaluation."""
        losses = (value for name, value in scores.items() if name in ("train_loss", "test_loss"))
        self.sound = all(map(math.isfinite, losses)) and self._finite()
        rejected, updates = self.rejected - self.rejected_before, self.updates - self.updates_before
        if self.sound and 2 * rejected <= updates:
            self.diverged_round = None
        elif self.diverged_round is None:
            self.diverged_round = self.round
        self.updates_before, self.rejected_before = self.updates, self.rejected

    def _finite(self) -> bool:
        return all(bool(value.isfinite().all()) for value in self.model.values())

    def _row(self) -> Row:
        books = self.ledger
        counts = {"up_bytes": books.up_bytes, "down_bytes": books.down_bytes}
        counts |= {"enrol_bytes": books.enrol_bytes, "framing_bytes": books.framing, "rejected": self.rejected}
        with threads(self.engine.threads):
            scores = evaluate(self.task, self.model, self.seed)
            self._judge(scores)
            scores |= self._instruments.measure(self.moment)
        words = {} if "exact" in self.recipe.codec.provides else {"up_words": books.words}
        clock = {} if self._devices is None else {"clock": books.clock}
        return {"round": self.round, **scores, **counts, **words, **clock, "seconds": self.seconds}

    def panels(self) -> list[Panel]:
        """Return the panels of the task, the parts of the recipe and the instruments."""
        states = self.server.states
        parts = [panel for place, part in self.recipe.parts().items() for panel in part.panels(states[place])]
        return [*heat_panels(self.task), *size_panels(self.population.run), *parts, *self._instruments.panels()]

    def clients(self) -> dict[str, list[Any]]:
        """Return the columns of a table of clients: their samples, and what instruments found for each of them.

        Empty if no instrument looks at single clients.
        """
        found = {name: values.tolist() for name, values in self._instruments.clients().items()}
        members = self._scene.task.federation
        samples = {"train_samples": members.train.sizes.tolist(), "test_samples": members.test.sizes.tolist()}
        return {"client": members.ids.tolist(), **samples, **found} if found else {}

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a restart needs: tensors, and a few numbers. Randomness needs nothing but the round."""
        tensors = {f"server.{name}": value for name, value in self.server.state_dict(facts=False).items()}
        tensors |= {f"clients.{name}": value for name, value in self.population.memories.state_dict().items()}
        tensors |= {f"measure.{name}": value for name, value in self._instruments.state_dict().items()}
        numbers = {name: getattr(self, name) for name in _NUMBERS} | {"ledger": self.ledger.state_dict()}
        return tensors, numbers | {"finite": self._finite(), "tensors": inventory(tensors)}

    def load_state_dict(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue where a saved experiment stood; a state that cannot be one of this experiment is a UserError."""
        check_numbers(numbers, self.rounds)
        check_tensors(
            tensors, numbers["tensors"], {f"server.model.{name}": value for name, value in self.model.items()}
        )
        groups: dict[str, dict[str, Tensor]] = {"server": {}, "clients": {}, "measure": {}}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            groups[group][name] = value if group == "measure" else value.to(self.server.run.device, copy=True)
        try:
            self.server.load_state_dict(groups["server"])
            self.population.memories.load_state_dict(groups["clients"])
            self._instruments.load_state_dict(groups["measure"])
            if self.round != numbers["round"]:
                raise ValueError(f"the server is at round {self.round}, the experiment at {numbers['round']}")
            if self.round < self.rounds:
                self._rehearse()
        except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"its memories do not fit ({type(error).__name__}: {error})") from error
        if self._finite() != numbers["finite"]:
            found = "finite values alone" if numbers["finite"] else "NaN or infinity"
            raise UserError(f"the model was saved with {found}, which is no longer so")
        for name in _NUMBERS:
            if name != "round" and name not in ("rejected", "updates"):
                setattr(self, name, numbers[name])
        self.ledger.load_state_dict(numbers["ledger"])

    def _rehearse(self) -> None:
        """Go through the first messages of the next round with two clients: memories that do not fit show there."""
        listeners, self.events.listeners = self.events.listeners, []
        cohort = self.server.invite()
        some = Cohort(cohort.clients[:2], cohort.draws[:2])
        download = self.server.answer(self.population.request(self.server.invitation(some)))
        self.population.prepare(download)
        download.sizes()
        self.server.abandon()
        self.events.listeners = listeners


def device_by_name(name: str) -> torch.device:
    """The device of this name; one that this machine does not have is refused."""
    found = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    here = [kind for kind, there in found.items() if there]
    problem = UserError(f"Unknown device {shown(name)}. Available here: {', '.join(here)}.")
    try:
        device = torch.device(name)
        if device.type not in here:
            raise problem
        torch.zeros(1, device=device)  # fails where there are fewer devices of the kind
    except (RuntimeError, AssertionError, NotImplementedError):
        raise problem from None
    return device
