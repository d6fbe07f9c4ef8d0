"""Clients' samples: where they come from, who has which, and which rows of a table they name."""
