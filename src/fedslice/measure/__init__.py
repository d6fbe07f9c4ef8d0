"""Measurements: what a model scores, what a task looks like, and how the papers' theory judges the two."""

from fedslice.measure.gradients import full_gradient, gradient_norms
from fedslice.measure.heat import describe, histogram
from fedslice.measure.scores import accuracy, auc, mae, rmse
from fedslice.metrics import Metric

__all__ = [
    "Metric",
    "accuracy",
    "auc",
    "describe",
    "full_gradient",
    "gradient_norms",
    "histogram",
    "mae",
    "rmse",
]
