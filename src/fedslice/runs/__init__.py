"""Run directories: configuration, metrics, and a checkpoint from which a run continues."""
