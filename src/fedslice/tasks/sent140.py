"""Sentiment of tweets, Sentiment140, with an LSTM (FedSubAvg, section 5.1)."""

from __future__ import annotations

from pathlib import Path

from fedslice.datasets import planted, sent140
from fedslice.task import Task
from fedslice.tasks.entry import Entry, data_folder
from fedslice.tasks.language import LanguageOptions, build, generate, refuse

NEEDS = "the official training CSV or its zip; nothing with source=generated"


def make(options: LanguageOptions, data: Path | None) -> Task:
    """Users with more than 40 tweets; a generated set has the paper's numbers of clients, samples and heat."""
    if options.source == "generated":
        texts = generate("sent140", options, data, planted.SENT140)
        about = f"generated like Sentiment140 (data_seed {options.data_seed}), {len(texts.label):,} tweets"
    else:
        refuse("sent140", options, ("scale",), "source=official")
        texts = sent140.read(data_folder("sent140", data, NEEDS), options.tokens)
        about = f"Sentiment140, {len(texts.label):,} tweets"
    return build("sent140", options, texts, f"{about} of {texts.users:,} users with more than {sent140.MORE_THAN}")


ENTRY = Entry(
    name="sent140",
    about="sentiment of tweets, two-layer LSTM on trained word vectors",
    needs=NEEDS,
    options=LanguageOptions,
    make=make,
    needs_data=True,
    rounds=1000,
    settings={"cohort": 50, "lr": 0.1, "batch_size": 5},
)
