"""The samples a client trains on: orders, passes, filled-up places, and independence of the chunk."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedslice.core import rng
from fedslice.core.errors import UserError
from fedslice.local import Batches, Local
from fedslice.recipe import Recipe
from toys import training

ORDERS = ["random", "shuffled", "file"]
NO_WORK: Any = None  # plain steps do not look at it
sizes_of_clients = st.lists(st.integers(1, 9), min_size=1, max_size=4)
widths = st.one_of(st.none(), st.integers(1, 6))


def draw_batches(
    local: Local,
    sizes: list[int],
    clients: list[int] | None = None,
    t: int = 0,
    scale: int = 1,
    seed: int = 0,
    draw: int = 0,
) -> Batches:
    numbers = torch.tensor(clients if clients is not None else list(range(len(sizes))))
    return local.sampler.batches(t, numbers, torch.full((len(sizes),), draw), torch.tensor(sizes), scale, seed)


def visited(batches: Batches, client: int) -> list[list[int]]:
    """The samples of every step in which something is real."""
    steps = [i[r].tolist() for i, r in zip(batches.index[client], batches.real[client], strict=True)]
    return [step for step in steps if step]


def filled_up_are_members(batches: Batches, sizes: list[int]) -> bool:
    return bool(((batches.index >= 0) & (batches.index < torch.tensor(sizes)[:, None, None])).all())


@settings(deadline=None, max_examples=60)
@given(sizes_of_clients, widths, st.integers(1, 3), st.sampled_from([None, "shuffled", "file"]), st.integers(0, 9))
def test_each_epoch_visits_every_sample_once(
    sizes: list[int], width: int | None, epochs: int, order: Any, seed: int
) -> None:
    batches = draw_batches(training(epochs=epochs, batch_size=width, order=order), sizes, seed=seed)
    assert filled_up_are_members(batches, sizes)
    for client, size in enumerate(sizes):
        steps = visited(batches, client)
        per_pass = 1 if width is None else -(-size // width)
        assert len(steps) == epochs * per_pass
        assert bool(batches.real[client].any(1)[: len(steps)].all()), "idle steps come at the end"
        for first in range(0, len(steps), per_pass):
            one = steps[first : first + per_pass]
            assert sorted(i for step in one for i in step) == list(range(size))
            assert all(len(step) == (width or size) for step in one[:-1])
            if order == "file":
                assert [i for step in one for i in step] == list(range(size))


@settings(deadline=None, max_examples=60)
@given(sizes_of_clients, st.integers(1, 6), st.integers(1, 5), st.sampled_from(ORDERS), st.integers(0, 9))
def test_iterations_are_full_batches_for_everyone(
    sizes: list[int], width: int, iterations: int, order: Any, seed: int
) -> None:
    batches = draw_batches(training(iterations=iterations, batch_size=width, order=order), sizes, seed=seed)
    assert batches.index.shape == batches.real.shape == (len(sizes), iterations, width)
    assert bool(batches.real.all())
    assert filled_up_are_members(batches, sizes)
    for client, size in enumerate(sizes):
        flat = batches.index[client].flatten().tolist()
        if order == "file":
            assert flat == [place % size for place in range(len(flat))]
        if order == "shuffled":
            for first in range(0, len(flat) - size + 1, size):
                assert sorted(flat[first : first + size]) == list(range(size))
            rest = flat[len(flat) // size * size :]
            assert len(set(rest)) == len(rest)


@settings(deadline=None, max_examples=40)
@given(sizes_of_clients, st.integers(1, 3), st.sampled_from([None, *ORDERS]))
def test_without_a_batch_size_every_step_is_the_exact_gradient(sizes: list[int], iterations: int, order: Any) -> None:
    batches = draw_batches(training(iterations=iterations, batch_size=None, order=order), sizes)
    for client, size in enumerate(sizes):
        assert [sorted(step) for step in visited(batches, client)] == [list(range(size))] * iterations


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([None, *ORDERS]), st.booleans(), widths, st.integers(0, 3))
def test_a_client_draws_the_same_in_any_company(
    data: st.DataObject, order: Any, passes: bool, width: int | None, t: int
) -> None:
    sizes = dict(enumerate(data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=6))))
    local = training(batch_size=width, order=order, **{"epochs" if passes else "iterations": 2})
    company = data.draw(st.permutations(list(sizes)))[: data.draw(st.integers(1, len(sizes)))]
    together = draw_batches(local, [sizes[c] for c in company], company, t)
    for place, client in enumerate(company):
        alone = draw_batches(local, [sizes[client]], [client], t)
        assert visited(together, place) == visited(alone, 0)


KEYS = [{"t": 1}, {"seed": 1}, {"draw": 1}, {"clients": [1]}]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: next(iter(key)))
@pytest.mark.parametrize(
    "local",
    [training(), training(order="shuffled"), training(epochs=1), training(epochs=1, order="random")],
    ids=["iterations", "iterations shuffled", "epochs", "epochs random"],
)
def test_round_seed_client_and_repetition_draw_anew(key: dict[str, Any], local: Local) -> None:
    base = draw_batches(local, [50], [0])
    assert torch.equal(draw_batches(local, [50], [0]).index, base.index)
    assert not torch.equal(draw_batches(local, [50], **{"clients": [0]} | key).index, base.index)


def test_passes_are_shuffled_differently() -> None:
    batches = draw_batches(training(epochs=2, batch_size=None), [50])
    one, two = visited(batches, 0)
    assert sorted(one) == sorted(two) == list(range(50))
    steps = visited(draw_batches(training(epochs=2, batch_size=50), [50]), 0)
    assert steps[0] != steps[1]
    assert steps[0] != list(range(50))


def test_file_order_begins_anew_in_every_round() -> None:
    local = training(iterations=2, batch_size=3, order="file")
    assert draw_batches(local, [10], t=0).index.tolist() == draw_batches(local, [10], t=5).index.tolist()


def test_random_batches_are_uniform() -> None:
    """A chi-square statistic of 7 cells: beyond 30 with a probability below 1e-4, and the draw is fixed."""
    batches = draw_batches(training(iterations=700, batch_size=10), [7])
    counts = Counter(batches.index.flatten().tolist())
    assert sum((counts[i] - 1000) ** 2 / 1000 for i in range(7)) < 30


@pytest.mark.parametrize("passes", [False, True])
def test_the_scale_widens_batches(passes: bool) -> None:
    local = training(batch_size=2, **{"epochs" if passes else "iterations": 1})
    batches = draw_batches(local, [20], scale=3)
    assert batches.index.shape == (1, 4 if passes else 1, 6)


def test_ten_iterations_of_random_batches_unless_said_otherwise() -> None:
    batches = draw_batches(training(), [4])
    assert batches.index.shape == (1, 10, 5)
    assert torch.equal(batches.index, draw_batches(training(iterations=10, order="random"), [4]).index)


def test_a_small_client_beside_a_large_one_shuffles_as_often_as_it_has_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes 1 and 600, one pass: a shuffle for every pass that anybody makes, which is one."""
    calls: list[Any] = []
    plain = rng.bits

    def counting(*key: Any) -> Any:
        calls.append(key)
        return plain(*key)

    monkeypatch.setattr(rng, "bits", counting)
    draw_batches(training(epochs=1, batch_size=5), [1, 600])
    assert len(calls) <= 2


def rates(local: Local) -> list[float]:
    return [float(local.rates(t, torch.tensor([1]))[0, 0]) for t in range(3)]


def test_the_rate_decays_by_round() -> None:
    assert rates(training(lr=0.5, decay=0.5)) == [0.5, 0.25, 0.125]
    assert rates(training(lr=0.5)) == [0.5] * 3


def clipping(shapes: dict[str, tuple[int, ...]], seed: int, clip: float) -> None:
    """Three clients, the first with a zero gradient, the last with a large one."""
    draw, sizes = np.random.default_rng(seed), np.array([0.0, 1e-2, 1e2])
    gradient = {
        name: torch.from_numpy(draw.normal(size=(3, *shape)) * sizes.reshape(3, *[1] * len(shape)))
        for name, shape in shapes.items()
    }
    clipped = training(clip=clip).direction(gradient, {})

    def norm(of: dict[str, Tensor], client: int) -> float:
        return float(torch.cat([g[client].flatten() for g in of.values()]).norm())

    for client in range(3):
        before = norm(gradient, client)
        assert norm(clipped, client) == pytest.approx(min(before, clip))
        factor = 1.0 if before <= clip else clip / before
        for name in gradient:
            torch.testing.assert_close(clipped[name][client], gradient[name][client] * factor)
    assert training().direction(gradient, {}) is gradient


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_clipping_bounds_each_client_alone(seed: int, clip: float) -> None:
    clipping({"a": (2, 2), "b": (3,), "scale": ()}, seed, clip)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 3, "epochs": 2}, "iterations=3 and epochs=2 are both given; give one"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": -5}, "batch_size=-5"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"iterations": 0}, "iterations=0"),
        ({"epochs": -1}, "epochs=-1"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"decay": 0}, "decay=0"),
        ({"order": "sorted"}, "order='sorted'.*'random', 'shuffled' or 'file'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        Recipe().with_options(options)
    text = str(refusal.value)
    assert text.startswith(
        ("local=plain: ", "local.optimizer=sgd: ", "local.schedule=exponential: ", "local.sampler=batches: ")
    )
    assert text.endswith(".")
    assert "\n" not in text
