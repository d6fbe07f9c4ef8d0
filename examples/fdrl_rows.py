"""FDRL on feature rows: the shared encoder is a table of items, and a client exchanges the rows of its own items alone.

Every client likes items by what they are (shared) and by a taste of its own (private). The shared encoder's rows are
corrected by their heat, as FedSubAvg does; the private encoder and the head never leave the client.
"""

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from fedslice import Experiment, Federation, Recipe, Task
from fedslice.combine import HeatCorrected
from fedslice.local import FDRL, SGD, Local
from fedslice.measure import auc
from fedslice.models.discriminative import Discriminative
from fedslice.select import Uniform
from fedslice.slices import FeatureRows, Shared, Whole

CLIENTS, ITEMS, SAMPLES = 60, 400, 6_000

rng = np.random.default_rng(0)
client, item = rng.integers(0, CLIENTS, SAMPLES), rng.zipf(1.4, SAMPLES) % ITEMS
price = rng.normal(size=SAMPLES)
liked = rng.normal(size=ITEMS)[item] + rng.normal(size=CLIENTS)[client] * price + rng.normal(size=SAMPLES) > 0


class Encoder(nn.Module):
    """Eight features of an item and its price."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, 4)
        self.mix = nn.Linear(5, 8)

    def forward(self, item: Tensor, price: Tensor) -> Tensor:
        """Features arrive by name."""
        return self.mix(torch.cat([self.item(item), price[..., None]], -1)).relu()


federation = Federation.from_arrays(client=client, features={"item": item, "price": price}, label=liked.astype(float))
task = Task(
    federation,
    lambda: Discriminative(Encoder(), Encoder(), head=1),
    lambda output, label: nn.functional.binary_cross_entropy_with_logits(output.squeeze(-1), label, reduction="none"),
    metrics={"auc": auc},
    tables={"shared.item.weight": "item", "private.item.weight": "item"},
)
for inner in (Whole(), FeatureRows()):
    recipe = Recipe(
        select=Uniform(cohort=20),
        slices=Shared("shared.*", inner=inner),
        local=Local(FDRL(alpha=0.1, beta=0.1), optimizer=SGD(lr=0.2)),
        combine=HeatCorrected(weights="uniform"),
    )
    rows = Experiment(task, recipe, rounds=40, eval_every=20, measure=["personal"]).run()
    print(f"shared encoder, {inner.label}")
    print(pl.DataFrame(rows).select("round", "personal_auc", "personal_auc_worst", "up_bytes", "down_bytes"))
