"""``combine``: how does the server merge?"""

from fedslice.combine.accumulator import Accumulator
from fedslice.combine.base import Combine
from fedslice.combine.coverage import Coverage
from fedslice.combine.heat import HeatCorrected
from fedslice.combine.mean import Mean

__all__ = ["PARTS", "Accumulator", "Combine", "Coverage", "HeatCorrected", "Mean"]

PARTS = (Mean, HeatCorrected, Coverage)
