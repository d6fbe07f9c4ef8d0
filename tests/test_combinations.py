"""Every two parts of a recipe go together or are refused by name; the rooms of parts know nothing of each other."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedslice
from command import fedslice as command
from fedslice import recipe as recipe_module
from fedslice.combinations import Pair, clashes, completed, pairs
from fedslice.core import capabilities
from fedslice.core.capabilities import Rule
from fedslice.core.component import Component
from fedslice.core.errors import UserError
from fedslice.core.part import Part
from fedslice.data.federation import Federation
from fedslice.recipe import PARTS, Recipe, default
from fedslice.task import Task
from fedslice.training.devices import Devices
from fedslice.training.experiment import Experiment
from fedslice.training.rounds import play_round
from toys import double, pair

ROOMS = {"select", "slices", "local", "codecs", "combine", "server"}
OUTSIDE = {"training", "runs", "report", "commands", "measure"}
SOURCE = Path(fedslice.__file__).parent
SIZES = (2, 4, 1)
PLACES = list(combinations(PARTS, 2))
BASES: dict[str, type[Part]] = recipe_module._BASES


# --- the matrix


class Encoder(nn.Module):
    """A table beside two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(6, 2)
        self.out = nn.Linear(4, 3)

    def forward(self, item: Tensor, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.item(item), x], -1)).tanh()


class Tabled(nn.Module):
    """What all parts but narrow networks ask for: tables, a shared and a private encoder, a head of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.private = Encoder(), Encoder()
        self.head = nn.Linear(6, 3)

    def forward(self, item: Tensor, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.shared(item, x), self.private(item, x)], -1))


def tabled() -> Task:
    draw, client = np.random.default_rng(0), np.repeat(np.arange(len(SIZES)), SIZES)
    count = len(client)
    features = {"item": (client + draw.integers(0, 3, count)) % 6, "x": draw.normal(size=(count, 2))}
    federation = Federation.from_arrays(client=client, features=features, label=draw.integers(0, 3, count), test=0.0)
    torch.manual_seed(0)
    tables = {"shared.item.weight": "item", "private.item.weight": "item"}
    return Task(federation, Tabled(), nn.CrossEntropyLoss(reduction="none"), tables=tables)


@cache
def task_for(slices: str) -> Task:
    """A task that has what every part with such slices needs: networks with tables cannot be narrowed."""
    return pair(SIZES) if slices in ("channel-dropout", "width") else tabled()


def small(recipe: Recipe) -> Recipe:
    """The recipe with less to compute."""
    options: dict[str, Any] = {"local.iterations": 2, "local.batch_size": 2}
    if "cohort" in recipe.select.setting_names():
        options |= {"select.cohort": 3 if recipe.codec.label == "secagg" else 2}
    if (recipe.select.label, recipe.codec.label) == ("fedcs", "secagg"):
        options |= {"select.budget": 1.0}
    if recipe.local.label == "fedgen":
        options |= {"server_steps": 1, "width": 2, "generated": 2}
    if recipe.codec.label == "subspace":
        options |= {"rank": 2, "warmup": 1}
    return recipe.with_options(options)


def two_rounds(recipe: Recipe, wire: bool) -> Experiment:
    task = task_for(recipe.slices.label)
    devices = Devices.drawn(len(SIZES), 0)
    engine = "sequential" if wire else "vectorized"  # bytes are of one client
    experiment = Experiment(task, recipe, rounds=2, engine=engine, chunk=2, devices=devices, wire=wire)
    for _ in range(2):
        play_round(experiment.server, experiment.transport)
    return experiment


@cache
def complaint(recipe: Recipe) -> str | None:
    """What is wrong with two rounds of a recipe, in memory and packed; ``None`` if nothing is."""
    try:
        with double():
            together, packed = two_rounds(recipe, wire=False), two_rounds(recipe, wire=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for name, value in together.model.items():
        if not bool(value.isfinite().all()):
            return f"{name} is not finite"
        if not torch.allclose(packed.model[name], value, rtol=1e-6, atol=1e-9):
            return f"{name} is another one if messages are packed"
    if together.ledger.state_dict() != packed.ledger.state_dict():
        return "the ledger is another one if messages are packed"
    if not together.updates or together.rejected:
        return f"{together.rejected} of {together.updates} updates were rejected"
    for part in recipe:
        if vars(part).keys() != {field.name for field in fields(part)}:  # type: ignore[arg-type]
            return f"{part.label} has other attributes than its settings"
    return None


def cells(places: tuple[str, str]) -> list[Pair]:
    return [cell for cell in pairs() if cell.places == places]


@pytest.mark.parametrize("places", PLACES, ids="-".join)
def test_every_two_parts_run_two_rounds_or_are_refused_by_name(places: tuple[str, str]) -> None:
    wrong = {}
    for cell in cells(places):
        if cell.problem is None:
            found = complaint(small(completed(cell)))
            if found is not None:
                wrong["+".join(cell.parts)] = found
    assert not wrong


@pytest.mark.parametrize("places", PLACES, ids="-".join)
def test_no_recipe_has_two_parts_that_are_refused(places: tuple[str, str]) -> None:
    for cell in cells(places):
        if cell.problem is not None:
            assert all(f"{place}={name}" in cell.problem for place, name in cell.chosen.items()), cell
            with pytest.raises(UserError):
                completed(cell)


@pytest.mark.parametrize("places", PLACES, ids="-".join)
def test_a_recipe_with_two_parts_that_refuse_each_other_says_so_by_a_rule(places: tuple[str, str]) -> None:
    for cell in cells(places):
        parts = {place: default(place, name) for place, name in cell.chosen.items()}
        told = [rule.told(cell.chosen) for _, rule in capabilities.broken(parts)]
        if not told:
            capabilities.check(parts)
            continue
        assert cell.problem == told[0]
        with pytest.raises(UserError) as refusal:
            capabilities.check(parts)
        assert str(refusal.value) == told[0]
        every = {place: default(place, cell.chosen.get(place, next(iter(PARTS[place])))) for place in PARTS}
        labels = {place: part.label for place, part in every.items()}
        with pytest.raises(UserError) as refusal:
            Recipe(**every)  # type: ignore[arg-type]
        assert str(refusal.value) in [rule.told(labels) for _, rule in capabilities.broken(every)]


def test_all_pairs_of_parts_are_in_the_matrix() -> None:
    expected = {
        (places, names) for places in PLACES for names in product(PARTS[places[0]], PARTS[places[1]])
    }  # fmt: skip
    found = [(cell.places, cell.parts) for cell in pairs()]
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_the_reasons_cover_the_refused_pairs_and_no_others() -> None:
    covered = {
        frozenset({(clash.place, one), (clash.other, other)})
        for clash in clashes()
        for one, other in product(clash.parts, clash.refused)
    }
    refused = {frozenset(cell.chosen.items()) for cell in pairs() if cell.problem is not None}
    assert covered == refused
    for clash in clashes():
        assert len({*clash.parts}) == len(clash.parts)
        assert len({*clash.refused}) == len(clash.refused)


def test_the_command_prints_the_matrix_in_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = command("list", "--combinations")
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert max(map(len, lines)) <= 80
    document = command("list", "--combinations", "--json").document
    assert {place: list(kinds) for place, kinds in PARTS.items()} == document["parts"]
    reasons = list(dict.fromkeys(row["reason"] for row in document["refused"]))
    words = " ".join(done.out.split())
    for number, reason in enumerate(reasons, 1):
        assert f"{number} {reason}" in words
    for cell in pairs():
        down, across = sorted(cell.places, key=lambda place: -len(PARTS[place]))
        if cell.problem is None:
            continue
        heads = [n for n, line in enumerate(lines) if line.startswith(f"{down} with {across}=")]
        (start,) = [n for n in heads if cell.chosen[across] in lines[n].split()]  # a wide table is printed in two
        row = next(line.split() for line in lines[start:] if line.split()[:1] == [cell.chosen[down]])
        assert row[1:] != ["·"] * len(PARTS[across]), cell


# --- the rooms


def modules(*rooms: str) -> Iterator[tuple[Path, ast.Module]]:
    """All source files, or those of some rooms."""
    for path in sorted(SOURCE.rglob("*.py")):
        if not rooms or path.relative_to(SOURCE).parts[0] in rooms:
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def loaded(path: Path) -> ModuleType:
    inside = path.relative_to(SOURCE).with_suffix("").parts
    return import_module(".".join(["fedslice", *(part for part in inside if part != "__init__")]))


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that are imported, anywhere but for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for other in node.orelse:
                yield from imported(other)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "an import that is relative"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imported(node)


def test_parts_import_nothing_of_other_places_and_of_what_runs_them() -> None:
    found = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, tree in modules(*ROOMS)
        for name in imported(tree)
        for room in [name.split(".")[1] if name.startswith("fedslice.") else ""]
        if room in (ROOMS | OUTSIDE) - {path.relative_to(SOURCE).parts[0]}
    ]
    assert not found


def kinds() -> set[type[Part]]:
    """All classes of parts, those that several have in common among them."""
    found: set[type[Part]] = set()
    todo = [Part]
    while todo:
        kind = todo.pop()
        todo += [sub for sub in kind.__subclasses__() if sub.__module__.startswith("fedslice.")]
        found.add(kind)
    return found


def asked(tree: ast.Module) -> Iterator[ast.expr]:
    """What is compared with the class of something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            yield node.args[1]
        elif isinstance(node, ast.MatchClass):
            yield node.cls
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Call) and ast.unparse(side.func) == "type" for side in sides):
                yield from sides


def test_nothing_asks_a_part_of_another_place_for_its_class() -> None:
    """But for the recipe itself, which tells a part of the wrong place."""
    found, names = [], {kind.__name__: kind for kind in kinds()}
    for path, tree in modules():
        room = path.relative_to(SOURCE).parts[0]
        for expression in asked(tree):
            for node in ast.walk(expression):
                if not isinstance(node, ast.Name | ast.Attribute):
                    continue
                try:
                    kind = eval(ast.unparse(node), names | vars(loaded(path)))  # what a function imports by its name
                except (AttributeError, NameError):
                    continue
                theirs = isinstance(kind, type) and issubclass(kind, Part) and kind.__module__.split(".")[1] != room
                if theirs or (kind is BASES and path != SOURCE / "recipe.py"):
                    found.append(f"{path.relative_to(SOURCE)}, line {node.lineno}: {ast.unparse(expression)}")
    assert not found


def test_nothing_asks_a_part_for_its_name() -> None:
    found = [
        f"{path.relative_to(SOURCE)}, line {node.lineno}: {ast.unparse(node)}"
        for path, tree in modules(*ROOMS, "training", "core", "runs", "measure")
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(side, ast.Attribute) and side.attr == "label" for side in [node.left, *node.comparators])
        and any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in node.comparators)
    ]
    assert not found


def has(kind: type[Part], name: str) -> bool:
    return hasattr(kind, name) or any(name in inspect.get_annotations(base) for base in kind.__mro__)


def test_of_a_recipe_s_parts_nothing_is_asked_that_not_all_parts_of_the_place_have() -> None:
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Attribute):
                continue
            place, whose = node.value.attr, ast.unparse(node.value.value)
            if place in PARTS and whose.split(".")[-1] == "recipe" and not has(BASES[place], node.attr):
                found.append(f"{path.relative_to(SOURCE)}, line {node.lineno}: {ast.unparse(node)}")
    assert not found


def table() -> set[tuple[str, str]]:
    """The capabilities that the table of :mod:`fedslice.core.capabilities` lists, by place."""
    assert capabilities.__doc__ is not None
    rows = re.findall(r"^(\w+) +([\w-]+) {2,}\S", capabilities.__doc__, re.MULTILINE)
    return {(place, name) for place, name in rows if place in PARTS}


def variants() -> Iterator[tuple[str, Part]]:
    """Parts with their defaults, and with each of their other switches and choices."""
    for place, by_name in PARTS.items():
        for kind in by_name.values():
            yield place, default(place, kind.label)
            for field in fields(kind):  # type: ignore[arg-type]
                for value in (True, False, 0.5, "1,0.5", "none"):
                    try:
                        yield place, kind(**{field.name: value})
                    except ValueError:
                        continue


def test_every_capability_that_a_part_has_or_asks_for_is_in_the_table_and_no_other_is() -> None:
    had: set[tuple[str, str]] = set()
    wanted: set[tuple[str, str]] = set()
    for place, part in variants():
        had |= {(place, name) for name in part.provides}
        wanted |= {(rule.place, rule.capability) for rule in part.rules() if isinstance(rule, Rule)}
    assert had == table()
    assert wanted <= had


def test_a_capability_is_asked_for_by_a_name_that_exists() -> None:
    """``"stale" in recipe.slices.provides``, ``recipe.has("slices", "stale")``."""
    names = {name for _, name in table()}
    found = set()
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                asks = ast.unparse(node.comparators[0]).endswith(".provides")
                found |= {node.left.value} if asks and isinstance(node.left, ast.Constant) else set()
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("recipe.has"):
                found |= {ast.literal_eval(node.args[1])}
    assert found <= names


# --- parts


def methods(kind: type[Part]) -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers(kind):
        function = value.fget if isinstance(value, property) else value
        if inspect.isfunction(function):
            yield name, function


def test_no_method_of_a_part_takes_both_a_client_s_memory_and_the_server_s_state() -> None:
    seen = set()
    for kind in kinds():
        for name, function in methods(kind):
            given = set(inspect.signature(function).parameters) & {"memory", "state"}
            assert len(given) < 2, f"{kind.__name__}.{name}"
            seen |= given
    assert seen == {"memory", "state"}


@pytest.mark.parametrize("kind", sorted({k for p in PARTS.values() for k in p.values()}, key=lambda k: k.__qualname__))
def test_a_part_is_a_frozen_dataclass(kind: type[Part]) -> None:
    part = kind()
    assert is_dataclass(part)
    assert part == kind()
    assert hash(part) == hash(kind())
    for name in (*part.setting_names(), "anything"):
        with pytest.raises(FrozenInstanceError):
            setattr(part, name, 1)


def test_settings_of_parts_are_values_that_cannot_change() -> None:
    for _, part in variants():
        for value in part.values().values():
            assert isinstance(value, bool | int | float | str | Component | tuple | None), (part.label, value)
