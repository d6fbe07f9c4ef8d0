"""The law of the project: the simulation equals a server and clients in processes that exchange only bytes."""

from collections.abc import Iterator

import pytest

from toys import assert_close, double
from two_sides import NAMES, Case, Sides, sides, simulated, without_words


@pytest.fixture(scope="module")
def both() -> Iterator[Sides]:
    with sides() as processes:
        yield processes


@pytest.mark.parametrize("name", [name for name in NAMES if name != "centralsgd"])
def test_two_processes_that_exchange_bytes_are_the_simulation(name: str, both: Sides) -> None:
    """Four rounds with eight clients, of whom some miss rounds and some send what never arrives."""
    case = Case(name)
    apart = both.run(case)
    with double():
        together = simulated(case)
    assert apart.taken == together.taken
    assert without_words(apart.books) == without_words(together.books)
    assert_close(apart.model, together.model, rtol=1e-6, atol=1e-9)
