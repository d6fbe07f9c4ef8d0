"""What we must know of a user's network."""
