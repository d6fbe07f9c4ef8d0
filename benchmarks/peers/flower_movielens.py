"""FedAvg on MovieLens-1M in Flower's simulation runtime: `python flower_movielens.py DATA.npz [SUPERNODES]`.

The message API with Flower's own FedAvg strategy and the Ray backend, one worker per core and one core per
client. There is a SuperNode per client, as Flower's guide to simulations has it. With fewer, each SuperNode
plays one client of its share in a round, which spares Flower the search of thousands of idle nodes for
messages.
"""

import logging
import os
import random
import sys
import time
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from workload import COHORT, FEATURES, LEARNING_RATE, WARM_UP, Requests, clients

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the whole model on one client's batches and send it back."""
    torch.set_num_threads(1)
    data = clients(str(message.content["config"]["data"]))
    node, nodes = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    client = random.choice(range(node, len(data), nodes))
    weight = message.content["arrays"].to_torch_state_dict()["weight"]
    table = nn.Embedding.from_pretrained(weight, freeze=False)
    optimizer = torch.optim.SGD(table.parameters(), lr=LEARNING_RATE)
    criterion = nn.BCEWithLogitsLoss()
    for ids, labels in data.batches(client):
        optimizer.zero_grad()
        criterion(table(ids).sum((1, 2)), labels).backward()
        optimizer.step()
    arrays = ArrayRecord(table.state_dict())
    metrics = MetricRecord({"num-examples": data.samples(client)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def all_replied(replies: list[RecordDict], _: str) -> MetricRecord:
    """Aggregate no metrics, but make sure that the round was a whole one."""
    if len(replies) != COHORT:
        raise RuntimeError(f"{len(replies)} clients of {COHORT} replied")
    return MetricRecord()


def serve(grid: Grid, data: str, supernodes: int, requests: Requests) -> None:
    """Warm up, then run the rounds that are asked for, all in one simulation."""
    strategy = FedAvg(
        fraction_train=COHORT / supernodes,
        min_train_nodes=COHORT,
        fraction_evaluate=0.0,
        min_available_nodes=supernodes,
        train_metrics_aggr_fn=all_replied,
    )
    arrays = ArrayRecord({"weight": torch.zeros(FEATURES, 1)})

    def run(rounds: int) -> list[float]:
        nonlocal arrays
        marks: list[float] = []
        result = strategy.start(
            grid,
            arrays,
            num_rounds=rounds,
            train_config=ConfigRecord({"data": data}),
            evaluate_fn=lambda *_: marks.append(time.perf_counter()),  # called at the start and after every round
        )
        arrays = result.arrays
        return marks

    run(WARM_UP)
    requests.ready()
    waiting = iter(requests)
    while True:
        with grid.state.lock:  # between requests, keep Flower from polling its nodes: others are being timed
            rounds = next(waiting, None)
        if rounds is None:
            return
        requests.answer(run(rounds))


def main() -> None:
    """Start the simulation, which lasts until the input ends."""
    requests = Requests()
    data = str(Path(sys.argv[1]).resolve())
    supernodes = int(sys.argv[2]) if len(sys.argv) > 2 else len(clients(data))
    server_app = ServerApp()

    @server_app.main()
    def _(grid: Grid, context: Context) -> None:  # noqa: ARG001 - Flower's signature
        serve(grid, data, supernodes, requests)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app,
        client_app,
        supernodes,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"logging_level": "error", "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    # What `__main__` defines is shipped to Ray's workers with every message, a module is imported there once.
    import flower_movielens

    flower_movielens.main()
