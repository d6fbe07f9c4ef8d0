"""A local method of one's own: training that also asks for confident predictions, in a term of one loss.

Entropy minimisation adds ν·H(p), where H is the entropy of a sample's predicted classes p. On the command line it is

    fedslice run agnews --set local=examples/own_local.py:Confident nu=0.3 optimizer=adam lr=0.001
"""

import numpy as np
import torch

import fedslice as fs


class Confident(fs.Term):
    """Adds ν·H(p) to the loss of each sample."""

    label = "confident"
    nu: float = 0.1

    def loss(self, step, work):
        """Return ν times the mean entropy of each client's batch [clients]."""
        log = step.seen.output.log_softmax(-1)
        return self.nu * (-(log.exp() * log).sum(-1) * step.batch.share).sum(1)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(3000, 5)).astype("float32"), rng.integers(0, 30, 3000)
    data = fs.Federation.from_arrays(client=client, features={"input": x}, label=x[:, :3].argmax(1))
    task = fs.Task(data, lambda: torch.nn.Linear(5, 3), torch.nn.CrossEntropyLoss(reduction="none"))
    for local in (fs.Local(optimizer=fs.Adam(0.01)), fs.Local(Confident(nu=0.3), optimizer=fs.Adam(0.01))):
        row = fs.Experiment(task, fs.Recipe(select=fs.Uniform(cohort=10), local=local), rounds=20).run()[-1]
        print(local.label, f"test loss {row['test_loss']:.3f}")
