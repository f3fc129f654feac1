"""No samples: control flow operators contain graphs, which samples do not support. tests/ops/test_control.py tests them."""

SAMPLES: list = []
