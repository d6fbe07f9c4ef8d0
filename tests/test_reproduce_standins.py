"""Stand-ins of the exhibits: they differ from the paper's own setups in what they declare, and in nothing else."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedslice.config import settle
from fedslice.papers.exhibits import Cell, Line, Setup
from fedslice.papers.files import load, names, setups
from fedslice.papers.jobs import job
from fedslice.registry import PLACES
from fedslice.settings import flat
from test_reproduce import order

# Of FedSubAvg's exhibits: what a stand-in is run for, and what of it is another.
FIRST: dict[str, tuple[str, set[str]]] = {
    "sent140-generated": ("sent140", {"source", "std", "lr", "rounds", "eval_every", "target"}),
    "renttherunway": (
        "sent140",
        {"task", "source", "std", "lr", "rounds", "eval_every", "target", "metric", "tokens", "fedadam.lr"},
    ),
}
ALONE = {"taobao", "taobao-whole"}  # the data of Alibaba's row are not public: it has no other setup


class Pair(NamedTuple):
    """A cell of a stand-in beside the same cell of what it stands for."""

    name: str
    setup: Setup
    line: Line
    cell: Cell
    own: Setup
    own_line: Line
    own_cell: Cell

    @property
    def declared(self) -> set[str]:
        """Names of settings, of all recipes or (recipe.setting) of one, that may differ."""
        return set(self.setup.differs) or FIRST[self.name][1]


def target_of(name: str, setup: Setup) -> str | None:
    """The setup that this one stands for."""
    return setup.stands_for or FIRST.get(name, (None,))[0]


@cache
def pairs(exhibit: str) -> list[Pair]:
    """All cells of stand-ins; a row of stand-ins alone says the cells of the first row that has the same recipes."""
    out: list[Pair] = []
    found, own_setups = load(exhibit)
    for line in found.row:
        for name in line.setups:
            target = target_of(name, own_setups[name])
            if target is None:
                continue
            whole = [row for row in found.row if any(target_of(one, own_setups[one]) is None for one in row.setups)]
            same = [row for row in whole or [line] if [c.recipe for c in row.cells] == [c.recipe for c in line.cells]]
            own_line = line if line in whole else same[0]
            own = setups([target])[target]
            for cell, own_cell in zip(line.cells, own_line.cells, strict=True):
                out.append(Pair(name, own_setups[name], line, cell, own, own_line, own_cell))
    return out


def resolved(setup: Setup, cell: Cell, folder: Path) -> dict[str, Any]:
    """All that decides a run of the cell but its seed and the place of its data, by place and name; and its aim."""
    asked = job(setup, cell, 0, order(folder)).request
    settled = settle(asked)
    found = {"task": asked.task, "rounds": asked.rounds, "eval_every": asked.eval_every, "devices": asked.devices}
    found |= {"measure": asked.measure, "metric": setup.trained.metric, "target": setup.trained.target}
    found |= {"sampling": setup.trained.sampling, "recipe": asked.recipe}
    found |= {f"task.{name}": value for name, value in settled.options.model_dump().items()}
    return found | flat(settled.recipe.settings(), PLACES)


def unlike(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """The keys with different values, by their last word; options that only one of two tasks has are part of it."""
    keys = one.keys() | other.keys()
    if one["task"] != other["task"]:
        keys = {key for key in keys if not key.startswith("task.") or (key in one and key in other)}
    return {key.rpartition(".")[2] for key in keys if one.get(key) != other.get(key)}


def value(settings: dict[str, Any], key: str) -> Any:
    """A setting by its name, or by its place and name."""
    return next((found for name, found in settings.items() if key in (name, name.rpartition(".")[2])), None)


TRAINED = [name for name in names() if load(name)[0].kind not in ("statistics", "histogram", "trajectory")]
WITH_STANDINS = [name for name in TRAINED if pairs(name)]


@pytest.mark.parametrize("exhibit", TRAINED)
def test_a_setup_that_is_not_the_papers_says_what_it_stands_for(exhibit: str) -> None:
    for name, setup in load(exhibit)[1].items():
        small = setup.standin is not None and not setup.unless and name not in ALONE
        assert not small or target_of(name, setup) is not None, name
        assert (setup.stands_for is None) == (not setup.differs), name
        assert setup.stands_for is None or setups([setup.stands_for])[setup.stands_for].stands_for is None, name


@pytest.mark.parametrize("exhibit", WITH_STANDINS)
def test_a_standin_differs_in_what_it_declares_and_in_nothing_else(exhibit: str, tmp_path: Path) -> None:
    for one in pairs(exhibit):
        assert one.cell.recipe == one.own_cell.recipe
        assert one.cell.set.keys() == one.own_cell.set.keys()
        mine = resolved(one.setup, one.cell, tmp_path) | {"targets": one.line.targets}
        theirs = resolved(one.own, one.own_cell, tmp_path) | {"targets": one.own_line.targets}
        found = unlike(mine, theirs)
        undeclared = {key for key in found if not {key, f"{one.cell.recipe}.{key}"} & one.declared}
        assert not undeclared, f"{one.name}, {one.cell.name}"


@pytest.mark.parametrize("exhibit", WITH_STANDINS)
def test_the_cells_of_a_standin_keep_the_values_of_the_papers_or_their_ratio_to_the_usual(
    exhibit: str, tmp_path: Path
) -> None:
    """Three times the rate is three times the stand-in's rate."""
    for one in pairs(exhibit):
        usual = resolved(one.setup, one.cell.model_copy(update={"set": {}}), tmp_path)
        theirs = resolved(one.own, one.own_cell.model_copy(update={"set": {}}), tmp_path)
        for key, said in one.cell.set.items():
            base, own_base, own_said = value(usual, key), value(theirs, key), one.own_cell.set[key]
            where = f"{one.name}, {one.cell.name}: {key}"
            if base == own_base or isinstance(said, str):
                assert said == own_said, where
            else:
                assert said / base == pytest.approx(own_said / own_base), where
        if one.own_cell.length is not None:
            assert one.cell.length is not None
            shares = one.cell.length / one.setup.trained.rounds, one.own_cell.length / one.own.trained.rounds
            assert shares[0] == pytest.approx(shares[1]), one.name


@pytest.mark.parametrize("exhibit", WITH_STANDINS)
def test_what_is_run_twice_by_the_paper_is_run_twice_by_a_standin(exhibit: str, tmp_path: Path) -> None:
    """Two cells that differ in the paper's settings differ in the stand-in's, wherever in the exhibit they are."""
    seen: dict[str, tuple[str, str]] = {}
    for one in pairs(exhibit):
        mine, theirs = (
            json.dumps(resolved(*run, tmp_path), sort_keys=True)
            for run in ((one.setup, one.cell), (one.own, one.own_cell))
        )
        before, where = seen.setdefault(mine, (theirs, f"{one.name}, {one.cell.name}"))
        assert before == theirs, f"{one.name}, {one.cell.name} is the same run as {where}"


@pytest.mark.parametrize("exhibit", WITH_STANDINS)
def test_a_reader_is_told_what_differs_before_anything_else(exhibit: str) -> None:
    for setup in load(exhibit)[1].values():
        told = setup.remark or ""
        assert told.startswith("Unlike the exhibit's own setup: ") == bool(setup.differs)
        assert all(words in told for words in setup.differs.values())
        assert told.endswith(setup.trained.note or "")


def test_no_declaration_is_stale(tmp_path: Path) -> None:
    """What is declared differs in some cell of some setup that declares it with these words."""
    declared: dict[tuple[str, str], bool] = {}
    for exhibit in WITH_STANDINS:
        for one in pairs(exhibit):
            mine = resolved(one.setup, one.cell, tmp_path) | {"targets": one.line.targets}
            theirs = resolved(one.own, one.own_cell, tmp_path) | {"targets": one.own_line.targets}
            found = unlike(mine, theirs)
            for key, words in one.setup.differs.items():
                recipe, _, name = key.rpartition(".")
                real = name in found and recipe in ("", one.cell.recipe)
                declared[key, words] = declared.get((key, words), False) or real
    assert [words for words, real in declared.items() if not real] == []


@pytest.mark.parametrize(
    ("exhibit", "name", "expected"),
    [
        ("flss/table5", "flss-cifar10-small-beta05", [("plain", 0.05), ("plain", 0.15)]),
        ("flss/table5", "flss-cifar10-small-beta05", [("projected", 0.05), ("projected", 0.15), ("projected", 0.5)]),
        ("flss/table5", "flss-cifar10-beta05-resnet18", [("plain", 0.01), ("plain", 0.03)]),
        ("flss/table7", "flss-cifar10-small-beta05-epochs1", [1]),
        ("flss/table7", "flss-cifar10-small-beta05-epochs5", [5]),
        ("flss/table7", "flss-cifar10-small-beta05-epochs10", [10]),
    ],
)
def test_scaled_rates_and_epochs_are_what_the_tables_say(
    exhibit: str, name: str, expected: list[Any], tmp_path: Path
) -> None:
    """sr of 1, 3 and 10 times the setup's rate (FLSS, table 5), and 1, 5 and 10 epochs (table 7)."""
    found, own = load(exhibit)
    line = next(line for line in found.row if name in line.setups)
    runs = [resolved(own[name], cell, tmp_path) for cell in line.cells]
    if exhibit == "flss/table5":
        kinds = [(run["local"], run["local.optimizer.lr"]) for run in runs]
        assert [kind for kind in kinds if kind[0] == expected[0][0]] == expected
    else:
        assert {run["local.sampler.epochs"] for run in runs} == set(expected)
