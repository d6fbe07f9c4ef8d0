"""Recipes as text: ``explain``, ``repr`` that builds them again, and documents that do."""

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedslice as package
from command import fedslice
from fedslice import registry
from fedslice.codecs import Sign, StreamingSubspace
from fedslice.combine import Mean, Robust
from fedslice.core.component import Component
from fedslice.core.docs import arguments, parse, summary
from fedslice.core.errors import UserError
from fedslice.core.part import Part
from fedslice.explain import explain
from fedslice.recipe import PARTS, Recipe
from fedslice.recipes import PAPER, RECIPES, get
from fedslice.settings import flat, pairs, written

NAMES = {name: getattr(package, name) for name in package.__all__}
VALUES = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    40,
    0.0,
    0.1,
    0.25,
    1 / 3,
    0.5,
    1.0,
    2.5,
    1e-7,
    60.0,
    "1,0.5",
    "body",
    "head.*",
]
KINDS = [kind for kinds in PARTS.values() for kind in kinds.values()]


def words(kind: type[Component], name: str) -> list[Any]:
    """The words that a setting may have, if it has only some."""
    found = get_type_hints(kind).get(name)
    choices = [one for each in (found, *get_args(found)) for one in get_args(each)]
    return [one for one in choices if isinstance(one, str)]


@st.composite
def components(draw: st.DrawFn, place: str, depth: int = 2) -> Component:
    """Any part of a place, with any settings that it takes."""
    part: Component = draw(st.sampled_from(list(registry.kinds(place).values())))()
    for name in part.setting_names():
        if not draw(st.booleans()):
            continue
        if name in part.inside():
            value: Any = draw(components(part.inside()[name].place, depth - 1)) if depth else part.inside()[name]
        else:
            value = draw(st.sampled_from([*VALUES, *words(type(part), name)]))
        try:
            part = part.changed({name: value})
        except ValueError:
            continue
    return part


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Any recipe: of six parts those that go together."""
    recipe = Recipe()
    for place in draw(st.permutations(list(PARTS))):
        try:
            recipe = recipe.with_options({place: draw(components(place))})
        except UserError:
            continue
    return recipe


any_recipe = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@any_recipe
@given(recipes())
def test_what_a_recipe_looks_like_builds_it_again(recipe: Recipe) -> None:
    assert eval(repr(recipe), NAMES) == recipe
    for part in recipe:
        assert eval(repr(part), NAMES) == part


@any_recipe
@given(recipes())
def test_what_a_run_keeps_of_a_recipe_builds_it_again(recipe: Recipe) -> None:
    """As a document, and as the words of a command line over any other recipe."""
    assert Recipe.from_settings(recipe.settings()) == recipe
    every = [named for place, each in recipe.parts().items() for named in each.tree(place)]
    named = {owner: part.label for owner, part in every if not isinstance(part, package.Term)}  # local names its terms
    lines = [f"{key}={written(value)}" for key, value in flat(recipe.settings(), PARTS).items()]
    assert {key: value for key, value in pairs(lines).items() if key in named} == named
    assert RECIPES["feddd"].with_options(pairs(lines)) == recipe


@any_recipe
@given(recipes())
def test_an_explanation_has_every_setting_once_with_its_value_and_its_meaning(recipe: Recipe) -> None:
    found = explain(recipe)
    rows = {row["setting"]: row for row in found["settings"]}
    assert len(rows) == len(found["settings"])
    told = flat(recipe.settings(), PARTS)
    assert {name: row["value"] for name, row in rows.items()} == {k: v for k, v in told.items() if k not in PARTS}
    assert all(row["about"] and row["about"].endswith(".") for row in rows.values())
    for row in rows.values():
        assert (
            row["default"] is None
            or type(row["default"]) is type(row["value"])
            or row["value"] is None
            or (isinstance(row["value"], float))
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_docstring_of_a_part_explains_its_settings_and_no_others(kind: type[Part]) -> None:
    assert set(arguments(kind)) == {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    assert summary(kind).endswith(".") or summary(kind).endswith(":")


@pytest.mark.parametrize("name", PAPER)
def test_what_papers_give_are_settings_of_their_methods(name: str) -> None:
    known = {row["setting"]: row["value"] for row in explain(RECIPES[name], name)["settings"]}
    for setting, value in PAPER[name][1].items():
        assert setting in known
        if not isinstance(value, str):
            get(name, **{setting: type(known[setting])(value) if known[setting] is not None else value})


def test_only_what_differs_is_shown() -> None:
    assert repr(Recipe()) == "Recipe()"
    assert (
        repr(get("fedsubavg", lr=0.2))
        == "Recipe(slices=FeatureRows(), local=Local(optimizer=SGD(lr=0.2)), combine=HeatCorrected())"
    )
    codec = StreamingSubspace(inner=Sign(error_feedback=False))
    assert repr(codec) == "StreamingSubspace(inner=Sign(error_feedback=False))"
    assert repr(Recipe(combine=Mean(weights="samples"))) == "Recipe()"


def test_every_part_and_its_base_has_a_public_name() -> None:
    for kind in KINDS:
        assert getattr(package, kind.__name__) is kind
        base = next(each for each in kind.__mro__ if "place" in vars(each))
        assert base.__name__ in package.__all__
    assert Robust.__name__ in package.__all__
    assert set(registry.PLACES) == set(PARTS)


def test_a_docstring_is_read_to_the_end_of_its_arguments() -> None:
    text = """Do it.

    Args:
        one (seconds): First,
            and more: of it.
        two: ``Second``.

    Example:
        three: not one.
    """
    assert parse(text) == {"one": ("First, and more: of it.", "seconds"), "two": ("Second.", None)}
    assert parse("Nothing.") == {}


def test_the_command_explains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry._kinds, "combine", dict(registry.kinds("combine")))
    done = fedslice("explain", "fedsubavg", "--set", "local.lr=0.2", "max_coef=10")
    assert done.code == 0
    assert (
        "Recipe(slices=FeatureRows(), local=Local(optimizer=SGD(lr=0.2)), combine=HeatCorrected(max_coef=10.0))"
        in " ".join(done.out.split())
    )
    assert re.search(r"local\.optimizer\.lr = 0\.2 \(default 0\.1; paper 0\.1; Amazon 0\.05, Alibaba 0\.3\)", done.out)
    assert re.search(r"local\.sampler\.batch_size = 5 samples \(paper 5; Amazon 4, Alibaba 32\)", done.out)
    rows = {row["setting"]: row for row in fedslice("explain", "sign+flss", "--json").document["settings"]}
    assert rows["codec.inner"] | {"about": ""} == {
        "setting": "codec.inner", "value": "sign", "default": "dense", "unit": None, "about": "", "paper": None
    }  # fmt: skip
    assert rows["codec.warmup"]["unit"] == "rounds"
    assert rows["codec.inner.error_feedback"]["value"] is True
    Path("mine.py").write_text(
        "import fedslice as fs\n\n@fs.register\nclass Mine(fs.Weighted):\n"
        '    """Weigh twice."""\n\n    label = "mine-twice"\n    times: int = 2\n\nmine = fs.Recipe(combine=Mine())\n'
    )
    own = fedslice("explain", "mine.py:mine", "--set", "times=3")
    assert own.code == 0, own.err
    assert "combine=mine-twice" in own.out
    assert "combine.times = 3 (default 2)" in own.out
    assert "from mine" in own.out
    assert (
        fedslice("explain", "mine.py:fs").err
        == "fedslice: mine.py:fs is a module, expected a Recipe or a function that returns one.\n"
    )
    assert "did you mean 'fedsubavg'" in fedslice("explain", "fedsubavgg").err
