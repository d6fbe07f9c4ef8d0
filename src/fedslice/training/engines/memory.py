"""Memory that is freed stays with the process.

Every step of training frees its gradients and asks for as much again. glibc hands blocks of such a size back to the
system each time, and the system clears every page before it gives them out again: up to a tenth of a round.
"""

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of malloc.h
_LARGEST_ON_HEAP = 32 << 20  # more cannot be asked for
_FREE_AT_END = 1 << 30


@cache
def keep_freed() -> bool:
    """Tell the allocator, once and for the whole process, where it is glibc's; was it told?"""
    allocator = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return bool(allocator and allocator(_MMAP_THRESHOLD, _LARGEST_ON_HEAP) and allocator(_TRIM_THRESHOLD, _FREE_AT_END))
