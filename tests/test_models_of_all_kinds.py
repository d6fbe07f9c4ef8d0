"""Whatever a module has, it trains as in plain PyTorch, on both engines, or is refused by one clear sentence."""

from __future__ import annotations

import pytest

from fedslice.training.engines.vectorized import NotVectorizableError
from fedslice.training.experiment import Experiment
from kinds import KINDS, averaged
from toys import assert_close

ONE, THREE = (9,), (8, 5, 12)
ONE_BY_ONE = ("gru", "lstm", "rnn", "batchnorm-cumulative")  # vmap cannot carry them


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("sizes", [ONE, THREE], ids=["one", "three"])
def test_training_is_plain_pytorchs(name: str, sizes: tuple[int, ...], engine: str) -> None:
    """Federated averaging of what one optimizer of PyTorch makes of one module for each client."""
    task, recipe = KINDS[name].task(sizes), KINDS[name].recipe(cohort=len(sizes))
    experiment = Experiment(task, recipe, rounds=2, engine=engine, chunk=len(sizes))
    if engine == "vectorized" and name in ONE_BY_ONE:
        with pytest.raises(NotVectorizableError, match="use engine=sequential, or auto, which finds out by itself"):
            experiment.run()
        assert Experiment(task, recipe, rounds=1).engine.engine.label == "sequential"
        return
    experiment.run()
    expected = averaged(task, recipe, 2)
    assert_close(experiment.model, {key: expected[key] for key in experiment.model}, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", KINDS)
def test_packed_messages_carry_the_same_run(name: str) -> None:
    task, recipe = KINDS[name].task(), KINDS[name].recipe()
    memory, packed = (Experiment(task, recipe, rounds=2, engine="sequential", wire=wire) for wire in (False, True))
    rows = [memory.run(), packed.run()]
    assert_close(memory.model, packed.model, rtol=1e-12, atol=1e-15)
    assert [row["up_bytes"] for row in rows[0]] == [row["up_bytes"] for row in rows[1]]
