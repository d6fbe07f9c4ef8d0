"""The peers' own virtual environments, made once under `.bench/` and kept.

Peers and this project want different versions of the same packages, so each peer is measured by a script of
its own with its own interpreter: `python("flower")` returns it.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / ".bench"
TORCH = "torch==2.13.0"
PEERS = {
    "pfl": (
        "pfl==0.6.0",
        "numpy==2.4.6",
        "scipy==1.17.1",
        "dp-accounting==0.5.1",
        "multiprocess==0.70.19",
        "prv-accountant==0.2.0",
    ),
    "flower": ("flwr[simulation]==1.41.0", "ray==2.55.1", "numpy==2.4.6", "protobuf==6.33.6"),
}


def python(peer: str) -> Path:
    """Return the interpreter of a peer's environment, after making the environment if need be."""
    if peer not in PEERS:
        raise ValueError(f"no peer is called {peer!r}; there are {', '.join(PEERS)}")
    home = ROOT / peer
    interpreter = home / "bin" / "python"
    stamp = home / "complete"
    wanted = "\n".join([TORCH, *PEERS[peer]])
    if not (stamp.exists() and stamp.read_text() == wanted):
        _run(sys.executable, "-m", "venv", "--clear", home)
        install = (interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*install, TORCH)
        _run(*install, TORCH, *PEERS[peer])  # torch once more: nothing may replace it
        stamp.write_text(wanted)
    return interpreter


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        words = " ".join(map(str, command))
        raise RuntimeError(f"`{words}` failed:\n{done.stdout[-2000:]}")


if __name__ == "__main__":
    for name in sys.argv[1:] or PEERS:
        print(python(name))
