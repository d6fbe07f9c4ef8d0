"""Taobao's log and the generated one: arrays from good files, one sentence from bad ones, and the planted shape."""

from pathlib import Path

import numpy as np
import pytest

from fedslice.datasets import clicks, taobao
from layouts import one_sentence

Line = tuple[int, int, int, str, int]


def some_lines(sizes: dict[int, int], seed: int = 0) -> list[Line]:
    """So many acts of each user, in no order; items belong to one category each."""
    draw = np.random.default_rng(seed)
    users = draw.permutation(np.repeat(list(sizes), list(sizes.values())))
    items = 10 * draw.integers(1, 30, len(users))
    acts = draw.choice(["pv", "pv", "pv", "buy", "cart", "fav"], len(users))
    times = draw.permutation(len(users)) + 1_511_539_200
    return [
        (int(u), int(i), 7000 - int(i) % 70, str(b), int(t))
        for u, i, b, t in zip(users, items, acts, times, strict=True)
    ]


def write(folder: Path, lines: list[Line], end: str = "\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, line)) + end for line in lines)
    (folder / taobao.FILE).write_bytes(text.encode())
    return folder


def plain(lines: list[Line], users: int | None = None) -> list[tuple[int, int, int, bool]]:
    """The same by dictionaries and a sort."""
    count = {user: sum(line[0] == user for line in lines) for user in {line[0] for line in lines}}
    kept = sorted(user for user, n in count.items() if n >= taobao.FEWEST)[:users]
    mine = sorted((line for line in lines if line[0] in kept), key=lambda line: (line[0], line[4]))
    names = [{name: i + 1 for i, name in enumerate(sorted({line[c] for line in mine}))} for c in range(3)]
    return [(names[0][u], names[1][i], names[2][c], act != "pv") for u, i, c, act, _ in mine]


def rows(log: taobao.Clicks) -> list[tuple[int, int, int, bool]]:
    columns = (log.user, log.item, log.category, log.label)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def sentence(path: Path) -> str:
    return one_sentence(taobao.read, path)


SIZES = {31: 40, 4: 32, 900: 31, 17: 50, 2: 1}


@pytest.mark.parametrize("block", [40, 1000, 1 << 26])
@pytest.mark.parametrize("users", [None, 1, 2, 9])
def test_arrays_follow_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, users: int | None) -> None:
    lines = some_lines(SIZES)
    write(tmp_path, lines)
    monkeypatch.setattr(taobao, "_BLOCK_BYTES", block)
    found = taobao.read(tmp_path, users)
    assert rows(found) == plain(lines, users)
    assert len(set(found.user.tolist())) == min(users or 3, 3)
    dtypes = [column.dtype.name for column in (found.user, found.item, found.category, found.label)]
    assert dtypes == ["int32", "int32", "int32", "bool"]


def test_acts_of_one_second_stay_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [(1, n % 5 + 1, 1, "buy" if n % 3 else "pv", 100) for n in range(40)]
    assert rows(taobao.read(write(tmp_path, lines))) == [(1, n % 5 + 1, 1, n % 3 > 0) for n in range(40)]


def test_other_line_ends_and_the_file_itself_are_read(tmp_path: Path) -> None:
    lines = some_lines(SIZES)
    folder = write(tmp_path / "windows", lines, "\r\n")
    assert rows(taobao.read(folder)) == plain(lines)
    file = write(tmp_path / "open", lines) / taobao.FILE
    file.write_bytes(file.read_bytes().rstrip())
    assert rows(taobao.read(file)) == plain(lines)


@pytest.mark.parametrize("block", [64, 1 << 26])
@pytest.mark.parametrize(
    ("bad", "saying"),
    [
        ("1,2,3,pv", "4 columns found in '1,2,3,pv', expected 5 columns separated by commas: user, item"),
        ("1,2,3,pv,5,6", "6 columns found"),
        ("", "1 column found in ''"),
        ("1,x,3,pv,5", "the item is 'x', expected a whole number from 0 to 2147483647"),
        ("1,2,3,pv,2147483648", "the time is '2147483648'"),
        ("-1,2,3,pv,5", "the user is '-1'"),
        ("1,2,,pv,5", "the category is ''"),
        ("1,2,3,look,5", "the behaviour is 'look', expected pv, buy, cart or fav"),
        ("1,2,3,pv," + "9" * 200, "the time is '9999"),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str, saying: str, block: int
) -> None:
    lines = write(tmp_path, some_lines(SIZES)) / taobao.FILE
    text = lines.read_text().splitlines()
    text[99:99] = [bad]
    lines.write_text("\n".join(text) + "\n")
    monkeypatch.setattr(taobao, "_BLOCK_BYTES", block)
    assert f"{taobao.FILE}, line 100: {saying}" in sentence(tmp_path)


def test_a_file_without_lines_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No end of line in sight: the block is not allowed to grow to the size of the file."""
    monkeypatch.setattr(taobao, "_BLOCK_BYTES", 100)
    (tmp_path / taobao.FILE).write_bytes(b"\0" * 1000)
    assert "line 1: 1 column found in" in sentence(tmp_path)


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "nowhere does not exist, expected the public UserBehavior.csv" in sentence(tmp_path / "nowhere")
    assert "holds no UserBehavior.csv" in sentence(tmp_path)
    file = tmp_path / taobao.FILE
    file.touch()
    assert "is empty, expected lines of 5 columns" in sentence(tmp_path)
    write(tmp_path, some_lines({1: 31, 2: 5}))
    assert "has no user with 32 lines" in sentence(tmp_path)


SCALE = 0.01


@pytest.fixture(scope="module")
def log() -> taobao.Clicks:
    return clicks.generate(SCALE)


def test_the_generated_log_has_its_shape(log: taobao.Clicks) -> None:
    sizes = np.bincount(log.user)[1:]
    assert len(log) == round(SCALE * clicks.SAMPLES)
    assert len(sizes) == round(SCALE * clicks.CLIENTS)
    assert sizes.min() >= taobao.FEWEST
    assert sizes.max() > 5 * np.median(sizes), "a few users have many samples"
    assert (np.diff(log.user) >= 0).all()
    assert log.item.min() == 1
    assert log.item.max() <= round(SCALE * clicks.ITEMS)
    assert (log.category.min(), log.category.max()) == (1, round(SCALE * clicks.CATEGORIES))
    pairs = np.unique(np.stack([log.item, log.category]), axis=1)
    assert len(np.unique(pairs[0])) == pairs.shape[1], "an item has one category"
    assert [column.dtype.name for column in (log.user, log.item, log.category)] == ["int32"] * 3


def test_heat_reaches_from_one_client_to_most(log: taobao.Clicks) -> None:
    holders = np.unique(log.user.astype(np.int64) << 32 | log.item) & 0xFFFFFFFF
    heat = np.bincount(holders)
    assert heat[heat > 0].min() <= 2
    assert heat.max() > 0.5 * round(SCALE * clicks.CLIENTS)


def spread(log: taobao.Clicks, ids: np.ndarray) -> float:
    """Variance of click rates between ids, beyond what chance alone would give, in units of that chance."""
    count, hits = np.bincount(ids), np.bincount(ids, log.label)
    often = count >= 30
    rate, base = hits[often] / count[often], log.label.mean()
    return float(((rate - base) ** 2 * count[often]).mean() / (base * (1 - base)))


def test_users_items_and_categories_matter(log: taobao.Clicks) -> None:
    """Each has a click rate of its own; shuffled labels have none."""
    assert 0.15 < log.label.mean() < 0.25
    noise = taobao.Clicks(log.user, log.item, log.category, np.random.default_rng(0).permutation(log.label))
    for name in ("user", "item", "category"):
        assert spread(log, getattr(log, name)) > 3
        assert spread(noise, getattr(log, name)) < 1.5


def test_a_category_clicked_before_is_clicked_again(log: taobao.Clicks) -> None:
    """The history tells: beyond the user's own rate, among its samples of categories seen in its first half."""
    key = log.user.astype(np.int64) << 32 | log.category
    first = np.flatnonzero(np.diff(log.user, prepend=0))
    place = np.arange(len(log)) - np.repeat(first, np.diff(first, append=len(log)))
    early = place < np.repeat(np.diff(first, append=len(log)), np.diff(first, append=len(log))) // 2
    clicked = np.isin(key[~early], np.unique(key[early & log.label]))
    seen = np.isin(key[~early], np.unique(key[early & ~log.label])) & ~clicked
    assert log.label[~early][clicked].mean() > 1.5 * log.label[~early][seen].mean()


def test_the_same_seed_gives_the_same_log_in_blocks_of_any_size(
    log: taobao.Clicks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "_BLOCK", 10_007)
    assert rows(clicks.generate(SCALE)) == rows(log)
    assert rows(clicks.generate(SCALE, seed=1)) != rows(log)


def test_the_smallest_log() -> None:
    log = clicks.generate(1e-9)
    assert set(log.user.tolist()) == set(log.item.tolist()) == set(log.category.tolist()) == {1}
    assert len(log) >= taobao.FEWEST
