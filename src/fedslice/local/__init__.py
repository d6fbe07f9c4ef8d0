"""``local``: how does a client train?"""

from fedslice.local.prox import Prox
from fedslice.local.scaffold import Scaffold
from fedslice.local.sgd import SGD, Batches

__all__ = ["SGD", "Batches", "Prox", "Scaffold"]
