"""``server``: what does the server do with the merged update?"""

from fedslice.server.adaptive import Adagrad, Adam, Yogi
from fedslice.server.approx import ScaffoldApprox
from fedslice.server.base import Averaging, Server
from fedslice.server.drift import Drift
from fedslice.server.momentum import Momentum
from fedslice.server.sgd import ServerSGD

__all__ = ["Adagrad", "Adam", "Averaging", "Drift", "Momentum", "ScaffoldApprox", "Server", "ServerSGD", "Yogi"]
