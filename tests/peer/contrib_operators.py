"""Comparison of operators of com.microsoft and of recurrent layers with onnxruntime. Run by `make peer` only."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.ops.harness import cast, run_kernel
from tests.ops.samples import Sample, recurrent
from tests.ops.samples.contrib import quantized, transformer

MICROSOFT = "com.microsoft"
ABSENT = {"SimplifiedLayerNormalizationGrad", "FakeQuant", "FakeQuantGrad", "BiasSoftmax"}
"""Not in builds without training, or not on CPUs."""
NEEDS_TWO_OUTPUTS = {("EmbedLayerNormalization", ""), ("Attention", "past-gradient")}
"""Samples with one output that onnxruntime wants two of."""
OTHER_DEFAULTS = {"Affine", "ScaledTanh", "ThresholdedRelu"}
"""Activations whose alpha and beta are 0 there when left out. It has no layout 1."""


def model_of(sample: Sample, arrays) -> onnx.ModelProto:
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(arrays)]
    kinds = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
             for name, array in zip(names, arrays, strict=True) if array is not None and int(name[1:]) not in sample.constants]
    outputs = [f"y{i}" for i in range(max(sample.outputs, 2 if (sample.op_type, sample.label) in NEEDS_TWO_OUTPUTS else 1))]
    initializers = [onnx.numpy_helper.from_array(arrays[i], names[i]) for i in sample.constants]
    graph = helper.make_graph([helper.make_node(sample.op_type, names, outputs, domain=sample.domain, **sample.attributes)], "g", kinds,
                              [onnx.ValueInfoProto(name=name) for name in outputs], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)], ir_version=8)


def only_standard_attributes(sample: Sample) -> bool:
    """Whether ONNX knows every attribute. Plans of ortrain add some of their own."""
    return sample.attributes.keys() <= onnx.defs.get_schema(sample.op_type, sample.opset).attributes.keys()


def all_samples():
    for family in (transformer, quantized):
        for number, sample in enumerate(family.SAMPLES):
            if sample.op_type in ABSENT:
                continue
            if sample.domain == MICROSOFT or sample.op_type.startswith("Simplified"):
                yield pytest.param(sample, id=f"{sample.op_type}-{number}-{sample.label}")
    for number, sample in enumerate(recurrent.SAMPLES):
        if sample.op_type not in ("LSTM", "GRU", "RNN") or "layout" in sample.attributes or sample.label in OTHER_DEFAULTS:
            continue
        if only_standard_attributes(sample):
            yield pytest.param(sample, id=f"{sample.op_type}-{number}-{sample.label}")


@pytest.mark.parametrize("sample", list(all_samples()))
def test_an_operator_computes_what_onnxruntime_computes(sample):
    arrays = cast(sample, "float32")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model_of(sample, arrays).SerializeToString(), options)
    wanted = session.run(None, {value.name: arrays[int(value.name[1:])] for value in session.get_inputs()})
    for index, (mine, theirs) in enumerate(zip(run_kernel(sample, "float32"), wanted, strict=False)):
        # its second and third outputs are not written there
        if sample.op_type != "SkipSimplifiedLayerNormalization" or index in (0, 3):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(theirs).max()))
