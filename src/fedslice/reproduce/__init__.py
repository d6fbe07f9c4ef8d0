"""The papers' tables and figures, made anew: settings as data, runs in parallel, and a verdict for every number."""

from fedslice.reproduce.files import names
from fedslice.reproduce.make import failures, reproduce
from fedslice.reproduce.show import markdown, tables

__all__ = ["failures", "markdown", "names", "reproduce", "tables"]
