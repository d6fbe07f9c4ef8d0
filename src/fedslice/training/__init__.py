"""The two parties of a run, the rounds between them, and what watches these."""
