"""``slices``: which coordinates does a client hold and exchange?"""

from fedslice.slices.base import Slices
from fedslice.slices.channel_dropout import ChannelDropout
from fedslice.slices.rows import FeatureRows
from fedslice.slices.shared import Shared
from fedslice.slices.whole import Whole
from fedslice.slices.width import Width

__all__ = ["PARTS", "ChannelDropout", "FeatureRows", "Shared", "Slices", "Whole", "Width"]

PARTS = (Whole, FeatureRows, ChannelDropout, Width, Shared)
