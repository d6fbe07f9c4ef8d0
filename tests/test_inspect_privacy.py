"""What the server learns under each choice of privacy, from the messages that are really made."""

from typing import Any

from command import fedslice as command
from fedslice.recipes import RECIPES
from fedslice.training.experiment import Experiment
from fedslice.training.learned import CHOICES, Choice, learned
from toys import recommender

SIZES = (3, 7, 1, 12, 5, 4, 6, 2)
TINY = ["clients=12", "items=30", "factors=2"]


def choices(name: str = "fedsubavg", **settings: Any) -> dict[str, Choice]:
    recipe = RECIPES[name].with_options({"cohort": 4, "iterations": 2, "batch_size": 4, **settings})
    task = recommender(SIZES)
    return {one.name: one for one in learned(recipe, lambda changed: Experiment(task, changed, rounds=2))}


def test_each_choice_says_what_it_hides() -> None:
    found = choices()
    assert list(found) == list(CHOICES)
    plain, lies, heat, updates, all_of_it = found.values()
    rows, alone = "the rows of", "of this client alone"
    assert sum(rows in line for line in plain.learns) == 4  # of two groups of tables, once and in each round
    assert sum(rows in line for line in lies.learns) == sum(rows in line for line in heat.learns) == 2
    assert sum("a lie with" in line for line in lies.learns) == 2
    assert sum("not which" in line for line in heat.learns) == 2
    assert any(alone in line for line in plain.learns)
    assert not any(alone in line for line in updates.learns)
    assert any("summed over the cohort" in line for line in updates.learns)
    assert not any(rows in line or alone in line for line in all_of_it.learns)


def test_bytes_are_by_message() -> None:
    found = choices()
    plain, updates = found["as it is"], found["updates as secure sums"]
    assert set(plain.up) == {"enrolment, once", "request, in every round", "upload, in every round"}
    assert set(updates.up) == {*plain.up, "part of a secure sum, in every round"}
    assert updates.down["secure sum, in every round"] > 0
    assert all(size > 0 for choice in found.values() for size in (*choice.up.values(), *choice.down.values()))


def test_a_choice_that_a_recipe_cannot_take_is_left_out() -> None:
    found = choices("submodelavg")
    assert "updates as secure sums" not in found
    assert "heat as a secure sum" in found


def test_the_command_says_it_in_words_and_for_a_program() -> None:
    done = command("inspect", "hotcold", "--privacy", "--set", *TINY)
    words = " ".join(done.out.split())
    for name in CHOICES:
        assert name in words
    document = command("inspect", "hotcold", "--privacy", "--json", "--set", *TINY).document
    assert [choice["name"] for choice in document["choices"]] == list(CHOICES)


def test_it_looks_at_nothing_else() -> None:
    done = command("inspect", "hotcold", "--privacy", "--conditioning", "--set", *TINY)
    assert done.code
    assert "leave --privacy out" in done.err
