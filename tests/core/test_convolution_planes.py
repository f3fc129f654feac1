"""Convolutions that stand alone read and write images [n, c, h, w] without transposes of whole images."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import InferenceSession, SessionOptions
from ortrain.plan.epilogue_fusion import planes

X = (2, 32, 9, 11)
GROUPED = {"group": 2, "pads": [1, 1, 1, 1]}


def model_of(nodes, outputs, shape=X, weight=(40, 16, 3, 3)):
    """Return a model of nodes on the input x and the weight w."""
    rng = np.random.default_rng(1)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape[1:]])],
                              [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
                              [numpy_helper.from_array(rng.standard_normal(weight).astype(np.float32), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def run(model, shape=X, batches=(2,)):
    """Return the outputs for the last batch, and the operators of the program that computed them."""
    session = InferenceSession(model, SessionOptions(intra_op_num_threads=1))
    for batch in batches:
        found = session.run(None, {"x": np.random.default_rng(batch).standard_normal((batch, *shape[1:])).astype(np.float32)})
    (runner,) = session._runners.values()
    return found, [step.node.op_type for step in runner.last.plan.steps]


@pytest.fixture
def without_planes(monkeypatch):
    """Return a function that runs a model with transposes around its convolutions."""
    def run_without(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(planes, "can_use_planes", lambda *_: False)
            return run(*arguments, **options)

    return run_without


@pytest.mark.parametrize("shape, weight, attributes", [
    (X, (40, 16, 3, 3), GROUPED), ((2, 3, 21, 23), (24, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 20, 5, 9, 8), (24, 20, 3, 3, 3), {"pads": [2] * 6, "dilations": [2, 2, 2]})])
def test_a_convolution_alone_has_no_transposes_and_the_bits_of_one_with_them(shape, weight, attributes, without_planes):
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"], **attributes)], ["y"], shape, weight)
    (y,), operators = run(model, shape)
    (expected,), others = without_planes(model, shape)
    assert (operators, others) == (["ChannelsLastConv"], ["Transpose", "ChannelsLastConv", "Transpose"])
    np.testing.assert_array_equal(y, expected)


def test_an_activation_remains_a_part_of_the_convolution():
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], **GROUPED), helper.make_node("Relu", ["c"], ["y"])]
    (y,), operators = run(model_of(nodes, ["y"]))
    assert operators == ["ChannelsLastConv"] and y.min() == 0 < y.max()


def test_what_others_read_channels_last_is_transposed(without_planes):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], **GROUPED), helper.make_node("Conv", ["x", "w"], ["z"], group=2, strides=[2, 2])]
    model = model_of(nodes, ["y", "z"])
    found, operators = run(model)
    assert operators.count("Transpose") == 1
    for one, other in zip(found, without_planes(model)[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_planes_that_are_images_of_their_own_are_transposed():
    shape, weight = (2, 20, 5, 9, 8), (24, 20, 1, 3, 3)
    _, operators = run(model_of([helper.make_node("Conv", ["x", "w"], ["y"], strides=[1, 2, 2])], ["y"], shape, weight), shape)
    assert operators == ["Transpose", "ChannelsLastConv", "Transpose"]


def test_other_batch_sizes_have_the_bits_of_a_convolution_with_transposes(without_planes):
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"], **GROUPED)], ["y"])
    (y,), operators = run(model, batches=(2, 3, 5, 4))
    assert operators == ["ChannelsLastConv"]
    np.testing.assert_array_equal(y, without_planes(model, batches=(4,))[0][0])
