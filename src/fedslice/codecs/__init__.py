"""``codec``: how do the values travel?"""

from fedslice.codecs.base import Codec
from fedslice.codecs.dense import Dense
from fedslice.codecs.fetchsgd import FetchSGD
from fedslice.codecs.lbgm import LBGM
from fedslice.codecs.quantize import Quantize
from fedslice.codecs.secagg import SecAgg
from fedslice.codecs.sign import Sign
from fedslice.codecs.stc import STC
from fedslice.codecs.subspace import StreamingSubspace
from fedslice.codecs.topk import TopK

__all__ = [
    "LBGM",
    "PARTS",
    "STC",
    "Codec",
    "Dense",
    "FetchSGD",
    "Quantize",
    "SecAgg",
    "Sign",
    "StreamingSubspace",
    "TopK",
]

PARTS = (Dense, Sign, TopK, STC, Quantize, FetchSGD, LBGM, StreamingSubspace, SecAgg)
