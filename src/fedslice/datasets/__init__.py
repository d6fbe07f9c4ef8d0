"""Readers from official file layouts to numpy arrays; nothing is unpacked on disk, nothing unpickled."""
