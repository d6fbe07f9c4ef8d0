"""Sums, row sets and counts that the server learns without seeing any client's own.

Everything here is state and arithmetic without input or output: whoever carries the messages decides when. Randomness
that hides something comes from the client alone: from the operating system, or from a seed that the server does not
know.
"""
