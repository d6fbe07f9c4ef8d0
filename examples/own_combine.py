"""A merge of one's own that sees every client's update: the mean of those nearest to the median (Xie et al. 2018).

fedslice run hotcold --set combine=examples/own_combine.py:NearMedian keep=0.8
"""

import torch

import fedslice as fs


@fs.register
class NearMedian(fs.Robust):
    """The mean of the share ``keep`` of a coordinate's values that are nearest to their median."""

    label = "near-median"
    keep: float = 0.7

    def merge(self, state, name, rows, values, present, weights):
        """Return the merged rows [rows, ...] of the updates [clients, rows, ...] of the clients that sent them."""
        known = values.masked_fill(~present, torch.nan)
        distance = (known - known.nanmedian(0).values).abs().nan_to_num(torch.inf)
        rank = distance.argsort(0).argsort(0)
        near = rank < (self.keep * present.sum(0)).ceil()
        return values.masked_fill(~near, 0).sum(0) / near.sum(0).clamp(min=1)


if __name__ == "__main__":
    entry = fs.tasks.get("hotcold")
    task = entry.make(entry.check({"clients": 200, "items": 1000}), None)
    for combine in ("mean", "median", NearMedian(keep=0.8)):
        recipe = fs.recipes.get("fedavg", combine=combine, cohort=20)
        last = fs.Experiment(task, recipe, rounds=20, eval_every=20).run()[-1]
        print(f"{recipe.combine}: loss {last['train_loss']:.3f}")
