"""Weights that a program gives to a model: initializers, and files of external data in memory."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper


def test_weights_outside_of_a_model_in_memory_come_from_files_in_memory_or_values(build, run, sanitized, tmp_path):
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "weight")
    data = b"\xff" * 8 + weight.raw_data
    external_data_helper.set_external_data(weight, "weights.bin", 8, len(weight.raw_data))
    weight.ClearField("raw_data")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weight"], ["y"])], "graph", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "data").write_bytes(data)
    assert onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.initializer[0].data_location == TensorProto.EXTERNAL
    printed = run(build("external.c", folder=sanitized), tmp_path / "model.onnx", tmp_path / "data")
    assert printed.splitlines() == ["file 3 5 7", "values 11 22 33"]
