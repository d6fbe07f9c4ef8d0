"""A task and a metric of one's own. Also: fedslice run examples/own_task.py:shop --recipe fedsubavg."""

import numpy as np
import torch
from torch import nn

import fedslice as fs


class Stars(nn.Module):
    """Stars are what the user gives, and what the item gets."""

    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(60, 1), nn.Embedding(200, 1)

    def forward(self, user, item):
        """Features arrive by name."""
        return (self.user(user) + self.item(item)).squeeze(-1)


def shop():
    """Return the task."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 60, 3_000), rng.zipf(1.5, 3_000) % 200
    stars = rng.normal(size=60)[user] + rng.normal(size=200)[item]
    data = fs.Federation.from_arrays(client=user, features={"user": user, "item": item}, label=stars, test=0.2)
    off = fs.Metric(lambda out, label: (out - label).abs().gt(1).double().mean(), lower_is_better=True, unit="%")
    tables = {"user.weight": "user", "item.weight": "item"}
    return fs.Task(data, Stars, nn.MSELoss(reduction="none"), tables, {"off": off}, name="shop")


if __name__ == "__main__":
    settings = {"lr": 0.1, "max_coef": 5}
    both = fs.compare(shop(), ["fedavg", "fedsubavg"], target="test_off < 0.5", rounds=40, cohort=20, set=settings)
    print(both.frame.select("recipe", "rounds_to_target", "test_off", "up_bytes"))
    model = Stars()
    model.load_state_dict(both.runs[-1].model)
    print(f"stars of user 3 for item 1: {model(torch.tensor(3), torch.tensor(1)).item():.1f}")
