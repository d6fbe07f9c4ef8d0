"""``local``: how does a client train?"""

from fedslice.local.feddc import FedDC
from fedslice.local.feddyn import FedDyn
from fedslice.local.fedgen import FedGen
from fedslice.local.fedntd import FedNTD
from fedslice.local.moon import Moon
from fedslice.local.prox import Prox
from fedslice.local.scaffold import Scaffold
from fedslice.local.sgd import SGD, Batches

__all__ = ["SGD", "Batches", "FedDC", "FedDyn", "FedGen", "FedNTD", "Moon", "Prox", "Scaffold"]
