"""The package cryptography is an extra: simulations do without it, the protocol says how to install it."""

import subprocess
import sys

import pytest

PLAIN = ["secagg.plain", "rowmasks.plain", "quantize", "union", "perturb", "heat"]


def run(code: str) -> subprocess.CompletedProcess[str]:
    hidden = "import sys; sys.modules['cryptography'] = None; "
    return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False)


def test_simulations_do_without_the_package() -> None:
    done = run("; ".join(f"import fedslice.privacy.{name}" for name in PLAIN))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["secagg.client", "secagg.server", "rowmasks.client", "rowmasks.server"])
def test_the_protocol_says_how_to_install_it(name: str) -> None:
    done = run(f"import fedslice.privacy.{name}")
    sentence = "UserError: secure aggregation needs the package 'cryptography': pip install 'fedslice[privacy]'."
    assert done.stderr.splitlines()[-1].endswith(sentence)
