"""Runs as one HTML page that opens offline, and its charts as pictures."""

from fedslice.report.figures import save
from fedslice.report.page import write

__all__ = ["save", "write"]
