"""Structure of a user's network."""
