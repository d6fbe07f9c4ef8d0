"""``codec``: how do the values travel?"""

from fedslice.codecs.base import Codec
from fedslice.codecs.dense import Dense
from fedslice.codecs.subspace import StreamingSubspace

__all__ = ["Codec", "Dense", "StreamingSubspace"]
