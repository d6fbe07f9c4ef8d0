"""The commands, by what they are for: training, looking, and making the papers' exhibits anew."""

from fedslice.commands import clients, exhibit, features, look, train
from fedslice.commands.app import app

__all__ = ["app", "clients", "exhibit", "features", "look", "train"]
