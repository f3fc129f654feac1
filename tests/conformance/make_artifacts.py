"""Generates the artifacts that the conformance cases use: `python -m tests.conformance.make_artifacts`. A test compares the stored ones with new ones."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.conformance.cases import ARTIFACTS


def classifier():
    """x [batch, 3] -> Gemm, Relu, Gemm -> scores [batch, 3]."""
    random = np.random.default_rng(7)

    def values(*shape):
        # thirds of 64ths: exact in JSON and in every language
        return (random.integers(-48, 49, shape) / 64).astype(np.float32)

    initializers = {"fc1.weight": values(4, 3), "fc1.bias": values(4), "fc2.weight": values(3, 4), "fc2.bias": values(3)}
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["hidden"], "fc1", transB=1),
        helper.make_node("Relu", ["hidden"], ["activated"], "relu"),
        helper.make_node("Gemm", ["activated", "fc2.weight", "fc2.bias"], ["scores"], "fc2", transB=1),
    ]
    return model(nodes, initializers, ["batch", 3], ["batch", 3])


def dropout():
    """x [batch, 8] -> Gemm -> Dropout -> scores [batch, 4], whose loss depends on the seed."""
    random = np.random.default_rng(8)
    initializers = {"fc.weight": random.standard_normal((4, 8)).astype(np.float32), "ratio": np.float32(0.5), "training": np.bool_(True)}
    nodes = [
        helper.make_node("Gemm", ["x", "fc.weight"], ["hidden"], "fc", transB=1),
        helper.make_node("Dropout", ["hidden", "ratio", "training"], ["scores"], "dropout"),
    ]
    return model(nodes, initializers, ["batch", 8], ["batch", 4])


def normalized():
    """x [batch, 3] -> Gemm, BatchNormalization, Gemm -> scores [batch, 3]."""
    random = np.random.default_rng(9)
    initializers = {"fc1.weight": random.standard_normal((4, 3)).astype(np.float32), "norm.scale": np.ones(4, np.float32), "norm.bias": np.zeros(4, np.float32),
                    "norm.mean": np.zeros(4, np.float32), "norm.variance": np.ones(4, np.float32),
                    "fc2.weight": random.standard_normal((3, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight"], ["hidden"], "fc1", transB=1),
        helper.make_node("BatchNormalization", ["hidden", "norm.scale", "norm.bias", "norm.mean", "norm.variance"], ["normal"], "norm"),
        helper.make_node("Gemm", ["normal", "fc2.weight"], ["scores"], "fc2", transB=1),
    ]
    return model(nodes, initializers, ["batch", 3], ["batch", 3])


def model(nodes, initializers, inputs, outputs):
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)], [helper.make_tensor_value_info("scores", TensorProto.FLOAT, outputs)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in initializers.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def make(folder):
    """Write the sets of artifacts into subfolders of a folder."""
    (folder / "classifier").mkdir(parents=True, exist_ok=True)
    onnx.save(classifier(), folder / "classifier" / "forward.onnx")
    generate_artifacts(classifier(), requires_grad=["fc1.weight", "fc2.weight", "fc2.bias"], frozen_params=["fc1.bias"], loss=LossType.CrossEntropyLoss,
                       optimizer=OptimType.AdamW, artifact_directory=folder / "classifier", additional_output_names=["scores"], nominal_checkpoint=True)
    (folder / "dropout").mkdir(parents=True, exist_ok=True)
    generate_artifacts(dropout(), requires_grad=["fc.weight"], loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=folder / "dropout")
    (folder / "normalized").mkdir(parents=True, exist_ok=True)
    generate_artifacts(normalized(), requires_grad=["fc1.weight", "norm.scale", "norm.bias", "fc2.weight"], loss=LossType.CrossEntropyLoss,
                       optimizer=OptimType.AdamW, artifact_directory=folder / "normalized")


if __name__ == "__main__":
    make(Path(ARTIFACTS))
