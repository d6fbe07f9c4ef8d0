"""A CSV file with ids that are texts, a list, a time and a number to predict, up to a trained model and its report."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedslice as fs


def write(path: Path) -> Path:
    """Write a shop's file: 20,000 ratings of 500 items by 200 users."""
    chance = np.random.default_rng(0)
    user, item, day = (chance.integers(0, top, 20_000) for top in (200, 500, 28))
    price, tags = chance.random(500).round(2)[item], chance.integers(0, 8, (20_000, 3))
    stars = chance.normal(size=500)[item] + chance.normal(size=8)[tags].mean(1) - 2 * price
    lines = [
        f"user {user[i]},item {item[i]},{'|'.join(map(str, tags[i]))},{price[i]},2024-02-{day[i] + 1:02},{stars[i]:.2f}"
        for i in range(20_000)
    ]
    path.write_text("\n".join(["user,item,tags,price,when,stars", *lines]))
    return path


file = write(Path(tempfile.mkdtemp()) / "shop.csv")
shop = fs.Federation.from_frame(file, client="user", label="stars", lists={"tags": "|"}, time="when", test=0.2)


class Model(nn.Module):
    """What an item, its tags on average, and its price add to the stars."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(shop.vocabularies["item"].size, 1)
        self.tag = nn.Embedding(shop.vocabularies["tags"].size, 1)
        self.price = nn.Linear(1, 1)

    def forward(self, item: Tensor, tags: Tensor, tags_length: Tensor, price: Tensor) -> Tensor:
        """Return the stars of each sample."""
        valid = torch.arange(tags.shape[-1]) < tags_length[..., None]
        tag = (self.tag(tags).squeeze(-1) * valid).sum(-1) / tags_length.clamp(min=1)
        return self.item(item).squeeze(-1) + tag + self.price(price[..., None]).squeeze(-1)


tables = {"item.weight": "item", "tag.weight": "tags"}
task = fs.Task(shop, Model, nn.MSELoss(reduction="none"), tables=tables, metrics=[fs.metrics.rmse])
run = fs.run(task, "fedsubavg", rounds=60, cohort=50, eval_every=20, set={"lr": 0.1})
print(run.frame.select("round", "train_loss", "test_rmse"))
run.report(file.with_name("report.html"))
