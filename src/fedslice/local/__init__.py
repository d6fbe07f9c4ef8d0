"""``local``: how does a client train?"""

from fedslice.local.apfl import APFL
from fedslice.local.ditto import Ditto
from fedslice.local.fdrl import FDRL
from fedslice.local.fedbabu import FedBABU
from fedslice.local.feddc import FedDC
from fedslice.local.feddyn import FedDyn
from fedslice.local.fedgen import FedGen
from fedslice.local.fedntd import FedNTD
from fedslice.local.fedrep import FedRep
from fedslice.local.moon import Moon
from fedslice.local.projected import Projected
from fedslice.local.prox import Prox
from fedslice.local.scaffold import Scaffold
from fedslice.local.sgd import SGD, Batches

__all__ = [
    "APFL",
    "FDRL",
    "PARTS",
    "SGD",
    "Batches",
    "Ditto",
    "FedBABU",
    "FedDC",
    "FedDyn",
    "FedGen",
    "FedNTD",
    "FedRep",
    "Moon",
    "Projected",
    "Prox",
    "Scaffold",
]

PARTS = (SGD, Prox, Scaffold, Moon, FedDyn, FedDC, FedGen, FedNTD, Projected, FDRL, FedRep, FedBABU, Ditto, APFL)
