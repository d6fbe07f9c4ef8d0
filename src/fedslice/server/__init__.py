"""``server``: what does the server do with the merged update?"""

from fedslice.server.adaptive import ServerAdagrad, ServerAdam, ServerYogi
from fedslice.server.approx import ScaffoldApprox
from fedslice.server.base import Averaging, ServerOptimizer
from fedslice.server.drift import Drift
from fedslice.server.momentum import ServerMomentum
from fedslice.server.sgd import ServerSGD

__all__ = [
    "PARTS",
    "Averaging",
    "Drift",
    "ScaffoldApprox",
    "ServerAdagrad",
    "ServerAdam",
    "ServerMomentum",
    "ServerOptimizer",
    "ServerSGD",
    "ServerYogi",
]

PARTS = (ServerSGD, ServerMomentum, ServerAdagrad, ServerAdam, ServerYogi, ScaffoldApprox, Drift)
