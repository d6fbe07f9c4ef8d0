"""``combine``: how does the server merge?"""

from fedslice.combine.base import Combine
from fedslice.combine.coverage import Coverage
from fedslice.combine.heat import HeatCorrected
from fedslice.combine.mean import Mean
from fedslice.combine.total import Total

__all__ = ["Combine", "Coverage", "HeatCorrected", "Mean", "Total"]
