"""Kinds of news, AG News, with fastText (FLSS, 4.1), or generated articles like them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import torch
from pydantic import Field
from torch import nn

from fedslice.data.federation import Federation
from fedslice.data.ragged import Ragged
from fedslice.datasets import agnews, headlines
from fedslice.measure import accuracy
from fedslice.models import FastText
from fedslice.task import Task
from fedslice.tasks.entry import Entry, data_folder
from fedslice.tasks.images import S4_SETTINGS
from fedslice.tasks.spread import Size, SpreadOptions, check, counts, generated, spread

NEEDS = "train.csv and test.csv, plain or .gz"
SAMPLES = (120_000, 7_600)


class AgNewsOptions(SpreadOptions):
    """The sizes are those of PFLlib; ``words`` counts the padding and the row of unknown words."""

    clients: Size = 20
    tokens: Size = 200  # after which a text is cut
    words: Annotated[int, Field(ge=3, le=10**7)] = 32_000  # rows of the table at most
    dim: Size = 512


def make(options: AgNewsOptions, data: Path | None) -> Task:
    """Articles spread over clients; the vocabulary is that of the articles that are trained on."""
    check("agnews", options)
    if generated("agnews", options, data):
        trains, tests = counts(options, SAMPLES)
        parts = [headlines.generate(trains, options.data_seed, tests), headlines.generate(tests, options.data_seed)]
        source = f"generated in the shape of AG News (data_seed {options.data_seed})"
    else:
        news = agnews.read(data_folder("agnews", data, NEEDS))
        parts, trains = [news.train, news.test], len(news.train)
        source = "AG News" if news.whole else "AG News with a part of its training articles"
    label = np.concatenate([part.label for part in parts])
    dealt = spread("agnews", options, label, trains, "articles")
    words = pl.concat([part.words for part in parts])[dealt.index]
    texts = agnews.number(words, ~dealt.test, options.tokens, options.words)
    federation = Federation.from_arrays(
        client=dealt.owner,
        features={"text": Ragged(torch.from_numpy(texts.tokens), torch.from_numpy(texts.offsets))},
        label=label[dealt.index],
        test=dealt.test,
    )
    return Task(
        federation,
        lambda: FastText(texts.rows, agnews.CLASSES, options.dim),
        nn.CrossEntropyLoss(reduction="none"),
        tables={"word.weight": "text"},
        metrics={"accuracy": accuracy},
        name="agnews",
        source=f"{source}, {dealt.about}, cut after {options.tokens} words, table of {texts.rows:,} words, "
        "model fasttext",
        eval_batch=500,  # a text of 200 words takes 0.4 MB of word vectors
    )


ENTRY = Entry(
    name="agnews",
    about="kinds of news, fastText on trained word vectors",
    needs=f"nothing: it is generated, or {NEEDS}",
    options=AgNewsOptions,
    make=make,
    rounds=400,
    settings=S4_SETTINGS,
)
