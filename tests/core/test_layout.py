"""Channels-last regions: operators between convolutions need no transposes, and gradients equal central differences."""

from math import prod

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.errors import LabelRangeError

CHANNELS, CLASSES = 12, 5


def model_of(body, initializers=(), opset=17, shape=(2, 3, 8, 6), output=(2, CLASSES), flat=True):
    """Return a model: Conv, the body from "a" to "b", Conv with as many filters as classes, and a mean over pixels if `flat`.

    body: nodes. initializers: name -> array. The convolutions have 1-D kernels for a shape of rank 3."""
    rng, spatial = np.random.default_rng(5), len(shape) - 2
    weights = {"w0": rng.standard_normal((CHANNELS, shape[1], *[3] * spatial)) * 0.3, "w1": rng.standard_normal((CLASSES, CHANNELS, *[3] * spatial)) * 0.3,
               **dict(initializers)}
    window = {"kernel_shape": [3] * spatial, "pads": [1] * 2 * spatial}
    nodes = [helper.make_node("Conv", ["x", "w0"], ["a"], **window), *body, helper.make_node("Conv", ["b", "w1"], ["c"], **window)]
    if flat:
        axes = list(range(2, 2 + spatial))
        nodes.append(helper.make_node("ReduceMean", ["c"], ["y"], axes=axes, keepdims=0))
    else:
        nodes.append(helper.make_node("Identity", ["c"], ["y"]))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, shape)],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, output)],
                              [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def operators_of(plan):
    return [step.node.op_type for step in plan.steps]


def train_and_check(model, labels, found=operators_of):
    """Train one step, compare the gradients of the input with central differences; return what is `found` in the plan of the train step."""
    shape = tuple(axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim)
    rng = np.random.default_rng(6)
    x, direction = rng.standard_normal(shape), rng.standard_normal(shape)
    session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=["w0", "w1"])
    session.learning_rate = 1.0
    with session:
        step = 1e-6
        difference = (session.eval_step(x + step * direction, labels)[0] - session.eval_step(x - step * direction, labels)[0]) / (2 * step)
        assert float(np.vdot(session.input_gradients(x, labels, names=["x"])["x"], direction)) == pytest.approx(float(difference), rel=1e-6, abs=1e-9)
        before = {name: session.state.array(name).copy() for name in ("w0", "w1")}
        loss = session.train_step(x, labels)[0]
        assert loss == pytest.approx(float(session.eval_step(x, labels)[0]), rel=1e-12)
        session.optimizer_step()
        gradients = {name: before[name] - session.state.array(name) for name in before}
        result = found(session._train_runner.last.plan)
    check_weight_gradients(model, x, labels, before, gradients)
    return result


def check_weight_gradients(model, x, labels, weights, gradients):
    """Compare gradients of the weights with central differences."""
    rng, step, losses = np.random.default_rng(7), 1e-6, []
    directions = {name: rng.standard_normal(array.shape) for name, array in weights.items()}
    for sign in (1, -1):
        moved = helper.make_model(model.graph, opset_imports=model.opset_import, ir_version=8)
        for initializer in moved.graph.initializer:
            if initializer.name in weights:
                initializer.CopyFrom(numpy_helper.from_array(weights[initializer.name] + sign * step * directions[initializer.name], initializer.name))
        with TrainingSession.from_model(moved, loss=LossType.CrossEntropyLoss) as session:
            losses.append(float(session.eval_step(x, labels)[0]))
    total = sum(float(np.vdot(gradients[name], directions[name])) for name in gradients)
    assert total == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6, abs=1e-9)


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs, outputs, **attributes)


NORMALIZATION = {"gain": np.linspace(0.5, 1.5, CHANNELS), "bias": np.linspace(-1, 1, CHANNELS), "mean": np.zeros(CHANNELS), "variance": np.ones(CHANNELS)}
BODIES = {
    "nearest": ([node("Resize", ["a", "", "scales"], ["b"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
                {"scales": np.array([1, 1, 2, 2], np.float32)}),
    "bilinear": ([node("Resize", ["a", "", "scales"], ["b"], mode="linear")], {"scales": np.array([1, 1, 2, 3], np.float32)}),
    "pads": ([node("Pad", ["a", "pads"], ["b"])], {"pads": np.array([0, 0, 1, 2, 0, 0, 3, 0])}),
    **{f"pads that repeat elements, {mode}": ([node("Pad", ["a", "pads"], ["b"], mode=mode)], {"pads": np.array([0, 0, 1, 2, 0, 0, 3, 0])})
       for mode in ("edge", "reflect", "wrap")},
    "crops": ([node("Pad", ["a", "pads", "value"], ["b"])], {"pads": np.array([0, 1, -1, 0, 0, -1, 0, -2]), "value": np.array(0.5)}),
    "permutations": ([node("Transpose", ["a"], ["t"], perm=[0, 2, 3, 1]), node("Tanh", ["t"], ["u"]), node("Mul", ["u", "scale"], ["v"]),
                      node("Transpose", ["v"], ["w"], perm=[0, 3, 1, 2]), node("Add", ["a", "w"], ["b"])], {"scale": np.linspace(0.5, 1.5, CHANNELS)}),
    "reductions": ([node("ReduceMax", ["a"], ["m"], axes=[2, 3], keepdims=1), node("ReduceSum", ["a", "axes"], ["s"], keepdims=1),
                    node("Add", ["m", "s"], ["t"]), node("Tanh", ["t"], ["u"]), node("Mul", ["a", "u"], ["b"])], {"axes": np.array([2, 3])}),
    "max pools of few channels": ([node("MaxPool", ["a"], ["t"], kernel_shape=[2, 2], strides=[2, 2]),
                                   node("MaxPool", ["t"], ["b"], kernel_shape=[3, 2], pads=[1, 1, 1, 0])], {}),
    "disjoint windows that leave pixels uncovered": ([node("MaxPool", ["a"], ["b"], kernel_shape=[3, 4], strides=[3, 4])], {}),
    "average pools": ([node("AveragePool", ["a"], ["t"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
                       node("AveragePool", ["t"], ["u"], kernel_shape=[2, 2], strides=[2, 2]),
                       node("AveragePool", ["u"], ["b"], kernel_shape=[2, 3], pads=[1, 1, 0, 1])], {}),
    "values of each position": ([node("Mul", ["a", "map"], ["t"]), node("ReduceMean", ["t"], ["m"], axes=[1], keepdims=1), node("Sub", ["t", "m"], ["u"]),
                                 node("ReduceMean", ["u"], ["r"], axes=[3], keepdims=1), node("Add", ["u", "r"], ["b"])],
                                {"map": np.random.default_rng(9).standard_normal((1, CHANNELS, 8, 6))}),
    "slices": ([node("Slice", ["a", "zero", "eight", "one"], ["l"]), node("Slice", ["a", "two", "ten", "one"], ["o"]),
                node("Slice", ["a", "eight", "end", "one"], ["r"]), node("Mul", ["l", "o"], ["p"]), node("Concat", ["p", "r"], ["j"], axis=1),
                node("Slice", ["j", "starts", "ends", "axes", "steps"], ["b"])],
               {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "eight": np.array([8]), "ten": np.array([10]), "end": np.array([2**40]),
                "starts": np.array([-1, 1]), "ends": np.array([-99, 6]), "axes": np.array([-2, 3]), "steps": np.array([-2, 1])}),
    "dropout": ([node("Dropout", ["a", "ratio", "training"], ["d", "mask"]), node("Tanh", ["d"], ["b"])],
                {"ratio": np.array(0.0), "training": np.array(True)}),
    "group normalization": ([node("Reshape", ["a", "into"], ["r"]), node("InstanceNormalization", ["r", "ones", "zeros"], ["i"]), node("Shape", ["a"], ["s"]),
                             node("Reshape", ["i", "s"], ["g"]), node("Mul", ["g", "gains"], ["t"]), node("Add", ["t", "biases"], ["u"]),
                             node("Sigmoid", ["u"], ["v"]), node("Mul", ["u", "v"], ["b"])],
                            {"into": np.array([0, 4, -1]), "ones": np.ones(4), "zeros": np.zeros(4), "gains": np.linspace(0.5, 1.5, CHANNELS).reshape(-1, 1, 1),
                             "biases": np.linspace(-1, 1, CHANNELS).reshape(-1, 1, 1)}),
    "instance normalization": ([node("InstanceNormalization", ["a", "gain", "bias"], ["n"]), node("LeakyRelu", ["n"], ["b"])], NORMALIZATION),
    "identity": ([node("Identity", ["a"], ["t"]), node("Tanh", ["t"], ["b"])], {}),
    "frozen normalization": ([node("BatchNormalization", ["a", "gain", "bias", "mean", "variance"], ["n"]), node("Relu", ["n"], ["b"])], NORMALIZATION),
}


@pytest.mark.parametrize("name", BODIES)
def test_operators_between_convolutions_need_no_transposes(name):
    body, initializers = BODIES[name]
    operators = train_and_check(model_of(body, initializers), np.array([0, 3]))
    assert operators.count("ChannelsLastConv") == 2
    assert operators.count("Transpose") <= 2                       # of the input: once forward, and once more where it is recomputed


def test_the_gradient_of_a_dropout_between_convolutions_is_zero_where_its_result_is():
    body = [node("Dropout", ["a", "ratio", "training"], ["d", "mask"]), node("Mul", ["d", "scale"], ["b"])]
    model = model_of(body, {"ratio": np.array(0.5), "training": np.array(True), "scale": np.ones((1, CHANNELS, 1, 1))})
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=["w0", "scale"]) as session:
        session.learning_rate = 1.0
        before = {name: session.state.array(name).copy() for name in ("w0", "scale")}
        session.train_step(np.random.default_rng(1).standard_normal((2, 3, 8, 6)), np.array([0, 3]))
        session.optimizer_step()
        moved = {name: before[name] - session.state.array(name) for name in before}
        assert "ChannelsLastConv" in operators_of(session._train_runner.last.plan)
    # a = w0 * x is linear and b = scale · mask · 2 · a, so that <gradient of w0, w0> = <gradient of scale, scale> only for one mask
    assert np.vdot(moved["w0"], before["w0"]) == pytest.approx(np.vdot(moved["scale"], before["scale"]), rel=1e-9)


SHUFFLES = {
    "channel shuffle": ([node("Reshape", ["a", "parts"], ["p"]), node("Transpose", ["p"], ["q"], perm=[0, 2, 1, 3, 4]), node("Reshape", ["q", "whole"], ["s"]),
                         node("Tanh", ["s"], ["b"])], {"parts": np.array([2, 3, 4, 8, 6]), "whole": np.array([2, CHANNELS, 8, 6])}),
    "shuffle of three axes": ([node("Reshape", ["a", "parts"], ["p"]), node("Transpose", ["p"], ["q"], perm=[0, 3, 1, 2, 4, 5]),
                               node("Reshape", ["q", "whole"], ["s"]), node("Tanh", ["s"], ["b"])],
                              {"parts": np.array([0, 2, 3, 2, 8, 6]), "whole": np.array([0, -1, 8, 6])}),
    "split, units and shuffle": ([node("Split", ["a"], ["l", "r"], axis=1), node("Tanh", ["r"], ["t"]), node("Concat", ["l", "t"], ["j"], axis=1),
                                  node("Reshape", ["j", "parts"], ["p"]), node("Transpose", ["p"], ["q"], perm=[0, 2, 1, 3, 4]),
                                  node("Reshape", ["q", "whole"], ["s"]), node("Tanh", ["s"], ["b"])],
                                 {"parts": np.array([2, 2, 6, 8, 6]), "whole": np.array([2, CHANNELS, 8, 6])}),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_a_channel_shuffle_moves_channels_within_pixels_only(name):
    """Only the input is laid out; where the shuffled parts were concatenated, or are split in the gradient, nothing is transposed at all."""
    body, initializers = SHUFFLES[name]
    steps = train_and_check(model_of(body, initializers), np.array([0, 3]), lambda plan: [
        (step.node.attributes["perm"], plan.types[step.inputs[0]].sizes) for step in plan.steps if step.node.op_type == "Transpose"])
    within = [prod(size for axis, size in enumerate(sizes) if list(perm[: axis + 1]) != list(range(axis + 1))) for perm, sizes in steps]
    assert [size for size in within if size != CHANNELS] == [3 * 8 * 6] * (len(within) - within.count(CHANNELS))
    assert within.count(CHANNELS) == (0 if "Concat" in {node.op_type for node in body} else 2)


def test_a_mean_that_drops_rows_transposes_only_the_means():
    body = [node("Tanh", ["a"], ["t"]), node("ReduceMean", ["t"], ["m"], axes=[2], keepdims=0), node("Unsqueeze", ["m", "axis"], ["e"]),
            node("Add", ["t", "e"], ["b"])]
    session = TrainingSession.from_model(model_of(body, {"axis": np.array([2])}), loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD,
                                         requires_grad=["w0", "w1"])
    with session:
        session.train_step(np.zeros((2, 3, 8, 6)), np.array([0, 3]))
        plan = session._train_runner.last.plan
        moved = [prod(plan.types[step.inputs[0]].sizes) for step in plan.steps if step.node.op_type == "Transpose"]
    assert max(moved) <= 2 * 3 * 8 * 6                             # the input; no map of CHANNELS channels
    train_and_check(model_of(body, {"axis": np.array([2])}), np.array([0, 3]))


def test_divided_channels_that_a_position_reads_are_laid_out_again():
    body = [node("Reshape", ["a", "parts"], ["p"]), node("Transpose", ["p"], ["q"], perm=[0, 2, 1, 3, 4]), node("Mul", ["q", "scale"], ["r"]),
            node("Reshape", ["r", "whole"], ["b"])]
    values = {"parts": np.array([2, 3, 4, 8, 6]), "whole": np.array([2, CHANNELS, 8, 6]), "scale": np.linspace(0.5, 1.5, 4 * 3 * 8 * 6).reshape(4, 3, 8, 6)}
    train_and_check(model_of(body, values), np.array([0, 3]))


def test_a_loss_of_every_pixel_reads_rows_of_channels():
    model = model_of([node("Tanh", ["a"], ["b"])], output=(2, CLASSES, 8, 6), flat=False)
    operators = train_and_check(model, np.random.default_rng(8).integers(0, CLASSES, (2, 8, 6)))
    assert operators.count("Transpose") <= 2 and "LossAndGradient" in operators


def test_a_wrong_label_of_a_pixel_is_refused_by_the_name_of_the_input():
    session = TrainingSession.from_model(model_of([node("Tanh", ["a"], ["b"])], output=(2, CLASSES, 8, 6), flat=False), loss=LossType.CrossEntropyLoss,
                                         optimizer=OptimType.SGD, requires_grad=["w0", "w1"])
    labels = np.zeros((2, 8, 6), np.int64)
    labels[1, 4, 2] = CLASSES
    with pytest.raises(LabelRangeError, match=r"element of 'labels' in .*got 5"):
        session.train_step(np.zeros((2, 3, 8, 6)), labels)


def test_a_strided_pointwise_convolution_of_an_input_lays_out_only_the_pixels_that_it_reads():
    weight = np.random.default_rng(3).standard_normal((CHANNELS, 3, 1, 1))
    model = model_of([node("Tanh", ["a"], ["b"])])
    del model.graph.initializer[0], model.graph.node[0]
    model.graph.initializer.append(numpy_helper.from_array(weight, "w0"))
    model.graph.node.insert(0, node("Conv", ["x", "w0"], ["a"], kernel_shape=[1, 1], strides=[2, 2]))
    operators = train_and_check(model, np.array([0, 3]))
    assert operators.count("Slice") == 1 and operators.index("Slice") < operators.index("Transpose") < operators.index("ChannelsLastConv")


BODIES_3D = {
    "pools": ([node("Concat", ["a", "a"], ["c2"], axis=1), node("MaxPool", ["c2"], ["p"], kernel_shape=[2, 2, 2], pads=[1, 0, 1, 0, 1, 0]),
               node("Split", ["p"], ["l", "r"], axis=1), node("Add", ["l", "r"], ["b"])], {}),
    "reductions": ([node("GlobalAveragePool", ["a"], ["g"]), node("Tanh", ["g"], ["t"]), node("Mul", ["a", "t"], ["m"]),
                    node("ReduceMax", ["m"], ["r"], axes=[2, 3, 4], keepdims=1), node("Add", ["m", "r"], ["b"])], {}),
    "pads and gates": ([node("Pad", ["a", "pads"], ["p"]), node("Split", ["p"], ["l", "r"], axis=1), node("Tanh", ["l"], ["t"]),
                        node("Sigmoid", ["r"], ["s"]), node("Mul", ["t", "s"], ["m"]), node("Concat", ["m", "l"], ["b"], axis=-4)],
                       {"pads": np.array([0, 0, 1, 0, 2, 0, 0, 0, 1, 0])}),
    "permutations": ([node("Transpose", ["a"], ["t"], perm=[0, 2, 3, 4, 1]), node("Mul", ["t", "scale"], ["v"]),
                      node("Transpose", ["v"], ["w"], perm=[0, 4, 1, 2, 3]), node("Add", ["a", "w"], ["b"])], {"scale": np.linspace(0.5, 1.5, CHANNELS)}),
    "upsampling": ([node("Resize", ["a", "", "scales"], ["b"], mode="linear")], {"scales": np.array([1, 1, 2, 1, 2], np.float32)}),
    "frozen normalization": ([node("BatchNormalization", ["a", "gain", "bias", "mean", "variance"], ["n"]), node("Relu", ["n"], ["b"])], NORMALIZATION),
    "instance normalization": ([node("InstanceNormalization", ["a", "gain", "bias"], ["n"]), node("LeakyRelu", ["n"], ["b"])], NORMALIZATION),
    "transposed convolution": ([node("ConvTranspose", ["a", "k"], ["b"], kernel_shape=[2, 2, 2], strides=[2, 2, 2])],
                               {"k": np.random.default_rng(1).standard_normal((CHANNELS, CHANNELS, 2, 2, 2)) * 0.2}),
}


@pytest.mark.parametrize("name", BODIES_3D)
def test_operators_between_3d_convolutions_need_no_transposes(name):
    body, initializers = BODIES_3D[name]
    operators = train_and_check(model_of(body, initializers, shape=(2, 3, 4, 5, 6)), np.array([0, 3]))
    assert operators.count("ChannelsLastConv") == 2 + (name == "transposed convolution")         # whose gradient is a convolution
    assert operators.count("Transpose") <= 2


def test_a_loss_of_every_point_of_a_volume_reads_rows_of_channels():
    model = model_of([node("Tanh", ["a"], ["b"])], output=(2, CLASSES, 4, 5, 6), shape=(2, 3, 4, 5, 6), flat=False)
    operators = train_and_check(model, np.random.default_rng(8).integers(0, CLASSES, (2, 4, 5, 6)))
    assert operators.count("Transpose") <= 2 and "LossAndGradient" in operators


BODIES_1D = {
    "pads and gates": ([node("Pad", ["a", "pads"], ["p"]), node("Split", ["p"], ["l", "r"], axis=1), node("Tanh", ["l"], ["t"]),
                        node("Sigmoid", ["r"], ["s"]), node("Mul", ["t", "s"], ["m"]), node("Concat", ["m", "l"], ["b"], axis=1)],
                       {"pads": np.array([0, 0, 4, 0, 0, 0])}),
    "reductions": ([node("ReduceMax", ["a"], ["m"], axes=[2], keepdims=1), node("Tanh", ["m"], ["t"]), node("Mul", ["a", "t"], ["b"])], {}),
    "instance normalization": ([node("InstanceNormalization", ["a", "gain", "bias"], ["n"]), node("LeakyRelu", ["n"], ["b"])], NORMALIZATION),
    "axis of size 1": ([node("Unsqueeze", ["a", "two"], ["u"]), node("Tanh", ["u"], ["t"]), node("Squeeze", ["t", "two"], ["b"])], {"two": np.array([2])}),
}


@pytest.mark.parametrize("name", BODIES_1D)
def test_operators_between_1d_convolutions_need_no_transposes(name):
    body, initializers = BODIES_1D[name]
    operators = train_and_check(model_of(body, initializers, shape=(2, 3, 16)), np.array([0, 3]))
    assert operators.count("ChannelsLastConv") == 2
    assert operators.count("Transpose") <= 2

