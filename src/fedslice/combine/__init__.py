"""``combine``: how does the server merge?"""

from fedslice.combine.accumulator import Accumulator
from fedslice.combine.base import Combine, Total, Weighted
from fedslice.combine.coverage import Coverage
from fedslice.combine.heat import HeatCorrected
from fedslice.combine.mean import Mean
from fedslice.combine.robust import Median, Robust, TrimmedMean

__all__ = [
    "PARTS",
    "Accumulator",
    "Combine",
    "Coverage",
    "HeatCorrected",
    "Mean",
    "Median",
    "Robust",
    "Total",
    "TrimmedMean",
    "Weighted",
]

PARTS = (Mean, HeatCorrected, Coverage, Median, TrimmedMean)
