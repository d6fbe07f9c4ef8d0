"""The examples run as they stand, and show what they are there to show."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


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
