"""``select``: who takes part this round?"""

from fedslice.select.base import Cohort, Select
from fedslice.select.everyone import Everyone
from fedslice.select.fedcs import FedCS
from fedslice.select.oort import Oort
from fedslice.select.pooled import Pooled
from fedslice.select.uniform import Uniform

__all__ = ["PARTS", "Cohort", "Everyone", "FedCS", "Oort", "Pooled", "Select", "Uniform"]

PARTS = (Uniform, Everyone, FedCS, Oort, Pooled)
