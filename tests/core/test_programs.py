"""Limits of programs: number of axes and element types."""

import numpy as np
import pytest
from onnx import helper

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain._core.program_builder import MAX_AXES, ProgramBuilder
from ortrain.errors import MissingKernelError, OrtrainError
from ortrain.runtime.inference_session import InferenceSession


def transposing_session(axes):
    """Return a session whose output is x with its axes reversed."""
    kinds = [helper.make_tensor_value_info(name, 1, [2] * axes) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["y"])], "transpose", kinds[:1], kinds[1:])
    return InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_tensors_have_at_most_max_axes():
    x = np.arange(2.0**MAX_AXES, dtype=np.float32).reshape((2,) * MAX_AXES)
    np.testing.assert_array_equal(transposing_session(MAX_AXES).run(None, {"x": x})[0], x.transpose())
    with pytest.raises(MissingKernelError, match=f"at most {MAX_AXES} axes.*'x'"):
        transposing_session(MAX_AXES + 1).run(None, {"x": x[..., None].repeat(2, -1)})


def test_the_core_rejects_tensors_with_too_many_axes():
    with pytest.raises(ValueError, match="at most 8 axes, got 9"):
        ProgramBuilder(EngineHandle()).add_tensor("float32", (1,) * 9)
    with pytest.raises(ValueError, match="at most 8 axes, got 9"):
        call_kernel(kernels()["relu", "float32"], [np.zeros((1,) * 9, np.float32)], [np.zeros((1,) * 9, np.float32)])


OTHERS = ("int16", "uint16", "uint32", "uint64", "complex64", "complex128")
"""Element types without compiled kernels; a node may still have a first input of a type with kernels."""


def output_of(op_type, inputs, dtype, **attributes):
    """Run a single node and return its output of the given dtype."""
    element, names = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [f"x{i}" for i in range(len(inputs))]
    kinds = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in zip(names, inputs, strict=True)]
    graph = helper.make_graph([helper.make_node(op_type, names, ["y"], **attributes)], "g", kinds, [helper.make_tensor_value_info("y", element, None)])
    session = InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


@pytest.mark.parametrize("dtype", OTHERS)
def test_a_kernel_is_used_only_for_its_element_types(dtype):
    x = np.arange(21).reshape(3, 7).astype(dtype)
    condition = x.real % 2 == 0
    np.testing.assert_array_equal(output_of("Where", [condition, x, x[::-1].copy()], dtype), np.where(condition, x, x[::-1]))
    one_hot = output_of("OneHot", [np.array([0, 2, 1]), np.array(3), x[0, 4:6].copy()], dtype)
    np.testing.assert_array_equal(one_hot, np.where(np.eye(3)[[0, 2, 1]] == 1, x[0, 5], x[0, 4]))


@pytest.mark.parametrize("dtype", [dtype for dtype in OTHERS if not dtype.startswith("complex")])
def test_large_constants_and_casts_have_the_requested_element_type(dtype):
    value = helper.make_tensor("value", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [1], [7])
    y = output_of("ConstantOfShape", [np.array([300, 400])], dtype, value=value)
    assert y.dtype == dtype and y.shape == (300, 400) and (y == 7).all()
    x = np.arange(12.0, dtype=np.float32)
    np.testing.assert_array_equal(output_of("Cast", [x], dtype, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), x.astype(dtype))


def test_mixed_float_types_do_not_reach_kernels():
    """BatchNormalization allows mixed types, which the reference implementation computes; a kernel would read past the end of narrower tensors."""
    x, narrow = np.random.default_rng(0).normal(size=(2, 3, 4)), np.ones(3, np.float32)
    y = output_of("BatchNormalization", [x, np.ones(3), np.ones(3), narrow, narrow], "float64", epsilon=0.0)
    np.testing.assert_allclose(y, x)


X, W, C = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32), np.ones(2, np.float32)
IMAGE, CHANNELS = np.ones((2, 3, 4, 4), np.float32), np.ones(3, np.float32)
INDICES = np.array([[0], [2]])
MIXED_TYPES = [
    ("Gemm", [X, W, C], 2, "int8", {}), ("Gemm", [X, W, C], 1, "uint8", {}), ("Add", [X, X], 1, "bool", {}), ("Concat", [X, X], 1, "int32", {"axis": 0}),
    ("BatchNormalization", [IMAGE, *[CHANNELS] * 4], 3, "int8", {}), ("Conv", [IMAGE, IMAGE], 1, "int8", {}),
    ("ScatterND", [X, INDICES, X[:2]], 2, "int8", {}), ("ScatterND", [X, INDICES, X[:2]], 1, "float64", {}), ("Gather", [X, INDICES], 1, "float32", {}),
    ("Pad", [X, np.array([1, 1, 1, 1]), np.array(0, np.float32)], 2, "bool", {}),
    ("Where", [X > 0, X, X], 2, "int8", {}), ("Where", [X > 0, X, X], 0, "int8", {}),
    ("LSTM", [np.ones((2, 1, 3), np.float32), np.ones((1, 8, 3), np.float32), np.ones((1, 8, 2), np.float32)], 2, "int8", {"hidden_size": 2}),
    ("SoftmaxCrossEntropyLoss", [X, np.array([0, 1, 2])], 1, "int8", {}),
    ("SoftmaxCrossEntropyLossGrad", [np.array(1, np.float32), X, np.array([0, 1, 2])], 2, "float32", {"domain": "com.microsoft"}),
    ("SoftmaxGrad_13", [X, X], 1, "float64", {"domain": "com.microsoft"}), ("ReluGrad", [X, X], 1, "bool", {"domain": "com.microsoft"}),
    ("GatherGrad", [np.array([3, 4]), np.array([0, 1]), X[:2]], 0, "float32", {"domain": "com.microsoft"}),
]


@pytest.mark.parametrize(("op_type", "inputs", "position", "dtype", "attributes"), MIXED_TYPES, ids=[f"{case[0]}-{case[2]}-{case[3]}" for case in MIXED_TYPES])
def test_an_input_with_an_incompatible_type_is_rejected(op_type, inputs, position, dtype, attributes):
    """Kernels would read past the end of a narrower tensor."""
    wrong = [x.astype(dtype) if index == position else x for index, x in enumerate(inputs)]
    output_of(op_type, inputs, "float32", **attributes)
    with pytest.raises(OrtrainError, match=rf"expected .*operator {op_type}"):
        output_of(op_type, wrong, "float32", **attributes)
