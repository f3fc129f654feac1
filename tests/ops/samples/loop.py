"""No samples: loops contain graphs, which samples do not support. tests/ops/test_loop.py tests them."""

SAMPLES: list = []
