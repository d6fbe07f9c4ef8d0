"""Logistic regression over one-hot features, the rating model of FedSubAvg (NeurIPS 2022, 5.1)."""

from torch import Tensor, nn


class SparseLogistic(nn.Module):
    """One weight per feature in a table, so that a client holds the rows of its own features and no others.

    There is no bias, which every client would hold: the paper's heat statistics count none (the hottest
    feature of MovieLens-1M is the gender of its 4,331 male users). The weights start at zero.

    >>> import torch
    >>> SparseLogistic(rows=5)(torch.tensor([[0, 3], [1, 4]]))
    tensor([0., 0.], grad_fn=<SumBackward1>)
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """The logit of every sample [...] from the ids of its features that are one [..., F]."""
        weights: Tensor = self.table(ids)
        return weights.squeeze(-1).sum(-1)
