"""Samples of attention as ONNX defines it."""

import numpy as np
import onnx.reference
from onnx import helper

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(31)
N, S, T, HEADS, SHARED, SIZE, WIDTH = 2, 4, 6, 4, 2, 3, 5


def split(keys=T, shared=HEADS, rows=S):
    """Return random queries, keys and values split into heads."""
    return [rng.standard_normal(shape) for shape in ((N, HEADS, rows, SIZE), (N, shared, keys, SIZE), (N, shared, keys, WIDTH))]


def joined(shared=HEADS):
    return [x.swapaxes(1, 2).reshape(N, x.shape[2], -1) for x in split(shared=shared)]


def all_outputs(attributes, opset):
    """Return an oracle of outputs 0 to 2 by ONNX's reference implementation."""

    def run(*arrays):
        names = [f"x{i}" if array is not None else "" for i, array in enumerate(arrays)]
        given = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
        kinds = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in given.items()]
        graph = helper.make_graph([helper.make_node("Attention", names, ["y", "k", "v"], **attributes)], "g", kinds,
                                  [helper.make_tensor_value_info(name, 1, None) for name in "ykv"])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        return tuple(onnx.reference.ReferenceEvaluator(model).run(None, given))

    return run


def sample(label, inputs, opset=23, outputs=1, constants=(), **attributes):
    oracle = by_reference("Attention", attributes, opset) if outputs == 1 else all_outputs(attributes, opset)
    return Sample("Attention", inputs, oracle, attributes, "", outputs, opset, gradient=outputs == 1, constants=constants, label=label)


BOOL = rng.random((N, 1, S, T)) < 0.6
BLIND = BOOL & (np.arange(S)[:, None] != 2)                       # a query that sees no key
FLOAT = rng.standard_normal((HEADS, S, T))
HIDDEN = np.where(rng.random((S, T)) < 0.4, -np.inf, FLOAT[0])
HIDDEN[1] = -np.inf
LENGTHS = np.array([3, 6], np.int64)
PAST = rng.standard_normal((N, HEADS, 3, SIZE)), rng.standard_normal((N, HEADS, 3, WIDTH))
SHARED_HEADS = {"q_num_heads": HEADS, "kv_num_heads": SHARED}
SAMPLES = [
    sample("split", split()), sample("joined", joined(), q_num_heads=HEADS, kv_num_heads=HEADS), sample("scale", split(), scale=0.25),
    sample("shared-heads", split(shared=SHARED)), sample("shared-heads-joined", joined(SHARED), **SHARED_HEADS), sample("one-head-of-keys", split(shared=1)),
    sample("causal", split(), is_causal=1), sample("causal-square", split(S), is_causal=1), sample("causal-more-queries", split(S, rows=T), is_causal=1),
    sample("bool", [*split(), BOOL]), sample("blind", [*split(), BLIND]), sample("blind-joined", [*joined(SHARED), BLIND], **SHARED_HEADS),
    sample("constant", [*split(), BOOL[0, 0]], constants=(3,)), sample("numbers", [*split(), FLOAT]), sample("infinite", [*split(), HIDDEN]),
    sample("bool-causal", [*split(), BLIND], is_causal=1), sample("infinite-causal", [*split(), HIDDEN], is_causal=1),
    sample("short-mask", [*split(), BOOL[..., :4]]), sample("short-numbers", [*split(), FLOAT[..., :1]], is_causal=1), sample("softcap", split(), softcap=2.0),
    sample("softcap-mask", [*split(), BLIND], softcap=2.0), sample("past", [*split(), None, *PAST], outputs=3, is_causal=1),
    sample("past-mask", [*split(), rng.random((S, T + 3)) < 0.6, *PAST], outputs=3), sample("past-gradient", [*split(), None, *PAST], is_causal=1),
    sample("present", split(), outputs=3), sample("softmax-precision", split(), softmax_precision=11),
    sample("lengths", [*split(), None, None, None, LENGTHS], 24), sample("lengths-causal", [*split(), None, None, None, LENGTHS], 24, is_causal=1),
    sample("lengths-mask", [*split(), BOOL, None, None, LENGTHS], 24, is_causal=1), sample("window", split(), 25, left_window_size=2),
    sample("window-blind", split(3, rows=7), 25, left_window_size=1), sample("window-right", split(), 25, left_window_size=1, right_window_size=1),
    sample("window-causal", split(), 25, left_window_size=2, right_window_size=3, is_causal=1),
    sample("window-past", [*split(), None, *PAST], 25, left_window_size=2), sample("window-lengths", [*split(), None, None, None, LENGTHS], 25, left_window_size=1),
]
REFUSALS = [
    Refusal("Attention", [x[0] for x in split()], opset=23), Refusal("Attention", split()[:2] + [split()[2][0]], opset=23), Refusal("Attention", joined(), opset=23),
    Refusal("Attention", split(shared=3), opset=23), Refusal("Attention", joined(), {"q_num_heads": 4, "kv_num_heads": 5}, opset=23),
    Refusal("Attention", [*split(), rng.random((S, T + 1)) < 0.5], opset=23), Refusal("Attention", [*split(), rng.random((S + 1, T)) < 0.5], opset=23),
    Refusal("Attention", [*split(), np.ones((S, T), np.int32)], opset=23), Refusal("Attention", [*split(), None, PAST[0]], opset=23),
    Refusal("Attention", [*split(), None, *PAST, LENGTHS], opset=24),
]
