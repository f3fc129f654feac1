"""Peers of the comparison: one script per runtime, run in an environment of its own without ortrain."""
