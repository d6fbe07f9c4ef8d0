"""The language race: 50 clients, 10 steps of batch 5, 30 tokens, a two-layer LSTM over a table of 37,000 words."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.models import SentimentLSTM
from fedslice.task import Task
from fedslice.tasks.hotcold import zipf_ranks

CLIENTS, SAMPLES, TOKENS, WORDS = 200, 40, 30, 37_000


class TorchLSTM(nn.Module):
    """What one would write by hand: `torch.nn.LSTM` over `nn.Embedding`, without packing, for all texts are as long."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, 25)
        self.lstm = nn.LSTM(25, 100, 2, batch_first=True)
        self.head = nn.Linear(100, 1)

    def forward(self, text: Tensor, text_length: Tensor) -> Tensor:  # noqa: ARG002
        states, _ = self.lstm(self.word(text))
        logits: Tensor = self.head(states[:, -1])
        return logits.squeeze(-1)


def task(plain: bool) -> Task:
    """Texts of 30 words by Zipf's law, for the plain loop's model or the library's; parameters have the same names."""
    draw = np.random.default_rng(0)
    count = CLIENTS * SAMPLES
    words = 1 + zipf_ranks(draw.random(count * TOKENS), WORDS - 1, 1.0)
    text = Ragged.from_lists(words.reshape(count, TOKENS).tolist())
    features: dict[str, Any] = {"text": text}
    federation = Federation.from_arrays(
        client=np.repeat(np.arange(CLIENTS), SAMPLES),
        features=features,
        label=draw.integers(0, 2, count).astype(np.float32),
        test=0.0,
    )
    torch.manual_seed(0)
    model = TorchLSTM if plain else lambda: SentimentLSTM(WORDS)
    return Task(federation, model, nn.BCEWithLogitsLoss(reduction="none"), tables={"word.weight": "text"}, name="lstm")
