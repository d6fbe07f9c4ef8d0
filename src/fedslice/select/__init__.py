"""``select``: who takes part this round?"""

from fedslice.select.base import Cohort, Select
from fedslice.select.everyone import Everyone
from fedslice.select.pooled import Pooled
from fedslice.select.uniform import Uniform

__all__ = ["Cohort", "Everyone", "Pooled", "Select", "Uniform"]
