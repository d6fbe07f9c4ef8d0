"""Measurements: what a model scores, what a task looks like, and how the papers' theory judges the two."""

from fedslice.measure.gradients import full_gradient, gradient_norms
from fedslice.measure.heat import describe, histogram
from fedslice.measure.scores import accuracy, auc

__all__ = ["accuracy", "auc", "describe", "full_gradient", "gradient_norms", "histogram"]
