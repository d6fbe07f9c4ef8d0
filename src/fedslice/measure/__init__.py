"""Measurements: what a model scores and what a task looks like."""

from fedslice.measure.scores import accuracy, auc

__all__ = ["accuracy", "auc"]
