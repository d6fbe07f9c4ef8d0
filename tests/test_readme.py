"""The examples of the README run as they stand, and stay short."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def output(name: str, folder: Path) -> str:
    """What the example of this name prints."""
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    code = found.group(1)
    assert len(code.strip().splitlines()) <= 25
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_the_example_runs_and_ends_with_a_metrics_table(tmp_path: Path) -> None:
    printed = output("example", tmp_path)
    assert "test_auc" in printed
    assert re.search(r"│ 50 +┆", printed), printed


def test_the_example_with_sequences_runs_and_ends_with_metrics(tmp_path: Path) -> None:
    assert re.match(r"\{'round': 5, .*'train_loss': ", output("sequences", tmp_path))


def test_the_example_with_a_table_runs_and_learns(tmp_path: Path) -> None:
    loss = re.search(r"'train_loss': (\S+),", output("table", tmp_path))
    assert loss is not None
    assert float(loss[1]) < 0.01


def test_the_page_on_data_runs_as_it_stands(tmp_path: Path) -> None:
    page = (README.parent / "docs" / "data.md").read_text()
    code = "".join(re.findall(r"<!-- run -->\n```python\n(.*?)```", page, re.DOTALL))
    assert page.count("```python") == 3
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['ann' 'bob'] torch.Size([4, 2]) 4",
        "[3, 0] [None, 'oil']",
        "20 1000 torch.Size([1, 8, 8])",
    ]


def test_every_example_in_python_is_one_of_these() -> None:
    assert README.read_text().count("```python") == 3
