"""``local``: how does a client train?"""

from fedslice.local.apfl import APFL
from fedslice.local.base import Local
from fedslice.local.ditto import Ditto
from fedslice.local.fdrl import FDRL
from fedslice.local.fedbabu import FedBABU
from fedslice.local.feddyn import FedDyn
from fedslice.local.fedgen import FedGen
from fedslice.local.fedntd import FedNTD
from fedslice.local.fedrep import FedRep
from fedslice.local.moon import Moon
from fedslice.local.optimizers import SGD, Adagrad, Adam, AdamW, Optimizer
from fedslice.local.projected import Projected
from fedslice.local.prox import Prox
from fedslice.local.sampler import Batches, Sampler
from fedslice.local.scaffold import Scaffold
from fedslice.local.schedules import Cosine, Exponential, InverseTime, Schedule
from fedslice.local.term import Step, Term

__all__ = [
    "APFL",
    "FDRL",
    "PARTS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Batches",
    "Cosine",
    "Ditto",
    "Exponential",
    "FedBABU",
    "FedDyn",
    "FedGen",
    "FedNTD",
    "FedRep",
    "InverseTime",
    "Local",
    "Moon",
    "Optimizer",
    "Projected",
    "Prox",
    "Sampler",
    "Scaffold",
    "Schedule",
    "Step",
    "Term",
]

PARTS = (
    *(Local, Prox, Scaffold, Moon, FedDyn, FedGen, FedNTD, Projected, FDRL, FedRep, FedBABU, Ditto, APFL),
    *(SGD, Adam, AdamW, Adagrad),
    *(Exponential, InverseTime, Cosine),
    Sampler,
)
