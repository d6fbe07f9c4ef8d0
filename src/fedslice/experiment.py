"""The round loop, the only one of the project."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedslice import rng
from fedslice.combine import Total
from fedslice.core.message import Body, Fields, Message, OnSlice, unpack
from fedslice.devices import Devices
from fedslice.divergence import Divergence
from fedslice.engines import Trained, choose
from fedslice.engines.choose import ENGINES, Choice
from fedslice.engines.memory import keep_freed
from fedslice.engines.scope import noise, threads
from fedslice.errors import RunWarning, UserError, shown
from fedslice.evaluate import evaluate
from fedslice.ledger import Ledger
from fedslice.measure.base import Moment
from fedslice.measure.heat import heat_panels
from fedslice.measure.instruments import INSTRUMENTS, Instruments
from fedslice.messages import Upload
from fedslice.panel import Panel
from fedslice.parts import RoundEnd, World
from fedslice.recipe import Recipe
from fedslice.signals import Stopwatch
from fedslice.slice import Slice, Values
from fedslice.state import AMOUNTS, COUNTS, check_numbers, check_tensors, inventory
from fedslice.store import Store
from fedslice.task import Task
from fedslice.work import Work, download, upload

Row = dict[str, Any]
_NUMBERS = (*COUNTS, *AMOUNTS, "diverged_round", "sound")  # of an experiment's state


class Experiment:
    """A task trained by a recipe for a number of rounds.

    ``run`` gives the metrics at every evaluation: ``round``, losses and scores, ``up_bytes`` and ``down_bytes``
    (cumulative over all clients), ``rejected`` (updates that contain NaN or infinity), ``seconds`` (of computing the
    rounds, without evaluations; of a round during which the program was stopped, as :class:`Stopwatch` says), and what
    the instruments named in ``measure`` find; with a codec that compresses also ``up_words``, the 32-bit words that S4
    counts; with ``devices`` the ``clock``: seconds that the rounds would have taken on them, each as long as its
    slowest client (S3, equation 12). ``scratch`` is a folder for what grows with the rounds beyond a checkpoint's size;
    a saved experiment is continued with the same one. With ``wire`` every upload becomes bytes and is read back from
    them: slower, and the same to float tolerance.

    The first round with rejected updates is told by a :class:`RunWarning`, and so is a run that ends diverged.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        *,
        rounds: int,
        seed: int = 0,
        eval_every: int = 10,
        engine: str = "auto",
        chunk: int | None = None,
        device: str = "cpu",
        measure: Sequence[str] = (),
        devices: Devices | None = None,
        wire: bool = False,
        scratch: Path | None = None,
    ):
        for name, value in {
            "rounds": rounds,
            "eval_every": eval_every,
            "chunk": 1 if chunk is None else chunk,
        }.items():
            if value < 1:
                raise UserError(f"{name}={value}; give 1 or more.")
        if not isinstance(engine, str):
            raise UserError(f"engine={shown(engine)}: expected a name, one of {', '.join(('auto', *ENGINES))}.")
        if isinstance(measure, str) or not all(isinstance(one, str) for one in measure):
            raise UserError(
                f"measure={shown(measure)}: expected a list of names, from {', '.join(INSTRUMENTS)}; write for example "
                "measure=['personal']."
            )
        self._instruments = Instruments(measure)
        self.rounds = rounds
        self.seed = seed
        self.eval_every = eval_every
        self.recipe = copy.deepcopy(recipe)  # parts have memories; a recipe is reused, a memory is not
        place = device_by_name(device)
        whole = task if place.type == "cpu" else task.to(place)
        self.task = self.recipe.select.population(whole)
        self.model: Values = {name: value.to(place) for name, value in self.task.initial(seed).items()}
        self.store = Store(len(self.task.federation), place)
        if devices is not None and len(devices) != len(task.federation):
            raise UserError(f"devices are {len(devices)}, clients {len(task.federation)}; give one device per client.")
        self._devices = devices if self.recipe.select.remote else None
        self.world = World(self.task, seed, self.store, self.recipe, self._devices, rounds, scratch)
        self.recipe.setup(self.world)
        self._measured = replace(self.world, task=whole)
        self._instruments.setup(self._measured)
        self._likeness = self._alike()
        self.round = 0
        self.rejected = self.updates = self.recent_updates = self.recent_rejected = 0
        self.diverged_round: int | None = None
        self.sound = True  # loss and model were finite at the last evaluation
        self.seconds = 0.0
        self.ledger = Ledger()
        self._wire = wire
        self._warned = False
        self._asked = (engine, chunk)
        self._chosen: Choice | None = None

    @property
    def engine(self) -> Choice:
        """The engine this experiment runs on; chosen when first asked for."""
        if self._chosen is None:
            work, size = self._sample_work(0)
            keep_freed()
            self._chosen = choose(*self._asked, self.task, self.recipe.local, work, size)
        return self._chosen

    def _sample_work(self, t: int) -> tuple[Work, int]:
        """What the first two clients of round ``t`` would train on, and how large its cohort is."""
        cohort = self.recipe.select.choose(t, len(self.task.federation), self.seed)
        few = cohort.clients[:2].to(self.store.device)
        return download(self.world, self.recipe, self.model, t, few, cohort.draws[:2]), len(cohort.clients)

    @property
    def diverged(self) -> Divergence | None:
        """Whether the last evaluation found the run diverged, and since when."""
        at = self.diverged_round
        return None if at is None else Divergence(at, self.rejected, self.updates, self.sound)

    @property
    def evaluates(self) -> bool:
        """Whether the metrics are measured after the rounds done so far."""
        return self.round % self.eval_every == 0 or self.round == self.rounds

    def run(self, tick: Callable[[int], None] = lambda _: None) -> list[Row]:
        """All remaining rounds; ``tick`` is told the number of each that is done."""
        return list(self.stream(tick))

    def stream(self, tick: Callable[[int], None] = lambda _: None) -> Iterator[Row]:
        """The same, one row at a time: between rows the experiment can be saved, and in a tick without a row."""
        if self.round == 0:
            yield self._row()
        while self.round < self.rounds:
            watch = Stopwatch()
            with threads(self.engine.round_threads):
                end = self._one_round(self.round)
            self.round += 1
            self.seconds += watch.seconds()
            with threads(self.engine.threads):
                self._instruments.observe(end)
            tick(self.round)
            if self.evaluates:
                yield self._row()
        if self.diverged is not None:
            warnings.warn(f"{self.diverged}.", RunWarning, stacklevel=2)

    def _one_round(self, t: int) -> RoundEnd:
        recipe, world, engine = self.recipe, self.world, self.engine
        cohort = recipe.select.choose(t, len(self.task.federation), self.seed)
        total, reports = recipe.combine.begin(), Total()
        met, losses, squares, times, rejected = [], [], [], [], 0
        for clients, draws in cohort.chunks(engine.chunk, self._likeness):
            work = download(world, recipe, self.model, t, clients.to(self.store.device), draws)
            trained = self._train(work)
            sent, report, broken = upload(world, recipe, self.model, work, trained.end)
            self._instruments.trained(work, self.model, trained.end, ~broken)
            message = self._message(t, sent, report)
            for frame, body in self._arriving(t, sent, message):
                taken = self._decode(t, frame, body)
                total.add(taken)
                reports.add(_reported(recipe.local.report_fields(frame.slice), frame, body))
                rejected += int((taken.weights == 0).sum())
            met.append(clients)
            losses.append(trained.losses)
            if trained.squares is not None:
                squares.append(trained.squares)
            if recipe.select.remote:
                times.append(self._count(work, message))
        self.ledger.clock += max(times, default=0.0)
        self._reject(rejected, len(cohort.clients))
        mean = recipe.codec.lift(t, total.mean())
        share = total.clients / len(self.task.federation)
        change = recipe.server.step(self.model, recipe.combine.correct(mean, total), share)
        squared = torch.cat(squares) if squares else None
        end = RoundEnd(t, torch.cat(met), torch.cat(losses), change, reports.sum(), squared)
        recipe.observe(end)
        return end

    def _message(self, t: int, sent: Upload, report: Upload) -> Message:
        """The messages of a chunk: the update as the codec sends it, and the report of the local method."""
        fields = self._fields(t, sent.slice)
        said = self.recipe.local.report_fields(sent.slice)
        body = self.recipe.codec.encode(t, sent) | dict.fromkeys(said, report)
        return Message(sent.slice, fields, body)

    def _fields(self, t: int, part: Slice) -> Fields:
        return {**self.recipe.codec.fields(t, part), **self.recipe.local.report_fields(part)}

    def _arriving(self, t: int, sent: Upload, message: Message) -> Iterator[tuple[Upload, Body]]:
        """What the server receives: the chunk as it is, or with ``wire`` every client's message from its bytes."""
        frame = replace(sent, layout=sent.slice, values={}, reach=None, drift={})
        if not self._wire:
            yield frame, message.body
            return
        counted = sum(message.sizes().values(), torch.zeros(message.clients, dtype=torch.int64))
        for client in range(message.clients):
            header, payload = message.pack(client)
            if len(payload) != int(counted[client]):
                raise RuntimeError(f"a message takes {len(payload)} bytes where {int(counted[client])} are counted")
            part, body = unpack(header, payload, self.task.shapes, partial(self._fields, t))
            some = slice(client, client + 1)
            yield Upload(frame.clients[some], frame.weights[some], part, part, {}), body

    def _decode(self, t: int, frame: Upload, body: Body) -> Upload:
        """The updates that the server adds up; of a client whose decoded update has no finite norm, nothing."""
        own = {name: body[name] for name in self.recipe.codec.fields(t, frame.slice)}
        taken = self.recipe.codec.decode(t, frame, own)
        return taken if self.recipe.codec.exact else taken.of(taken.fine())

    def _reject(self, rejected: int, updates: int) -> None:
        """Count a round's updates; tell of the first that are rejected."""
        self.updates, self.rejected = self.updates + updates, self.rejected + rejected
        self.recent_updates, self.recent_rejected = self.recent_updates + updates, self.recent_rejected + rejected
        if rejected and not self._warned:
            self._warned = True
            warnings.warn(
                f"round {self.round + 1}: {rejected:,} of {updates:,} updates rejected because they contain NaN or "
                "infinity; the run goes on without them, and counts later ones in 'rejected'.",
                RunWarning,
                stacklevel=4,
            )

    def _judge(self, scores: Mapping[str, float]) -> None:
        """Note whether the run is diverged at this evaluation."""
        losses = (value for name, value in scores.items() if name in ("train_loss", "test_loss"))
        self.sound = all(map(math.isfinite, losses)) and self._finite()
        if self.sound and 2 * self.recent_rejected <= self.recent_updates:
            self.diverged_round = None
        elif self.diverged_round is None:
            self.diverged_round = self.round
        self.recent_updates = self.recent_rejected = 0

    def _finite(self) -> bool:
        return all(bool(value.isfinite().all()) for value in self.model.values())

    def _count(self, work: Work, message: Message) -> float:
        """Enter a chunk's bytes in the ledger; the time of its slowest device, if there are devices."""
        codec, local, itemsize = self.recipe.codec, self.recipe.local, self.task.itemsize
        own = message.sizes()
        sent = {**own, **local.up_bytes(message.part, itemsize)}
        received = {"values": codec.down_bytes(work.round, work.down, itemsize, work.clients)}
        received |= local.down_bytes(work.down, itemsize)
        coded = {name: own[name] for name in codec.fields(work.round, message.part)}
        words = codec.words(work.round, message.part, coded)
        self.ledger.sent(sent, words)
        self.ledger.received(received)
        if self._devices is None:
            return 0.0
        samples = work.real.sum((1, 2)).cpu()
        up, down = (sum(sizes.values()) for sizes in (sent, received))
        return float(self._devices.seconds(work.clients.cpu(), samples, up, down).max())

    def _alike(self) -> Tensor:
        """A number per client: those with similar ones take similar steps, on networks of similar width."""
        sizes = self.task.federation.train.sizes.cpu()
        if not self.recipe.slices.narrows:
            return sizes
        order = np.lexsort((sizes.numpy(), self.recipe.slices.held().numpy()))
        return torch.from_numpy(order).argsort()

    def _train(self, work: Work) -> Trained:
        """Local training; layers with randomness of their own draw from the round's and the chunk's stream."""
        with noise(self.store.device, rng.torch_seed(self.seed, rng.Purpose.NOISE, work.round, int(work.clients[0]))):
            return self.engine.engine.train(self.task, self.recipe.local, work)

    def _row(self) -> Row:
        books = self.ledger
        counts = {"up_bytes": books.up_bytes, "down_bytes": books.down_bytes, "rejected": self.rejected}
        with threads(self.engine.threads):
            scores = evaluate(self.task, self.model, self.seed)
            self._judge(scores)
            scores |= self._instruments.measure(Moment(self._measured, self.round, self.model, self.engine))
        words = {} if self.recipe.codec.exact else {"up_words": books.words}
        clock = {} if self._devices is None else {"clock": books.clock}
        return {"round": self.round, **scores, **counts, **words, **clock, "seconds": self.seconds}

    def panels(self) -> list[Panel]:
        """What the task, the parts of the recipe and the instruments have to show beside the metrics, as of now."""
        parts = [panel for part in self.recipe for panel in part.panels()]
        return [*heat_panels(self.task), *parts, *self._instruments.panels()]

    def clients(self) -> dict[str, list[Any]]:
        """Columns of a table of clients, as of now: their samples, and what instruments found for each of them.

        Empty if no instrument looks at single clients.
        """
        found = {name: values.tolist() for name, values in self._instruments.clients().items()}
        members = self._measured.task.federation
        samples = {"train_samples": members.train.sizes.tolist(), "test_samples": members.test.sizes.tolist()}
        return {"client": members.ids.tolist(), **samples, **found} if found else {}

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a restart needs: tensors, and a few numbers. Randomness needs nothing but the round."""
        tensors = {f"model.{name}": value for name, value in self.model.items()}
        tensors |= {f"store.{name}": value for name, value in self.store.state_dict().items()}
        tensors |= {f"parts.{name}": value for name, value in self.recipe.state_dict().items()}
        tensors |= {f"measure.{name}": value for name, value in self._instruments.state_dict().items()}
        numbers = {name: getattr(self, name) for name in _NUMBERS} | {"ledger": self.ledger.state_dict()}
        return tensors, numbers | {"finite": self._finite(), "tensors": inventory(tensors)}

    def load_state_dict(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Continue where a saved experiment stood; a state that cannot be one of this experiment is a UserError."""
        check_numbers(numbers, self.rounds)
        check_tensors(tensors, numbers["tensors"], {f"model.{name}": value for name, value in self.model.items()})
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "store": {}, "parts": {}, "measure": {}}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            groups[group][name] = value if group == "measure" else value.to(self.store.device, copy=True)
        self.model = groups["model"]
        if self._finite() != numbers["finite"]:
            found = "finite values alone" if numbers["finite"] else "NaN or infinity"
            raise UserError(f"the model was saved with {found}, which is no longer so")
        for name in _NUMBERS:
            setattr(self, name, numbers[name])
        self.ledger.load_state_dict(numbers["ledger"])
        try:
            self.store.load_state_dict(groups["store"])
            self.recipe.load_state_dict(groups["parts"])
            self._instruments.load_state_dict(groups["measure"])
            if self.round < self.rounds:
                work, _ = self._sample_work(self.round)
                self.recipe.codec.down_bytes(self.round, work.down, self.task.itemsize, work.clients)
        except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"its memories do not fit ({type(error).__name__}: {error})") from error


def _reported(fields: Fields, frame: Upload, body: Body) -> Upload:
    """What the local method sent besides the model, every accepted client counting once."""
    weights = (frame.weights > 0).double()
    for name in fields:
        found = body[name]
        if isinstance(found, Upload):
            return replace(found, weights=weights)
        assert isinstance(found, OnSlice)
        return replace(frame, weights=weights, values=found.values)
    nothing = frame.slice.only(())
    return Upload(frame.clients, weights, nothing, nothing, {})


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
