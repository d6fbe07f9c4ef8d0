"""Mutated messages of all kinds are refused, or harmless: the law that ``tests/mutations.py`` tries at length."""

import random
import warnings

import pytest
import torch

from fedslice.core.header import HEADER_BYTES, Kind
from mutations import _HEAD, CASES, Counts, Scene, count, little_room
from toys import double

MUTANTS = 30  # of each kind, for each recipe: hundreds of each kind


def test_the_header_is_as_the_mutations_know_it() -> None:
    assert _HEAD.size == HEADER_BYTES


def test_nobody_gets_more_room_than_there_is() -> None:
    with little_room(), pytest.raises((MemoryError, RuntimeError)):
        torch.zeros(2**40, dtype=torch.uint8)


@pytest.mark.parametrize("name", CASES)
def test_a_mutated_message_is_refused_or_harmless(name: str) -> None:
    """No error but the project's own comes out, no memory is taken beyond what there is, and nothing is spoiled."""
    chance, counts = random.Random(0), Counts()
    with double(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        scene = Scene(CASES[name])
        others = {Kind.SUM, Kind.PART}  # test_mutated_sums has these
        assert {target.kind for target in scene.targets} == set(Kind) - others
        with little_room():
            for target in scene.targets:
                count(scene, target, MUTANTS, chance, counts, name, thorough=0.2)
    assert not counts.errors
    assert counts.refused > counts.harmless > 0


@pytest.mark.parametrize("name", CASES)
def test_a_message_that_is_not_mutated_is_accepted(name: str) -> None:
    with double():
        for target in Scene(CASES[name]).targets:
            accepted = target.read(target.data)
            assert accepted is not None, target.kind
            target.follow(accepted, True)
