"""Deep Interest Network (Zhou et al., KDD 2018), the click model of FedSubAvg (NeurIPS 2022, 5.1).

The shape is that of FedSubAvg's public code. For Amazon it knows user and item ids only, 44,023 parameters beside
the two tables; for Alibaba's data an item's vector is that of its id and that of its category side by side. Kernels
and tables start glorot-uniform and biases at zero, as they do there.
"""

import torch
from torch import Tensor, nn


class DIN(nn.Module):
    """Logits of no click and click from a user, a target item and the items that the user clicked before.

    `users`, `items` and `categories` are table rows and include the padding row 0, which is learned like any other;
    without categories there is no such table. The logits are raw: the softmax belongs to the loss.
    """

    def __init__(self, users: int, items: int, dim: int = 18, categories: int = 0) -> None:
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.category = nn.Embedding(categories, dim) if categories else None
        wide = 2 * dim if categories else dim
        inputs = dim + 4 * wide
        self.attention = _Attention(wide)
        self.norm = _FrozenNorm(inputs)
        self.tower = nn.Sequential(nn.Linear(inputs, 200), _Dice(200), nn.Linear(200, 80), _Dice(80), nn.Linear(80, 2))
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: Tensor,
        history_length: Tensor,
        category: Tensor | None = None,
        category_history: Tensor | None = None,
        category_history_length: Tensor | None = None,  # noqa: ARG002 (it comes with the feature, and equals the other)
    ) -> Tensor:
        """Logits [B, 2] for users [B], items [B] and histories [B, L] with their lengths [B].

        What lies beyond a length is padding. L may be 0, and so may any length: no history adds nothing. Categories
        are those of the items at the same places.
        """
        here = torch.arange(history.shape[-1], device=history.device) < history_length.unsqueeze(-1)
        target = self._vector(item, category)
        clicked = self._vector(history, category_history) * here.unsqueeze(-1)
        total = clicked.sum(-2)
        attended = self.attention(target, clicked, here)
        features = torch.cat([self.user(user), target, total, target * total, attended], dim=-1)
        logits: Tensor = self.tower(self.norm(features))
        return logits

    def _vector(self, item: Tensor, category: Tensor | None) -> Tensor:
        """An item's vector: its own, and beside it that of its category."""
        own: Tensor = self.item(item)
        return own if self.category is None else torch.cat([own, self.category(category)], dim=-1)


class _Attention(nn.Module):
    """Weighs the clicked items k by how they matter for the target q: a small network on [q, k, q-k, q*k]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = nn.Linear(4 * dim, 80)
        self.second = nn.Linear(80, 40)
        self.third = nn.Linear(40, 1)

    def forward(self, query: Tensor, keys: Tensor, here: Tensor) -> Tensor:
        """The weighted sum of the keys [B, L, D] that are `here` [B, L], for queries [B, D]."""
        hidden = self.second(torch.sigmoid(self._first_layer(query, keys)))
        scores = self.third(torch.sigmoid(hidden)).squeeze(-1)
        # The lowest finite score and not -inf, which would make a history without any item NaN.
        weights = scores.masked_fill(~here, torch.finfo(scores.dtype).min).softmax(-1) * here
        summed: Tensor = weights.unsqueeze(-2) @ keys
        return summed.squeeze(-2)

    def _first_layer(self, query: Tensor, keys: Tensor) -> Tensor:
        """The first layer on [q, k, q-k, q*k], without building these four for every position.

        With the kernel in four blocks it is q(Wq+Wd) + k(Wk-Wd) + (q*k)Wp = q(Wq+Wd) + k(Wk-Wd+diag(q)Wp),
        where the first term is one row per sample and the bracket one small matrix per sample: about a
        quarter of the products, and no [B, L, 4D] values to keep for the gradient.
        """
        of_query, of_key, of_difference, of_product = self.first.weight.t().chunk(4)
        constant = query @ (of_query + of_difference) + self.first.bias
        folded = of_key - of_difference + query.unsqueeze(-1) * of_product
        return constant.unsqueeze(-2) + keys @ folded


class _FrozenNorm(nn.Module):
    """Batch normalisation as the reference calls it, in inference mode from start to end.

    Its running mean and variance then stay 0 and 1 for ever, and a learned affine map of the inputs remains.
    """

    SCALE = (1 + 1e-3) ** -0.5

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight * self.SCALE) + self.bias


class _Dice(nn.Module):
    """DIN's activation: x with slope 1 or alpha on either side of a soft gate at the batch's mean.

    The statistics are those of the batch at hand in training and test alike, as in the reference; so there
    are no running buffers to exchange, and a prediction depends a little on its neighbours in the batch.
    """

    EPSILON = 1e-9

    def __init__(self, features: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        deviation = (centred.square().mean(0) + self.EPSILON).sqrt()
        gate = torch.sigmoid(centred / deviation)
        return x * (gate + self.alpha * (1 - gate))
