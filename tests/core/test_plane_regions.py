"""Convolutions work on planes [n, c, h, w] in regions that would only pay for channels-last data, and train there to the same gradients."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import InferenceSession, SessionOptions, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import plane_regions

X = (3, 8, 16, 18)
DEPTHWISE = {"group": 8, "pads": [1, 1, 1, 1]}
POINTWISE_WEIGHT, DEPTHWISE_WEIGHT = (12, 8, 1, 1), (8, 1, 3, 3)
NODE = helper.make_node


def model_of(nodes, shape=X, **weights):
    """Return a model of nodes from the input x to the output y, with weights of these shapes."""
    rng = np.random.default_rng(1)
    initializers = [numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), name) for name, size in weights.items()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape[1:]])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def operators_of(runner):
    return [step.node.op_type for step in runner.last.plan.steps]


def run(model, shape=X, threads=1, batches=(3,)):
    """Return y for the last batch, and the operators of the program that computed it."""
    session = InferenceSession(model.SerializeToString(), SessionOptions(intra_op_num_threads=threads))
    for batch in batches:
        (y,) = session.run(None, {"x": np.random.default_rng(batch).standard_normal((batch, *shape[1:])).astype(np.float32)})
    (runner,) = session._runners.values()
    return y, operators_of(runner)


@pytest.fixture
def channels_last(monkeypatch):
    """Return a function that calls another while no convolution works on planes."""
    def call(function, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(plane_regions, "suits_planes", lambda *_: False)
            return function(*arguments, **options)

    return call


def train(model, y_shape, shape=X, threads=1):
    """Train one step; return the gradients of x and of the weights, and the operators of the train step."""
    names = [initializer.name for initializer in model.graph.initializer]
    rng = np.random.default_rng(3)
    x, target = (rng.standard_normal(size).astype(np.float32) for size in (shape, y_shape))
    with TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD, requires_grad=names,
                                    options=SessionOptions(intra_op_num_threads=threads)) as session:
        session.learning_rate = 1.0
        gradients = session.input_gradients(x, target, names=["x"])
        before = {name: session.state.array(name).copy() for name in names}
        session.train_step(x, target)
        operators = operators_of(session._train_runner)
        session.optimizer_step()
        return gradients | {name: before[name] - session.state.array(name) for name in names}, operators


CONVOLUTIONS = [(POINTWISE_WEIGHT, {}), (DEPTHWISE_WEIGHT, DEPTHWISE), (DEPTHWISE_WEIGHT, {"group": 8})]


@pytest.mark.parametrize("weight, attributes", CONVOLUTIONS)
def test_a_convolution_that_stands_alone_works_on_planes(weight, attributes, channels_last):
    model = model_of([NODE("Conv", ["x", "w", "b"], ["y"], **attributes)], w=weight, b=weight[:1])
    y, operators = run(model)
    expected, others = channels_last(run, model)
    assert (operators, others) == (["PlanesConv"], ["Transpose", "ChannelsLastConv", "Transpose"])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weight, attributes", CONVOLUTIONS)
def test_its_gradients_are_those_of_channels_last_data_without_transposes(weight, attributes, channels_last):
    model = model_of([NODE("Conv", ["x", "w", "b"], ["a"], **attributes), NODE("Tanh", ["a"], ["y"])], w=weight, b=weight[:1])
    y_shape = run(model)[0].shape
    gradients, operators = train(model, y_shape)
    expected, others = channels_last(train, model, y_shape)
    assert "PlanesConvGrad" in operators and not {"Transpose", "ChannelsLastConv", "ChannelsLastConvGrad"} & set(operators)
    assert "Transpose" in others
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("weight, attributes", CONVOLUTIONS)
def test_any_number_of_threads_computes_the_same_bits(weight, attributes, threads):
    model = model_of([NODE("Conv", ["x", "w", "b"], ["y"], **attributes)], w=weight, b=weight[:1])
    y, _ = run(model)
    np.testing.assert_array_equal(run(model, threads=threads)[0], y)
    for name, gradient in train(model, y.shape, threads=threads)[0].items():
        np.testing.assert_array_equal(gradient, train(model, y.shape)[0][name])


@pytest.mark.parametrize("shape, weight, attributes", [((2, 3, 48, 50), (4, 3, 1, 1), {}), ((2, 8, 48, 50), (8, 1, 5, 5), {"group": 8, "strides": [2, 2]}),
                                                       ((2, 8, 300), (8, 1, 9), {"group": 8}), ((2, 3, 300), (4, 3, 1), {}),
                                                       ((2, 3, 5, 6, 7), (4, 3, 1, 1, 1), {})])
def test_so_do_convolutions_of_sequences_and_volumes_and_those_with_strides(shape, weight, attributes, channels_last):
    model = model_of([NODE("Conv", ["x", "w"], ["y"], **attributes)], shape, w=weight)
    y, operators = run(model, shape)
    assert "PlanesConv" in operators and "Transpose" not in operators
    np.testing.assert_allclose(y, channels_last(run, model, shape)[0], rtol=1e-5, atol=1e-5)


def test_an_activation_that_clips_is_a_part_of_the_convolution(channels_last):
    model = model_of([NODE("Conv", ["x", "w"], ["a"]), NODE("Relu", ["a"], ["y"])], w=POINTWISE_WEIGHT)
    y, operators = run(model)
    assert operators == ["PlanesConv"] and y.min() == 0 < y.max()
    np.testing.assert_allclose(y, channels_last(run, model)[0], rtol=1e-5, atol=1e-5)


def test_a_chain_of_such_convolutions_works_on_planes():
    nodes = [NODE("Conv", ["x", "d"], ["a"], **DEPTHWISE), NODE("Sigmoid", ["a"], ["s"]), NODE("Mul", ["a", "s"], ["g"]), NODE("Conv", ["g", "w"], ["c"]),
             NODE("Add", ["c", "bias"], ["y"])]
    _, operators = run(model_of(nodes, d=DEPTHWISE_WEIGHT, w=POINTWISE_WEIGHT, bias=(12, 1, 1)))
    assert operators.count("PlanesConv") == 2 and "Transpose" not in operators


@pytest.mark.parametrize("nodes, weights", [
    ([NODE("Conv", ["x", "w"], ["a"]), NODE("Conv", ["a", "v"], ["y"])], {"w": POINTWISE_WEIGHT, "v": (5, 12, 3, 3)}),
    ([NODE("Conv", ["x", "w"], ["a"]), NODE("MaxPool", ["a"], ["y"], kernel_shape=[2, 2])], {"w": POINTWISE_WEIGHT}),
    ([NODE("Conv", ["x", "w"], ["a"]), NODE("BatchNormalization", ["a", "s", "s", "s", "q"], ["y"])], {"w": POINTWISE_WEIGHT, "s": (12,), "q": (12,)}),
    ([NODE("Relu", ["x"], ["r"]), NODE("Conv", ["r", "w"], ["a"]), NODE("Conv", ["r", "v"], ["b"], strides=[2, 2]), NODE("GlobalAveragePool", ["b"], ["m"]),
      NODE("Add", ["a", "m"], ["y"])], {"w": POINTWISE_WEIGHT, "v": (12, 8, 1, 1)})],
    ids=["another kernel", "a pool", "a normalization", "strides"])
def test_a_region_with_operators_that_gain_by_channels_last_data_has_it(nodes, weights):
    _, operators = run(model_of(nodes, **weights))
    assert "PlanesConv" not in operators and "ChannelsLastConv" in operators


def test_transposes_around_a_convolution_disappear_by_channels_last_data():
    nodes = [NODE("Transpose", ["x"], ["f"], perm=[0, 3, 1, 2]), NODE("Conv", ["f", "w"], ["a"]), NODE("Transpose", ["a"], ["y"], perm=[0, 2, 3, 1])]
    shape = (3, 16, 18, 8)
    assert run(model_of(nodes, shape, w=POINTWISE_WEIGHT), shape)[1] == ["ChannelsLastConv"]


@pytest.mark.parametrize("shape, weight, attributes", [((3, 8, 7, 7), POINTWISE_WEIGHT, {}), ((3, 8, 7, 7), DEPTHWISE_WEIGHT, DEPTHWISE),
                                                       ((3, 8, 1, 1), POINTWISE_WEIGHT, {})])
def test_small_planes_are_converted(shape, weight, attributes):
    assert "PlanesConv" not in run(model_of([NODE("Conv", ["x", "w"], ["y"], **attributes)], shape, w=weight), shape)[1]


@pytest.mark.parametrize("weight, attributes", CONVOLUTIONS[:2])
def test_other_batch_sizes_have_the_bits_of_a_new_session(weight, attributes):
    model = model_of([NODE("Conv", ["x", "w"], ["y"], **attributes)], w=weight)
    np.testing.assert_array_equal(run(model, batches=(2, 5, 3, 1, 4))[0], run(model, batches=(4,))[0])
