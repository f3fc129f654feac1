"""Loops have graphs inside, which a sample cannot hold: tests/ops/test_loop.py runs them."""

SAMPLES: list = []
