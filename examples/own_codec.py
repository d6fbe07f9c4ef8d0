"""A codec of one's own: updates travel in half precision, scaled so that small ones do not become zero.

It declares its field, so fedslice counts, packs and checks its bytes. On the command line it is

    fedslice run hotcold --recipe fedsubavg --set codec=examples/own_codec.py:Half scale=4096
"""

import torch

import fedslice as fs
from fedslice.core.encodings import Floats
from fedslice.core.entries import OnSlice
from fedslice.core.message import Field
from fedslice.core.update import Update


@fs.register
class Half(fs.Codec):
    """Send each value times ``scale`` as float16."""

    label = "half"
    scale: float = 1024.0

    def fields(self, spec, part, layout):
        """One field, an entry per value."""
        return {"values": Field(Floats(torch.float16), on=part, about="its update in half precision")}

    def encode(self, memory, head, update, came):
        """Return the halves of a chunk of clients [clients, ...] by parameter."""
        halves = {name: (value * self.scale).half() for name, value in update.values.items()}
        return {"values": OnSlice(update.slice, halves)}

    def decode(self, state, head, part, body):
        """Return the update that they stand for."""
        dtypes = state.run.spec.dtypes
        return Update(part, part, {n: v.to(dtypes[n]) / self.scale for n, v in body["values"].values.items()})


if __name__ == "__main__":
    entry = fs.tasks.get("hotcold")
    task = entry.make(entry.check({"clients": 200, "items": 1000}), None)
    for codec in ("dense", "half"):
        recipe = fs.recipes.get("fedsubavg", codec=codec, cohort=20)
        last = fs.Experiment(task, recipe, rounds=20, eval_every=20).run()[-1]
        print(f"{recipe.codec}: loss {last['train_loss']:.3f}, {last['up_bytes']:,} bytes up")
