"""The end of a run that went astray."""

from typing import NamedTuple


class Divergence(NamedTuple):
    """The end of a run that went astray: the evaluation from which on it was diverged, and its updates in all.

    An evaluation is diverged if a loss or a value of the model is not finite, or if more than half of the updates since
    the previous evaluation were rejected. A run has diverged if its last evaluation is; one that recovers has not.
    """

    round: int
    rejected: int
    updates: int
    finite: bool  # the loss and the model at the end

    def __str__(self) -> str:
        beside = "" if self.finite else ", and its loss or model is not finite"
        return f"diverged in round {self.round}: {self.rejected:,} of {self.updates:,} updates rejected{beside}"
