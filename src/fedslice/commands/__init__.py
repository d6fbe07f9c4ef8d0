"""The commands, by what they are for: training, looking, and making the papers' exhibits anew."""

from fedslice.commands import exhibit, look, train
from fedslice.commands.app import app

__all__ = ["app", "exhibit", "look", "train"]
