"""`python -m benchmarks privacy`: what it compares computes the same, and what it records becomes a table."""

import numpy as np

from benchmarks.privacy import LIMIT, measure, sessions, step, step_one_by_one
from benchmarks.tables import privacy_table
from ortrain import DifferentialPrivacy


def test_steps_one_by_one_clip_as_private_steps_do():
    _, plain, private, batch = sessions("text-cnn", 1)
    private.noise.settings = DifferentialPrivacy(0.0, LIMIT)
    with plain, private:
        step(private, batch)
        step_one_by_one(plain, batch)
        before, after = (session.to_buffer(trainable_only=True) for session in (plain, private))
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-7)


def test_a_measured_network_becomes_a_row_of_the_table():
    row = measure("mlp-mnist", 1, 0.0)
    assert row["private_ms"] > 0 and row["one_by_one_ms"] > 0 and row["private_mb"] > 0
    assert privacy_table({"networks": {"mlp-mnist": row | {"plain_ms": 2.0, "private_ms": 3.0}}}).splitlines()[2].startswith(
        "| mlp-mnist: dense layers | 64 | 2.00 | 3.00 | 1.50 |")
