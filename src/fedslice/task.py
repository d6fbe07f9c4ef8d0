"""A task: a federation, a plain ``nn.Module``, a loss, metrics, and which tables are indexed by which features."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedslice.core import rng, trees
from fedslice.core.errors import UserError, unknown
from fedslice.core.slice import Axis, Shapes, Slice, Values
from fedslice.core.statistics import mixes_samples, statistics
from fedslice.data.federation import Federation
from fedslice.data.index_sets import IndexSets
from fedslice.data.ragged import PAD, Ragged
from fedslice.data.vocabulary import Vocabulary
from fedslice.metrics import Score, called, kind, measured, told
from fedslice.network.padding import PaddingRows

Loss = Callable[[Any, Tensor], Tensor]
_MODERATE = 1e6  # outputs beyond it may overflow any loss, and say nothing against this one
_TRIED = 256  # samples on which metrics are tried when a task is made


@dataclass(frozen=True)
class Task:
    """A task: data, a module and a loss. There is nothing to inherit.

    ``model`` is a module, or a function that builds one (called under a seed, so that runs with different seeds
    start differently). Its ``forward`` takes the features by name; a :class:`Ragged` feature ``x`` arrives padded,
    with ``x_length`` beside it. It returns a tensor, or several in a tuple or dictionary, each with the samples as its
    first dimension. ``loss`` gets what it returns and the labels, and gives one value per sample. ``tables`` names, for
    each embedding-like parameter, the features whose ids are its row numbers.

    ``metrics`` are functions of all outputs and labels, by name: one number each, or ``None`` where it is undefined.
    More of a metric is better, unless it is a :class:`Metric` that says otherwise; of a plain function called ``rmse``,
    ``mse``, ``mae`` or after a loss, less is better.
    """

    federation: Federation
    model: nn.Module | Callable[[], nn.Module]
    loss: Loss
    tables: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    metrics: Mapping[str, Score] = field(default_factory=dict)  # or a list of functions, which have names
    name: str = "task"
    source: str = "own arrays"
    train_sample: int = 10_000  # training samples on which train_loss is measured
    eval_batch: int = 4096

    several: bool = field(init=False, repr=False, default=False)  # whether the module returns more than one tensor
    statistics: frozenset[str] = field(init=False, repr=False)  # names of its running statistics
    mixes_samples: bool = field(init=False, repr=False)  # whether it normalises over the samples of a batch
    pads: bool = field(init=False, repr=False, default=False)  # whether it looks up rows with a padding_idx
    module: nn.Module = field(init=False, repr=False)  # the structure; its own parameter values are never used

    def __post_init__(self) -> None:
        if isinstance(self.metrics, list | tuple):
            object.__setattr__(self, "metrics", {called(one): one for one in self.metrics})
        object.__setattr__(self, "module", self.build(0))
        object.__setattr__(self, "statistics", frozenset(statistics(self.module)))
        object.__setattr__(self, "mixes_samples", mixes_samples(self.module))
        self._check_module()
        self._check_tables()
        self._check_loss()
        self._check_buffers()
        self._check_metrics()
        self._check_slicing()
        if self.module is not self.model:
            _empty(self.module)
            self.__dict__.pop("_slots", None)  # they hold the values that were let go of

    @cached_property
    def shapes(self) -> Shapes:
        """Shape of every trainable parameter."""
        return {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}

    @property
    def itemsize(self) -> int:
        """Bytes of one parameter value."""
        return max(p.element_size() for p in self.module.parameters())

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Type of every trainable parameter."""
        return {name: p.dtype for name, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def index_sets(self) -> list[IndexSets]:
        """One entry per group of tables that share features."""
        return [
            IndexSets(
                self.federation.train,
                features,
                tables,
                self.shapes[tables[0]][0],
                padding=any(layer.padding_idx == PAD for _, layer in self._lookups(tables)),
            )
            for features, tables in table_groups(self._tables)
        ]

    @property
    def vocabularies(self) -> Mapping[str, Vocabulary]:
        """The value that each id and class stands for, by feature and label; empty if the data came as numbers."""
        return self.federation.vocabularies

    def initial(self, seed: int) -> Values:
        """The model a run starts from, and its running statistics."""
        module = self.build(seed)
        values = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad} | statistics(module)
        return {n: v.clone() for n, v in values.items()} if isinstance(self.model, nn.Module) else values

    def build(self, seed: int) -> nn.Module:
        """A module with values: the one given, or a new one built under a seed of its own.

        The global generator is left as it was.
        """
        return built(self.model, seed)

    def forward(self, parameters: Mapping[str, Tensor], features: Mapping[str, Tensor]) -> Any:
        """The network's output for one client's parameters and one batch.

        As ``torch.func.functional_call``, which looks every parameter up again at each call: for small networks that
        takes as long as the network itself.
        """
        if self.pads:
            with PaddingRows():
                return self._forward(parameters, features)
        return self._forward(parameters, features)

    def _forward(self, parameters: Mapping[str, Tensor], features: Mapping[str, Tensor]) -> Any:
        if self._slots is None:
            return functional_call(self.module, dict(parameters), kwargs=dict(features))
        for layer, attribute, name, own in self._slots:
            layer[attribute] = parameters.get(name, own)
        try:
            return self.module(**features)
        finally:
            for layer, attribute, _, own in self._slots:
                layer[attribute] = own

    @cached_property
    def _slots(self) -> list[tuple[dict[str, Any], str, str, Any]] | None:
        """The owner of each parameter in the module; ``None`` for layers that also keep their weights elsewhere."""
        if any(isinstance(part, nn.RNNBase) or hasattr(part, "parametrizations") for part in self.module.modules()):
            return None
        names = {id(value): name for name, value in self.module.named_parameters()}
        names |= {id(value): name for name, value in self.module.named_buffers() if name in self.statistics}
        return [
            (held, attribute, names[id(value)], value)
            for part in self.module.modules()
            for held in (part._parameters, part._buffers)
            for attribute, value in held.items()
            if id(value) in names
        ]

    def pooled(self) -> Task:
        """The same task with one client that owns all data."""
        return replace(self, federation=self.federation.pooled(), model=self.model)

    def numbered(self, number: int) -> Task:
        """Return the same task of one client, under another number than 0; clients below it have no samples."""
        other = copy.copy(self)
        for name in ("_slots", "index_sets"):
            other.__dict__.pop(name, None)
        object.__setattr__(other, "federation", self.federation.numbered(number))
        return other

    def to(self, device: torch.device) -> Task:
        """The same task on another device."""
        model = self.model
        moved = model.to(device) if isinstance(model, nn.Module) else lambda: model().to(device)
        return replace(self, federation=self.federation.to(device), model=moved)

    @property
    def _tables(self) -> dict[str, tuple[str, ...]]:
        return {t: (f,) if isinstance(f, str) else tuple(f) for t, f in self.tables.items()}

    def _lookups(self, tables: Sequence[str]) -> list[tuple[str, nn.Embedding | nn.EmbeddingBag]]:
        """The layers that look rows up in these tables, by name."""
        own = {id(self.module.get_parameter(table)) for table in tables}
        return [
            (name, part)
            for name, part in self.module.named_modules()
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and id(part.weight) in own
        ]

    def _check_module(self) -> None:
        if not self.module.training:
            raise UserError(
                f"{type(self.module).__name__} is in evaluation mode, in which dropout is off and running statistics "
                "stand still; call its train() first (single layers may stay in evaluation mode)."
            )
        for name, part in self.module.named_modules():
            if any(map(nn.parameter.is_lazy, [*part.parameters(recurse=False), *part.buffers(recurse=False)])):
                raise UserError(
                    f"layer {name!r} is {type(part).__name__} and has no sizes yet; call the model once on a sample "
                    "before you pass it, or give the layer its sizes."
                )
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                _check_embedding(name, part)
        if type(self.module).forward is nn.Sequential.forward:
            self._check_sequential()
        takes = inspect.signature(self.module.forward).parameters
        named = {n: p for n, p in takes.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        given = [*self.federation.train.features]
        given += [f"{n}_length" for n, c in self.federation.train.features.items() if isinstance(c, Ragged)]
        whose = f"{type(self.module).__name__}.forward takes ({', '.join(takes)})"
        if any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            given += list(named)
        elif missing := [name for name in given if name not in named]:
            raise UserError(
                f"{whose} but the federation's feature {missing[0]!r} would be passed to it by name; "
                "name its arguments like the features."
            )
        if more := [n for n, p in named.items() if n not in given and p.default is p.empty]:
            raise UserError(f"{whose} but the federation has no feature {more[0]!r}; add it, or give it a default.")

    def _check_sequential(self) -> None:
        """The container names its one argument itself."""
        features = self.federation.train.features
        if [*features] == ["input"] and not isinstance(features["input"], Ragged):
            return
        found = ", ".join(map(repr, features)) or "none"
        if len(features) == 1 and isinstance(next(iter(features.values())), Tensor):
            advice = "rename it: features={'input': ...}"
        else:
            advice = "for several features or for sequences write a module whose forward takes them by name"
        raise UserError(f"nn.Sequential takes one feature, named 'input', but the federation has {found}; {advice}.")

    def _check_tables(self) -> None:
        for table, names in self._tables.items():
            if table not in self.shapes:
                raise unknown("table (parameter)", table, self.shapes)
            rows = self.shapes[table][0]
            for name in names:
                if name not in self.federation.train.features:
                    raise unknown(f"feature of table {table!r}", name, self.federation.train.features)
                for part in (self.federation.train, self.federation.test):
                    column = part.features[name]
                    ids = column.values if isinstance(column, Ragged) else column
                    _check_ids(name, ids, table, rows, self.vocabularies.get(name))
        for name, layer in self._lookups([*self._tables]):
            if layer.padding_idx not in (None, PAD):
                raise UserError(
                    f"layer {name!r} has padding_idx={layer.padding_idx} and its weight is in tables, of which a "
                    f"client has some rows under other numbers; only {PAD} keeps its number: let {PAD} be the padding."
                )
        for _, tables in table_groups(self._tables):
            if len({self.shapes[t][0] for t in tables}) > 1:
                raise UserError(
                    f"tables {', '.join(tables)} share features but have different numbers of rows; "
                    "give each its own feature."
                )

    def _check_loss(self) -> None:
        """One value per sample, whatever samples stand beside it: all clients' samples go through the loss together."""
        index = torch.arange(min(2, len(self.federation.train)), device=self.federation.train.offsets.device)
        features, label = self.federation.train.batch(index)
        with torch.no_grad(), evaluating(self.module):
            with PaddingRows() as rows:
                output = self.forward(dict(self.module.named_parameters()), features)
            object.__setattr__(self, "pads", rows.seen)
            self._check_output(output, len(index))
            value = self._loss_values(output, label)
            numbers = trees.floating(output)
            if all(bool((part.abs() < _MODERATE).all()) for part in numbers) and not bool(value.isfinite().all()):
                lowest, highest = min(float(part.min()) for part in numbers), max(float(part.max()) for part in numbers)
                raise UserError(
                    f"the loss {called(self.loss)} gave {float(value[~value.isfinite()][0])} for outputs from "
                    f"{lowest:g} to {highest:g}; it must be finite."
                )
            probe = trees.each(_spread, output)
            together = self._loss_values(probe, label)
            alone = torch.cat([self._loss_values(_sample(probe, i), label[i : i + 1]) for i in range(len(index))])
        if not torch.allclose(together, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise UserError(
                "the loss of a sample changes with the samples beside it; it must look at each sample alone "
                "(what compares samples belongs into the model)."
            )

    def _check_buffers(self) -> None:
        """Refuse buffers that training changes and nobody averages, or clients would hand them on to one another."""
        index = torch.arange(2, device=self.federation.train.offsets.device) % len(self.federation.train)
        features, _ = self.federation.train.batch(index)
        then = {name: value.clone() for name, value in self.module.named_buffers()}
        now = dict(self.module.named_parameters()) | {name: value.clone() for name, value in then.items()}
        before = torch.default_generator.get_state()
        try:
            with torch.no_grad():
                functional_call(self.module, now, kwargs=dict(features))
        except (RuntimeError, ValueError):
            return  # two samples may be too few to train on
        finally:
            torch.default_generator.set_state(before)
        known = self.statistics
        for name, value in then.items():
            if name not in known and not torch.equal(value, now[name]):
                layer = name.rpartition(".")[0]
                kept = type(self.module.get_submodule(layer)).__name__
                raise UserError(
                    f"{kept} {layer!r} changes its buffer {name!r} in training, which nobody averages: of changing "
                    "buffers only running statistics of BatchNorm and InstanceNorm are; make it a parameter, or hold "
                    "it still."
                )

    def _check_output(self, output: Any, count: int) -> None:
        """One tensor or several; samples of all clients go through the loss together, so they come first in each."""
        object.__setattr__(self, "several", not isinstance(output, Tensor))
        whose = f"{type(self.module).__name__}.forward"
        if not trees.floating(output):
            raise UserError(f"{whose} returned {kind(output)} without floating-point numbers in it; return a tensor.")
        for where, part in trees.named(output):
            what = f"in {where} of what it returns" if where else "for them"
            if not isinstance(part, Tensor):
                raise UserError(f"{whose} has {kind(part)} {what}; return tensors alone, in a tuple or dictionary.")
            if not part.dim() or len(part) != count:
                raise UserError(
                    f"{whose} was given {count} samples and has {kind(part)} {what}; every output must have the "
                    "samples as its first dimension."
                )

    def _loss_values(self, output: Any, label: Tensor) -> Tensor:
        """The loss of each sample, from a function that may return anything."""
        count, expected = len(label), "it must give one value per sample (reduction='none')"
        try:
            value = self.loss(output, label)
        except Exception as error:
            if not label.is_floating_point():
                expected += "; whole numbers are classes, so make numbers to predict floats (from_frame: classes=False)"
            raise UserError(
                f"the loss {called(self.loss)} raised {told(error)} on outputs of shape {trees.shapes(output)} "
                f"({_type(trees.leaves(output)[0])}) and labels of shape {tuple(label.shape)} ({_type(label)}); "
                f"{expected}."
            ) from error
        if not isinstance(value, Tensor):
            raise UserError(f"the loss gave {kind(value)} for {count} samples, not a tensor; {expected}.")
        if value.shape != (count,):
            raise UserError(f"the loss gave shape {tuple(value.shape)} for {count} samples; {expected}.")
        if not value.is_floating_point():
            expected = _type(trees.floating(output)[0])
            raise UserError(f"the loss gave values of type {_type(value)}, expected {expected} as the outputs have.")
        return value

    def _check_metrics(self) -> None:
        """One number each, on a few samples; one that fails there may need more of them, and is told at evaluations."""
        for name, metric in self.metrics.items():
            if not isinstance(name, str) or not name or name == "loss":
                raise UserError(
                    f"metrics has the name {name!r}, expected a word other than loss, which every task has."
                )
            if not callable(metric):
                raise UserError(f"metric {name!r} is {metric!r:.60}, expected a function of outputs and labels.")
        samples = self.federation.test if len(self.federation.test) else self.federation.train
        count = min(_TRIED, len(samples))
        if not self.metrics or not count:
            return
        index = torch.linspace(0, len(samples) - 1, count, device=samples.offsets.device).long()
        features, label = samples.batch(index)
        with torch.no_grad(), evaluating(self.module):
            outputs = trees.each(Tensor.cpu, self.forward(dict(self.module.named_parameters()), features))
        for name, metric in self.metrics.items():
            try:
                measured(name, metric, outputs, label.cpu())
            except UserError as error:
                if error.__cause__ is None:
                    raise

    def _check_slicing(self) -> None:
        """A client sees the rows it holds, under new numbers; the network must not notice."""
        if not self.tables:
            return
        train = self.federation.train
        some = torch.linspace(0, len(train) - 1, min(8, len(train)), device=train.offsets.device).long()
        some = torch.cat([some, *(self._without_zero(sets) for sets in self.index_sets)])
        with torch.no_grad(), evaluating(self.module):
            agree = all(self._same_when_sliced(index) for index in (some, *some.split(1)))
        if not agree:
            raise UserError(
                f"{type(self.module).__name__} gives another result on the table rows of a batch alone "
                f"({', '.join(self.tables)}): its forward must use row ids to look rows up and for nothing else; "
                "pass what else it needs as a feature of its own."
            )

    def _without_zero(self, sets: IndexSets) -> Tensor:
        """A few samples that do not name row 0, which many take for padding: it is absent from their slices."""
        if sets.padded:
            return torch.zeros(0, dtype=torch.int64, device=self.federation.train.offsets.device)
        ids = [self.federation.train.features[name] for name in sets.features]
        named = torch.stack(
            [(column == 0).reshape(len(column), -1).any(1) for column in ids if isinstance(column, Tensor)]
        )
        return (~named.any(0)).nonzero()[:4, 0]

    def _same_when_sliced(self, index: Tensor) -> bool:
        """Compare the outputs for a batch, with its rows shaken up so that equal values cannot hide a difference."""
        features, _ = self.federation.train.batch(index[None])
        parameters = {name: value.detach() for name, value in self.module.named_parameters()}
        sliced = dict(features)
        axes: dict[str, Axis] = {}
        for sets in self.index_sets:
            axes |= dict.fromkeys(sets.tables, sets.relabel(sliced))
        part = Slice.whole(1, self.shapes).replace(axes)
        before = part.gather(parameters)
        chance = torch.Generator().manual_seed(0)
        few = {name: value[0] for name, value in before.items()}
        for name, axis in axes.items():
            few[name] = torch.randn(few[name].shape, generator=chance).to(few[name])
            parameters[name][axis.ids[0]] = few[name]
        try:
            whole = self.forward(parameters, {name: column[0] for name, column in features.items()})
            same = self.forward(few, {name: column[0] for name, column in sliced.items()})
        except (RuntimeError, IndexError):
            return False
        finally:
            for name, axis in axes.items():
                parameters[name][axis.ids[0]] = before[name][0]
        return trees.alike(whole, same)


def built(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a module with values: the one given, or a new one built under a seed of its own.

    The global generator is left as it was.
    """
    if isinstance(model, nn.Module):
        return model
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(rng.torch_seed(seed, rng.Purpose.MODEL))
    try:
        return model()
    finally:
        torch.default_generator.set_state(before)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout, which would make two passes differ and draw from the global generator.

    Attention is computed as in training: PyTorch's fast path cuts padded outputs, and does not know ``vmap``. Layers
    that are held in evaluation mode stay in it afterwards.
    """
    training = [part for part in module.modules() if part.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part in training:
            part.training = True


def _spread(output: Tensor) -> Tensor:
    """Return outputs that differ where they were equal, which would hide a comparison."""
    if not output.is_floating_point():
        return output
    spread = torch.linspace(0.1, 0.9, output.numel(), device=output.device).view(output.shape).to(output)
    return torch.where(output == 0, spread, output * spread)


def _sample(output: Any, place: int) -> Any:
    return trees.each(lambda part: part[place : place + 1], output)


def _type(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _check_embedding(name: str, layer: nn.Embedding | nn.EmbeddingBag) -> None:
    """Options by which a lookup does more than look up: they speak of row numbers or of the whole table."""
    for option in ("max_norm", "sparse", "scale_grad_by_freq"):
        value = getattr(layer, option, None)
        if value is not None and value is not False:
            raise UserError(
                f"layer {name!r} has {option}={value}, which does not hold for a slice of its rows; leave it out."
            )


def _empty(module: nn.Module) -> None:
    """Keep the structure and let go of the values of what is trained: a table can be as large as the memory allows."""
    hollow: dict[nn.Parameter, nn.Parameter] = {}  # a parameter that two layers share stays shared
    for part in module.modules():
        for name, value in part.named_parameters(recurse=False, remove_duplicate=False):
            if value.requires_grad:
                empty = hollow.setdefault(value, nn.Parameter(value.detach().to("meta")))
                part.register_parameter(name, empty)


def _check_ids(name: str, ids: Tensor, table: str, rows: int, vocabulary: Vocabulary | None) -> None:
    if ids.is_floating_point():
        raise UserError(
            f"feature {name!r} indexes table {table!r} but is not of integer type; give row numbers, or declare the "
            f"column's values as ids (from_frame: ids=[{name!r}])."
        )
    if vocabulary is not None and rows < vocabulary.size:
        raise UserError(
            f"table {table!r} has {rows} rows and feature {name!r} a vocabulary of {vocabulary.size} numbers, unknown "
            f"values included; give it federation.vocabularies[{name!r}].size rows."
        )
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        wrong = ((ids < 0) | (ids >= rows)).reshape(len(ids), -1).any(1).nonzero()[0].item()
        raise UserError(
            f"feature {name!r} holds an id outside table {table!r} at position {wrong}: found ids from "
            f"{int(ids.min())} to {int(ids.max())}, expected 0 to {rows - 1}; enlarge the table or remap the ids."
        )


def table_groups(tables: Mapping[str, tuple[str, ...]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return tables joined by shared features: [(features, tables)], in the order given."""
    groups: list[tuple[list[str], list[str]]] = []
    for table, features in tables.items():
        joined = [g for g in groups if set(g[0]) & set(features)]
        groups = [g for g in groups if g not in joined]
        merged = list(dict.fromkeys([f for g in joined for f in g[0]] + list(features)))
        groups.append((merged, [t for g in joined for t in g[1]] + [table]))
    return [(tuple(features), tuple(names)) for features, names in groups]
