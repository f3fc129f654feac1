"""Promotion of 1-D convolutional regions to 2-D: the same bits as an equal 2-D network, and no copies between operators of a region."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType

TRAINED = ("w0", "b0", "s", "o", "w1", "scale", "fc")


def network(two_dimensional, pool, dtype):
    """Return a model with convolutions, batch normalization, ReLU, pooling, a scaled SiLU, a mean over positions, and a dense layer."""
    rng, initializers, nodes = np.random.default_rng(3), [], []

    def weight(name, array, spatial=False):
        array = np.expand_dims(array, 2) if spatial and two_dimensional else array
        initializers.append(numpy_helper.from_array(array.astype(dtype), name))

    def windows(**attributes):
        fill = {"pads": 0}
        if not two_dimensional:
            return {name: list(values) for name, values in attributes.items()}
        return {name: [value for begin in values for value in (fill[name], begin)] if name in fill else [1, *values] for name, values in attributes.items()}

    weight("w0", rng.standard_normal((24, 5, 5)) * 0.2, spatial=True)
    weight("b0", rng.standard_normal(24) * 0.1)
    for name, array in (("s", rng.standard_normal(24)), ("o", rng.standard_normal(24)), ("m", np.zeros(24)), ("v", np.ones(24))):
        weight(name, array)
    weight("w1", rng.standard_normal((20, 24, 3)) * 0.2, spatial=True)
    weight("scale", rng.standard_normal((1, 20, 1)), spatial=True)
    weight("fc", rng.standard_normal((20, 4)))
    nodes += [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], **windows(pads=(2, 2), strides=(1,))),
        helper.make_node("BatchNormalization", ["c0", "s", "o", "m", "v"], ["n0"]), helper.make_node("Relu", ["n0"], ["r0"]),
        helper.make_node(pool, ["r0"], ["p0"], **windows(kernel_shape=(2,), strides=(2,))),
        helper.make_node("Conv", ["p0", "w1"], ["c1"], **windows(pads=(2, 2), dilations=(2,))),
        helper.make_node("Mul", ["c1", "scale"], ["c2"]), helper.make_node("Sigmoid", ["c2"], ["c3"]), helper.make_node("Mul", ["c2", "c3"], ["c4"]),
        helper.make_node("ReduceMean", ["c4"], ["g"], axes=[2, 3] if two_dimensional else [2], keepdims=0), helper.make_node("MatMul", ["g", "fc"], ["y"])]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shape = ["n", 5, 1, 32] if two_dimensional else ["n", 5, 32]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, shape)], [helper.make_tensor_value_info("y", kind, ["n", 4])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def trained(two_dimensional, pool, dtype):
    """Return the session after three steps with two batch sizes, and the losses."""
    session = TrainingSession.from_model(network(two_dimensional, pool, dtype), loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD)
    session.learning_rate = 0.1
    losses = []
    for rows in (6, 6, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 5, 32)).astype(dtype)
        losses.append(session.train_step(np.expand_dims(x, 2) if two_dimensional else x, np.arange(rows) % 4)[0])
        session.optimizer_step()
        session.lazy_reset_grad()
    return session, losses


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_1d_network_equals_the_same_2d_network_bit_for_bit(pool, dtype):
    (flat, losses), (image, wanted) = trained(False, pool, dtype), trained(True, pool, dtype)
    assert np.array(losses).tobytes() == np.array(wanted).tobytes()
    for name in (*TRAINED, "m", "v"):
        assert flat.state.array(name).tobytes() == image.state.array(name).tobytes(), name


def operators_of(two_dimensional):
    session, _ = trained(two_dimensional, "MaxPool", "float32")
    return [step.node.op_type for step in session._train_runner.last.plan.steps]


def test_a_1d_network_runs_channels_last_kernels_with_few_additional_transposes():
    flat, image = operators_of(False), operators_of(True)
    assert {"ChannelsLastConv", "ChannelsLastConvGrad", "ChannelsLastMaxPool", "ChannelsLastMaxPoolGrad"} <= set(flat)
    assert not {"Conv", "ConvGrad", "MaxPool", "MaxPoolGrad"} & set(flat)
    assert flat.count("Transpose") == image.count("Transpose")


def test_an_output_inside_a_promoted_region_keeps_its_shape():
    model = network(False, "MaxPool", "float32")
    model.graph.output.append(helper.make_tensor_value_info("c1", TensorProto.FLOAT, ["n", 20, 16]))
    session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, loss_input_names=["y"],
                                         additional_output_names=["c1"])
    outputs = session.train_step(np.ones((2, 5, 32), np.float32), np.array([0, 1]))
    assert outputs[1].shape == (2, 20, 16)
