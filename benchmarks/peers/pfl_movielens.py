"""FedAvg on MovieLens-1M with pfl-research: `python pfl_movielens.py DATA.npz`.

pfl trains a cohort client after client in one process. Its guide to fast simulations has the training
script (here `pfl_shard.py`) started several times with `PFL_WORKER_RANK` and `PFL_WORKER_ADDRESSES`: each
process then takes a share of the cohort, and the shares are summed by an all-reduce. This starts one
process per core and passes the requests on to all of them; the first one answers.
"""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from workload import COHORT


def free_address() -> str:
    """Return an address of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(data: str) -> list[subprocess.Popen[str]]:
    """Start the training script once per core, or less often: pfl needs equal shares of a cohort."""
    count = max(n for n in range(1, len(os.sched_getaffinity(0)) + 1) if COHORT % n == 0)
    addresses = ",".join(free_address() for _ in range(count))
    command = [sys.executable, str(Path(__file__).with_name("pfl_shard.py")), data]
    return [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            env={**os.environ, "PFL_WORKER_RANK": str(rank), "PFL_WORKER_ADDRESSES": addresses},
            text=True,
        )
        for rank in range(count)
    ]


def forward(shards: list[subprocess.Popen[str]]) -> None:
    """Pass every line of the standard input on to every process, then close theirs."""
    for line in sys.stdin:
        for shard in shards:
            print(line, end="", file=shard.stdin, flush=True)
    for shard in shards:
        shard.stdin.close()


def main() -> None:
    """Run until the input ends or a process fails; one failure ends them all."""
    shards = start(sys.argv[1])
    threading.Thread(target=forward, args=[shards], daemon=True).start()
    for _ in shards:
        _, status = os.wait()
        if status:
            for shard in shards:
                shard.terminate()
            os._exit(1)  # the thread may still be waiting for input


if __name__ == "__main__":
    main()
