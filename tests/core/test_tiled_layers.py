"""Recurrent layers, attention and 1 x 1 convolutions on AMX tiles: as in float32 but for rounded operands, with the same bits for any number of workers."""

import numpy as np
import pytest

from tests.core.test_convolution import has_amx
from tests.ops.harness import run_kernel
from tests.ops.samples import Sample, channels_last, planes
from tests.ops.samples.fused_attention import attend

pytestmark = has_amx
rng = np.random.default_rng(31)
ROUNDING = 2.0**-8


def attention(rows, keys, size):
    """Return samples of attention with several heads, and of its gradient."""
    q, k, v, dy = (rng.standard_normal((2, count, 3, size)) for count in (rows, keys, keys, rows))
    own, given = {"scale": 0.5}, (q / 3, k, v)
    yield Sample("Attention", [*given], None, own, "ortrain")
    yield Sample("AttentionGrad", [dy, *given, None, *attend(*given)], None, own, "ortrain", outputs=3)


def layer(kind, gates, hidden, inputs=20, rows=21, steps=4):
    """Return a sample of a recurrent layer in both directions."""
    shapes = (steps, rows, inputs), (2, gates * hidden, inputs), (2, gates * hidden, hidden)
    return Sample(kind, [rng.uniform(-0.4, 0.4, shape) for shape in shapes], None, {"hidden_size": hidden, "direction": "bidirectional"}, outputs=2)


def pointwise(operators, x, w, **attributes):
    """Return samples of a 1 x 1 convolution and of its gradients. operators: the module with samples of them."""
    return [operators.forward("", x, w, attributes), operators.backward("", x, w, attributes)]


POINTWISE = [*pointwise(planes, (2, 96, 35, 33), (64, 96, 1, 1)), *pointwise(planes, (3, 30, 20, 21), (17, 30, 1, 1)),
             *pointwise(channels_last, (4, 30, 31, 25), (40, 25, 1, 1)), *pointwise(channels_last, (5, 60, 60, 48), (12, 48, 1, 1), strides=(2, 2)),
             *pointwise(channels_last, (4, 48, 48, 64), (96, 64, 1, 1))]
SAMPLES = [*POINTWISE, *(sample for sizes in ((70, 70, 32), (129, 65, 40), (300, 310, 24)) for sample in attention(*sizes)),
           *(layer(kind, gates, hidden) for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)) for hidden in (5, 33, 64))]


def label(sample):
    return f"{sample.op_type} {sample.inputs[0].shape} {sample.inputs[1].shape}"


@pytest.mark.parametrize("sample", SAMPLES, ids=label)
def test_layers_on_tiles_round_their_operands_only(sample):
    found = [run_kernel(sample, "float32", workers, tiles=True, precision="bfloat16") for workers in (1, 2, 3)]
    exact = run_kernel(sample, "float64")
    assert any(not np.array_equal(x, y) for x, y in zip(found[0], run_kernel(sample, "float32"), strict=True)), "not computed in bfloat16"
    for output, expected in enumerate(exact):
        np.testing.assert_allclose(found[0][output], expected, atol=4 * ROUNDING * np.abs(expected).max())
        for others in found[1:]:
            np.testing.assert_array_equal(found[0][output], others[output])
