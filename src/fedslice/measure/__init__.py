"""Measurements: what a model scores, what a task looks like, and how the papers' theory judges the two."""

from fedslice.measure.gradients import full_gradient, gradient_norms
from fedslice.measure.heat import describe, histogram
from fedslice.metrics import Metric, accuracy, auc, mae, rmse

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
