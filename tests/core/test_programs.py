"""What a program holds and what it refuses."""

import numpy as np
import pytest
from onnx import helper

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain._core.program_builder import MAX_AXES, ProgramBuilder
from ortrain.errors import MissingKernelError, OrtrainError
from ortrain.runtime.inference_session import InferenceSession


def turned(axes):
    """A session whose y is x with its axes in the other order."""
    kinds = [helper.make_tensor_value_info(name, 1, [2] * axes) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["y"])], "turned", kinds[:1], kinds[1:])
    return InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_tensors_have_as_many_axes_as_kernels_take():
    x = np.arange(2.0**MAX_AXES, dtype=np.float32).reshape((2,) * MAX_AXES)
    np.testing.assert_array_equal(turned(MAX_AXES).run(None, {"x": x})[0], x.transpose())
    with pytest.raises(MissingKernelError, match=f"at most {MAX_AXES} axes.*'x'"):
        turned(MAX_AXES + 1).run(None, {"x": x[..., None].repeat(2, -1)})


def test_the_core_refuses_more_axes_than_its_tensors_have():
    with pytest.raises(ValueError, match="at most 8 axes, got 9"):
        ProgramBuilder(EngineHandle()).add_tensor("float32", (1,) * 9)
    with pytest.raises(ValueError, match="at most 8 axes, got 9"):
        call_kernel(kernels()["relu", "float32"], [np.zeros((1,) * 9, np.float32)], [np.zeros((1,) * 9, np.float32)])


OTHERS = ("int16", "uint16", "uint32", "uint64", "complex64", "complex128")
"""Element types that compiled kernels do not have, though they may have the one of a node's first input."""


def outputs_of(op_type, inputs, dtype, **attributes):
    """The output of a node alone, of inputs of which the first is not what the output is made of."""
    element, names = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [f"x{i}" for i in range(len(inputs))]
    kinds = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in zip(names, inputs, strict=True)]
    graph = helper.make_graph([helper.make_node(op_type, names, ["y"], **attributes)], "g", kinds, [helper.make_tensor_value_info("y", element, None)])
    session = InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


@pytest.mark.parametrize("dtype", OTHERS)
def test_a_kernel_is_only_taken_for_element_types_that_it_has(dtype):
    x = np.arange(21).reshape(3, 7).astype(dtype)
    condition = x.real % 2 == 0
    np.testing.assert_array_equal(outputs_of("Where", [condition, x, x[::-1].copy()], dtype), np.where(condition, x, x[::-1]))
    one_hot = outputs_of("OneHot", [np.array([0, 2, 1]), np.array(3), x[0, 4:6].copy()], dtype)
    np.testing.assert_array_equal(one_hot, np.where(np.eye(3)[[0, 2, 1]] == 1, x[0, 5], x[0, 4]))


@pytest.mark.parametrize("dtype", [dtype for dtype in OTHERS if not dtype.startswith("complex")])
def test_large_constants_and_casts_have_the_element_type_that_is_asked_for(dtype):
    value = helper.make_tensor("value", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [1], [7])
    y = outputs_of("ConstantOfShape", [np.array([300, 400])], dtype, value=value)
    assert y.dtype == dtype and y.shape == (300, 400) and (y == 7).all()
    x = np.arange(12.0, dtype=np.float32)
    np.testing.assert_array_equal(outputs_of("Cast", [x], dtype, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), x.astype(dtype))


def test_a_kernel_never_reads_floats_of_another_type():
    """What ONNX allows is computed by its reference; a kernel would read beyond the narrower ones."""
    x, narrow = np.random.default_rng(0).normal(size=(2, 3, 4)), np.ones(3, np.float32)
    y = outputs_of("BatchNormalization", [x, np.ones(3), np.ones(3), narrow, narrow], "float64", epsilon=0.0)
    np.testing.assert_allclose(y, x)


X, W, C = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32), np.ones(2, np.float32)
IMAGE, CHANNELS = np.ones((2, 3, 4, 4), np.float32), np.ones(3, np.float32)
PLACES = np.array([[0], [2]])
TOGETHER = [
    ("Gemm", [X, W, C], 2, "int8", {}), ("Gemm", [X, W, C], 1, "uint8", {}), ("Add", [X, X], 1, "bool", {}), ("Concat", [X, X], 1, "int32", {"axis": 0}),
    ("BatchNormalization", [IMAGE, *[CHANNELS] * 4], 3, "int8", {}), ("Conv", [IMAGE, IMAGE], 1, "int8", {}),
    ("ScatterND", [X, PLACES, X[:2]], 2, "int8", {}), ("ScatterND", [X, PLACES, X[:2]], 1, "float64", {}), ("Gather", [X, PLACES], 1, "float32", {}),
    ("Pad", [X, np.array([1, 1, 1, 1]), np.array(0, np.float32)], 2, "bool", {}),
    ("Where", [X > 0, X, X], 2, "int8", {}), ("Where", [X > 0, X, X], 0, "int8", {}),
    ("LSTM", [np.ones((2, 1, 3), np.float32), np.ones((1, 8, 3), np.float32), np.ones((1, 8, 2), np.float32)], 2, "int8", {"hidden_size": 2}),
    ("SoftmaxCrossEntropyLoss", [X, np.array([0, 1, 2])], 1, "int8", {}),
    ("SoftmaxCrossEntropyLossGrad", [np.array(1, np.float32), X, np.array([0, 1, 2])], 2, "float32", {"domain": "com.microsoft"}),
    ("SoftmaxGrad_13", [X, X], 1, "float64", {"domain": "com.microsoft"}), ("ReluGrad", [X, X], 1, "bool", {"domain": "com.microsoft"}),
    ("GatherGrad", [np.array([3, 4]), np.array([0, 1]), X[:2]], 0, "float32", {"domain": "com.microsoft"}),
]


@pytest.mark.parametrize(("op_type", "inputs", "place", "dtype", "attributes"), TOGETHER, ids=[f"{case[0]}-{case[2]}-{case[3]}" for case in TOGETHER])
def test_an_input_of_a_type_that_does_not_go_with_the_others_is_refused(op_type, inputs, place, dtype, attributes):
    """Kernels would read beyond it where it is narrower."""
    wrong = [x.astype(dtype) if index == place else x for index, x in enumerate(inputs)]
    outputs_of(op_type, inputs, "float32", **attributes)
    with pytest.raises(OrtrainError, match=rf"expected .*operator {op_type}"):
        outputs_of(op_type, wrong, "float32", **attributes)
