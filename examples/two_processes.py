"""A server and three clients in processes of their own, which exchange nothing but bytes over pipes.

Every client has its own samples of y = x₁ - 2·x₂, which no other process sees. The server has a model and no data.
"""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor, nn

from fedslice import Client, Server, recipes
from fedslice.training import Pipes, play_round

RECIPE = recipes.get("fedavg", lr=0.1)


def model() -> nn.Module:
    """The network that both sides know. Training begins with the server's values."""
    return nn.Linear(2, 1)


def squared(output: Tensor, label: Tensor) -> Tensor:
    """Loss per sample."""
    return (output.squeeze(-1) - label) ** 2


def attend(pipe: Connection, number: int) -> None:
    """Be a client until the server closes the pipe."""
    x = np.random.default_rng(number).normal(size=(20, 2)).astype("float32")
    Client({"input": x, "label": x[:, 0] - 2 * x[:, 1]}, RECIPE, model, squared).serve(pipe)


if __name__ == "__main__":
    processes = multiprocessing.get_context("spawn")
    server, clients = Server(RECIPE, model), Pipes()
    for number in range(3):
        ours, theirs = processes.Pipe()
        processes.Process(target=attend, args=(theirs, number)).start()
        theirs.close()
        print("enrolled client", clients.connect(server, ours))
    for _ in range(10):
        end = play_round(server, clients)
        error = (end.model["weight"] - torch.tensor([[1.0, -2.0]])).abs().max()
        print(f"round {end.number}: took {len(end.taken)} updates, largest error of a weight {error:.4f}")
    clients.close()
