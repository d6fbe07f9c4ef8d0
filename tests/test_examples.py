"""The examples run as they stand, and show what they are there to show."""

import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fedslice
from fedslice import registry
from fedslice.codecs import Sign, StreamingSubspace
from fedslice.config import assignments

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def tables(text: str) -> Iterator[list[list[float]]]:
    """The rows of every table that was printed."""
    for table in text.split("└")[:-1]:
        lines = [line for line in table.splitlines() if re.match(r"│ \d", line)]
        yield [[float(cell) for cell in line.strip("│").split("┆")] for line in lines]


@pytest.mark.parametrize("name", ["fdrl_rows", "fdrl_subspace", "fdrl_channels"])
def test_an_example_sends_less_and_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    torch.set_num_threads(threads)
    whole, part = tables(capsys.readouterr().out)
    assert [row[0] for row in whole] == [row[0] for row in part] == [0, 20, 40]
    assert part[-1][3] < 0.6 * whole[-1][3], "bytes that go up"
    for rows in (whole, part):
        assert rows[-1][1] > rows[0][1] + 0.2, "scores of clients' own models"


def test_an_own_local_method_is_a_term_of_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / "own_local.py"
    runpy.run_path(str(path), run_name="__main__")
    plain, confident = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (plain[0], confident[0]) == ("plain", "confident")
    assert 0.1 < float(confident[-1]) != float(plain[-1]) < 0.9
    code = path.read_text().split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line]) <= 25


def test_a_server_and_three_clients_in_processes_of_their_own_learn_over_pipes() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "two_processes.py"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [f"enrolled client {number}" for number in range(3)]
    rounds = [re.fullmatch(r"round (\d+): took 3 updates, largest error of a weight (\S+)", line) for line in lines[3:]]
    assert [int(found[1]) for found in rounds if found] == list(range(10))
    errors = [float(found[2]) for found in rounds if found]
    assert errors[0] > 0.1
    assert errors[-1] < 0.01


def test_the_page_on_processes_has_the_example_as_it_stands() -> None:
    code = (EXAMPLES / "two_processes.py").read_text().strip()
    assert f"```python\n{code}\n```" in (ROOT / "docs" / "processes.md").read_text()
    assert len([line for line in code.splitlines() if line and '"""' not in line]) <= 35


@pytest.mark.parametrize("name", ["own_codec", "own_combine"])
def test_an_example_of_an_own_part_runs_and_stands_on_the_page_on_parts(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in registry.PLACES:
        monkeypatch.setitem(registry._kinds, place, dict(registry.kinds(place)))
    path = EXAMPLES / f"{name}.py"
    code = path.read_text().strip()
    assert f"```python\n{code}\n```" in (ROOT / "docs" / "extending.md").read_text()
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    losses = [float(re.search(r"loss (\S+)", line)[1].rstrip(",")) for line in lines]  # type: ignore[index]
    assert len(losses) == (2 if name == "own_codec" else 3)
    assert max(losses) < 0.69, "all of them learn"
    if name == "own_codec":
        sent = [int(line.split()[-3].replace(",", "")) for line in lines]
        assert sent[1] < 0.6 * sent[0]
    body = code.partition("@fs.register")[2].partition("if __name__")[0]
    assert len([line for line in body.splitlines() if line.strip() and '"""' not in line]) <= 25


def test_the_page_on_parts_says_what_holds() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    for place, bases in re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.M):
        for name in re.findall(r"`(?:fedslice\.)?(\w+)`", bases):
            assert getattr(fedslice, name).place == place
    words = re.search(r"--set (codec=subspace .*?)`", page)
    assert words is not None
    codec = StreamingSubspace(inner=Sign(error_feedback=False))
    assert fedslice.recipes.get("fedavg", **assignments(words[1].split())).codec == codec
    table = tomllib.loads(re.search(r"```toml\n(\[set.*?)```", page, re.S)[1])["set"]  # type: ignore[index]
    assert fedslice.recipes.get("fedavg").with_options(table).codec == codec


def test_the_names_of_the_page_on_processes_exist() -> None:
    import fedslice
    from fedslice import training

    page = (ROOT / "docs" / "processes.md").read_text()
    for name in re.findall(r"`(Client|Server|Pipes)\.(\w+)", page):
        kind = getattr(training if name[0] == "Pipes" else fedslice, name[0])
        assert hasattr(kind, name[1]), name
    for name in ("Pipes", "evaluate_clients", "play_round"):
        assert f"`{name}(" in page
        assert name in training.__all__
        assert getattr(training, name).__name__ == name
