"""What a run leaves on disk: its configuration, its metrics, and a checkpoint from which it can go on."""

from fedslice.runs.directory import RunDirectory

__all__ = ["RunDirectory"]
