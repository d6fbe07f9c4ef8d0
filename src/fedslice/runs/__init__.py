"""What a run leaves on disk: its configuration, its metrics, and a checkpoint from which it can go on."""
