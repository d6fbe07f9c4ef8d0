"""The sentiment model of FedSubAvg (5.1): a trainable word table, a two-layer LSTM and one logit."""

from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.nn import LSTM


class SentimentLSTM(nn.Module):
    """The logit of a text from the state after its last word.

    Id 0 is padding, a row of the table that is never read. The table starts from word ``vectors`` [words, dim] if they
    are given, else from N(0, ``std``).
    """

    def __init__(
        self,
        words: int,
        dim: int = 25,
        hidden: int = 100,
        layers: int = 2,
        vectors: Tensor | None = None,
        std: float = 0.1,
    ) -> None:
        super().__init__()
        if vectors is not None and vectors.shape != (words, dim):
            raise UserError(
                f"SentimentLSTM: vectors have shape {tuple(vectors.shape)}, expected [words, dim] = [{words}, {dim}]; "
                "give one row for each id, the padding's included."
            )
        self.word = nn.Embedding(words, dim)
        self.lstm = LSTM(dim, hidden, layers)
        self.head = nn.Linear(hidden, 1)
        if vectors is None:
            nn.init.normal_(self.word.weight, std=std)
        else:
            self.word.weight.data.copy_(vectors)

    def forward(self, text: Tensor, text_length: Tensor) -> Tensor:
        """Logits [B] of texts [B, T] with their lengths [B]; an empty text has the logit of the zero state."""
        logits: Tensor = self.head(self.lstm.last(self.word(text), text_length))
        return logits.squeeze(-1)
