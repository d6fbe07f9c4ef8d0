"""The example of the README runs as it stands, and stays short."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs_and_ends_with_a_metrics_table(tmp_path: Path) -> None:
    found = re.search(r"<!-- example -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    code = found.group(1)
    assert len(code.strip().splitlines()) <= 25
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "test_auc" in done.stdout
    assert re.search(r"│ 50 +┆", done.stdout), done.stdout
