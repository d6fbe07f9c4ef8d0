"""Federated learning in which a client and the server exchange a slice of the model."""

from fedslice.errors import UserError
from fedslice.experiment import Experiment
from fedslice.federation import Federation, Ragged
from fedslice.metrics import Metric
from fedslice.recipe import Recipe
from fedslice.task import Task

__all__ = ["Experiment", "Federation", "Metric", "Ragged", "Recipe", "Task", "UserError"]
