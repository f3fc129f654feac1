"""Control flow has graphs inside, which a sample cannot hold: tests/ops/test_control.py runs it."""

SAMPLES: list = []
