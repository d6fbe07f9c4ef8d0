"""The text network of FLSS: fastText (Joulin et al., 2016), a mean of word vectors and two linear layers."""

import torch
from torch import Tensor, nn


class FastText(nn.Module):
    """Class logits of a text from the mean of its words' vectors.

    Id 0 is padding, a row of the table that is never read: the mean is that of a text's own words, however far its
    batch is filled up.
    """

    def __init__(self, words: int, classes: int, dim: int = 512) -> None:
        super().__init__()
        self.word = nn.Embedding(words, dim)
        self.hidden = nn.Linear(dim, dim)
        self.classes = nn.Linear(dim, classes)

    def forward(self, text: Tensor, text_length: Tensor) -> Tensor:
        """Logits [B, classes] of texts [B, T] with their lengths [B]; an empty text has those of the zero vector."""
        own = torch.arange(text.shape[-1], device=text.device) < text_length[..., None]
        share = own / text_length.clamp(min=1)[..., None]  # a product sums without a masked copy of all vectors
        mean = (share[..., None, :] @ self.word(text)).squeeze(-2)
        logits: Tensor = self.classes(self.hidden(mean))
        return logits
