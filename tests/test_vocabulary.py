"""Laws of vocabularies: encoding, decoding, JSON."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedslice import Vocabulary
from fedslice.data.vocabulary import dumps, loads
from layouts import one_sentence

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20)
numbers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)
values = st.one_of(texts, numbers, st.lists(st.booleans(), max_size=5))


@given(values, st.booleans())
def test_decoding_turns_encoding_back_and_encoding_decoding(found: list[Any], unknown: bool) -> None:
    vocabulary = Vocabulary(found, unknown=unknown)
    assert vocabulary.decode(vocabulary.encode(found)) == found
    every = torch.arange(int(unknown), vocabulary.size)
    assert vocabulary.encode(vocabulary.decode(every)).equal(every)
    assert vocabulary.size == len(set(found)) + unknown


@given(values, st.randoms())
def test_numbers_follow_the_order_of_values_and_not_of_rows(found: list[Any], chance: Any) -> None:
    shuffled = [*found, *found[:3]]
    chance.shuffle(shuffled)
    assert Vocabulary(shuffled) == Vocabulary(found)
    assert Vocabulary(found).values == sorted(set(found))


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values, max_size=4), st.booleans())
def test_json_keeps_a_vocabulary(found: dict[str, list[Any]], unknown: bool) -> None:
    vocabularies = {name: Vocabulary(one, unknown=unknown) for name, one in found.items()}
    assert loads(dumps(vocabularies)) == vocabularies
    for one in vocabularies.values():
        again = Vocabulary.from_json(one.to_json())
        assert again == one or not one.values  # of no values the type is not known
        assert (again.values, again.unknown) == (one.values, one.unknown)


def test_zero_stands_for_values_that_are_not_in_the_vocabulary() -> None:
    colours = Vocabulary(["red", "blue"])
    assert colours.encode(["green", "blue", "red", "green"]).tolist() == [0, 1, 2, 0]
    assert colours.decode([0, 2]) == [None, "red"]
    assert Vocabulary([3, 1]).encode(torch.tensor([1, 2, 3])).tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Vocabulary(["a"]).encode([1]), "of texts was given whole numbers"),
        (lambda: Vocabulary(["a"], unknown=False).encode(["a", "b"]), "'b' is not among the 1 values"),
        (lambda: Vocabulary(["a"]).decode([2]), "from 2 to 2 to decode, expected whole ones from 0 to 1"),
        (lambda: Vocabulary(["a"]).decode([-1]), "from -1 to -1"),
        (lambda: Vocabulary(["a"]).decode([0.5]), "expected whole ones"),
        (lambda: Vocabulary(["a", 1]), "of type int and str"),
        (lambda: Vocabulary([1.5]), "of type float"),
        (lambda: Vocabulary([2**63]), "beyond 64 bits"),
        (lambda: Vocabulary(["\ud800"]), "not Unicode"),
    ],
)
def test_what_a_vocabulary_does_not_take_is_told_in_a_sentence(call: Any, told: str) -> None:
    assert told in one_sentence(call)


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "null", "[1]", "{}", '{"values": ["a"]}', '{"values": "ab", "unknown": true}',
        '{"values": ["b", "a"], "unknown": true}', '{"values": ["a", "a"], "unknown": true}',
        '{"values": ["a", 1], "unknown": true}', '{"values": [null], "unknown": true}',
        '{"values": [1.5], "unknown": true}', '{"values": [["a"]], "unknown": true}',
        '{"values": ["a"], "unknown": 1}', '{"values": ["a"], "unknown": true, "more": 1}',
        '{"values": [9223372036854775808], "unknown": true}', '{"values": ["\\ud800"], "unknown": true}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_json_that_is_no_vocabulary_is_refused_in_a_sentence(text: str) -> None:
    assert "vocabular" in one_sentence(Vocabulary.from_json, text)
    whole = f'{{"item": {text or "x"}}}'
    assert "vocabular" in one_sentence(loads, whole)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_json_is_a_vocabulary_or_a_sentence(found: Any) -> None:
    text = json.dumps({"values": found, "unknown": True})
    try:
        vocabulary = Vocabulary.from_json(text)
    except ValueError:
        one_sentence(Vocabulary.from_json, text)
    else:
        assert vocabulary.values == found
