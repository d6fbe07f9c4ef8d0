"""Sentiment of RentTheRunway's reviews: real texts of known users for the LSTM of FedSubAvg, section 5.1."""

from __future__ import annotations

from pathlib import Path

from fedslice.datasets import planted, renttherunway
from fedslice.task import Task
from fedslice.tasks.entry import Entry, data_folder
from fedslice.tasks.language import LanguageOptions, Size, build, generate, refuse

NEEDS = "the official JSON lines, or a part of them; nothing with source=generated"


class RentTheRunwayOptions(LanguageOptions):
    """``at_least`` is the number of rated reviews from which on a user is a client."""

    tokens: Size | None = 60
    at_least: Size = 10


def make(options: RentTheRunwayOptions, data: Path | None) -> Task:
    """Positive is a rating of 10; a generated set has the sizes of the real one's users with ten reviews or more."""
    if options.source == "generated":
        texts = generate("renttherunway", options, data, planted.RENTTHERUNWAY)
        about = f"generated like RentTheRunway (data_seed {options.data_seed}), {len(texts.label):,} reviews"
    else:
        refuse("renttherunway", options, ("scale",), "source=official")
        reviews = renttherunway.read(data_folder("renttherunway", data, NEEDS), options.at_least, options.tokens)
        texts = reviews.texts
        about = f"RentTheRunway, {len(texts.label):,} reviews ({reviews.unrated:,} without a rating left out)"
    users = f"{texts.users:,} users with at least {options.at_least}"
    return build("renttherunway", options, texts, f"{about} of {users}")


ENTRY = Entry(
    name="renttherunway",
    about="sentiment of reviews, two-layer LSTM on trained word vectors",
    needs=NEEDS,
    options=RentTheRunwayOptions,
    make=make,
    needs_data=True,
    rounds=1000,
    settings={"cohort": 50, "lr": 0.1, "batch_size": 5},
)
