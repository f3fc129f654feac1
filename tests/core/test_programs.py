"""What a program holds and what it refuses."""

import numpy as np
import pytest
from onnx import helper

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain._core.program import MOST_AXES, Program
from ortrain.errors import MissingKernelError
from ortrain.inference_session import InferenceSession


def turned(axes):
    """A session whose y is x with its axes in the other order."""
    kinds = [helper.make_tensor_value_info(name, 1, [2] * axes) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["y"])], "turned", kinds[:1], kinds[1:])
    return InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_tensors_have_as_many_axes_as_kernels_take():
    x = np.arange(2.0**MOST_AXES, dtype=np.float32).reshape((2,) * MOST_AXES)
    np.testing.assert_array_equal(turned(MOST_AXES).run(None, {"x": x})[0], x.transpose())
    with pytest.raises(MissingKernelError, match=f"at most {MOST_AXES} axes.*'x'"):
        turned(MOST_AXES + 1).run(None, {"x": x[..., None].repeat(2, -1)})


def test_the_core_refuses_more_axes_than_its_tensors_have():
    with pytest.raises(ValueError, match="at most 8 axes, got 9"):
        Program(EngineHandle()).add_tensor("float32", (1,) * 9)
    with pytest.raises(ValueError, match="at most 8 axes, got 9"):
        call_kernel(kernels()["relu", "float32"], [np.zeros((1,) * 9, np.float32)], [np.zeros((1,) * 9, np.float32)])
