"""Shared by the sentiment tasks: options, word vectors and the two-layer LSTM (FedSubAvg, section 5.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.datasets import planted, text
from fedslice.measure import accuracy, auc
from fedslice.models import SentimentLSTM
from fedslice.task import Task
from fedslice.tasks.entry import Options, Seed

DIM = 25

Size = Annotated[int, Field(ge=1, le=10**9)]


class LanguageOptions(Options):
    """``source=generated`` needs no data; ``tokens`` is the number of words after which a text is cut."""

    source: Literal["official", "generated"] = "official"
    tokens: Size | None = None
    glove: str | None = None  # file of GloVe vectors to start from, 25 numbers a word
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1  # of the words' initial vectors without GloVe
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of the users to generate
    data_seed: Seed = 0  # of the split, and of what is generated


def generate(name: str, options: LanguageOptions, data: Path | None, shape: planted.Shape) -> text.Texts:
    """Texts of that shape; options that concern real texts are refused."""
    if data is not None:
        raise UserError(
            f"task {name!r} is generated with source=generated, so --data {data} has no place in it; "
            "leave one of them out."
        )
    refuse(name, options, ("glove", "at_least"), "source=generated")
    return planted.generate(shape.scaled(options.scale), options.data_seed, options.tokens).texts


def refuse(name: str, options: LanguageOptions, names: tuple[str, ...], company: str) -> None:
    """Options that were set and would do nothing beside another one."""
    for option, field in type(options).model_fields.items():
        if option in names and (value := getattr(options, option)) != field.default:
            raise UserError(f"task {name!r}: {option}={value} does nothing with {company}; leave one of them out.")


def build(name: str, options: LanguageOptions, texts: text.Texts, about: str) -> Task:
    """The words of a text through the LSTM to one logit; 20% of the samples are held out."""
    vectors: Tensor | None = None
    start = f"N(0, {options.std:g})"
    if options.glove is not None:
        refuse(name, options, ("std",), "glove")
        table, seen = text.glove(Path(options.glove), texts.words, DIM)
        vectors = torch.from_numpy(table)
        start = f"GloVe {DIM}d for {seen:,} of them, zero for the others"
    cut = "uncut" if options.tokens is None else f"cut after {options.tokens} words"
    federation = Federation.from_arrays(
        client=texts.user,
        features={"text": Ragged(torch.from_numpy(texts.tokens), torch.from_numpy(texts.offsets))},
        label=texts.label.astype(np.float32),
        test=0.2,
        seed=options.data_seed,
    )
    return Task(
        federation,
        lambda: SentimentLSTM(len(texts.words) + 1, DIM, vectors=vectors, std=options.std),  # one more for padding
        nn.BCEWithLogitsLoss(reduction="none"),
        tables={"word.weight": "text"},
        metrics={"auc": auc, "accuracy": accuracy},
        name=name,
        source=f"{about}, {cut}, {len(texts.words):,} words that start from {start}",
    )
