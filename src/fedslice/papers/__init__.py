"""The papers' tables and figures, made again: settings as data, runs in parallel, and a verdict for every number."""

from fedslice.papers.files import names
from fedslice.papers.make import failures, reproduce
from fedslice.papers.show import markdown, tables

__all__ = ["failures", "markdown", "names", "reproduce", "tables"]
