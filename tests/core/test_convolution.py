"""Convolutional regions run channels-last: as exact as promised, the same bits for any number of workers, and nothing moved but at their edges."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import SessionOptions, TrainingSession
from ortrain._core.engine import EngineHandle
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import planner
from tests.ops.harness import run_kernel
from tests.ops.samples.channels_last import SAMPLES, backward, forward

has_amx = pytest.mark.skipif(not EngineHandle().amx, reason="this processor has no bfloat16 tiles (AMX), or its system does not lend them")
SAME = {"pads": (1, 1, 1, 1)}
WINOGRAD = [((2, 30, 31, 64), (64, 64, 3, 3), SAME), ((4, 7, 7, 192), (128, 192, 3, 3), SAME),
            ((2, 28, 28, 64), (64, 64, 5, 5), {"pads": (2, 2, 2, 2)}), ((4, 14, 13, 128), (64, 128, 5, 5), {"pads": (2, 2, 2, 2)})]
STRIDED_WINOGRAD = [((2, 56, 60, 64), (64, 64, 3, 3)), ((4, 16, 16, 192), (128, 192, 3, 3))]


def rounding_error(sample, output=0, direct=0, tiles=False):
    """The root mean square of an output's deviation in float32 from direct sums in float64."""
    ways = {way: replace(sample, attributes=sample.attributes | {"direct": way}) for way in (0, 1)}
    return np.sqrt(np.mean((run_kernel(ways[direct], "float32", tiles=tiles)[output] - run_kernel(ways[1], "float64")[output]) ** 2))


def as_convolution(y, dy, w, pads):
    """What the data's gradient is: the convolution of dy with filters turned by 180 degrees."""
    return replace(y, inputs=[dy, np.ascontiguousarray(w[:, :, ::-1, ::-1].swapaxes(0, 1))], attributes={"pads": pads})


@pytest.mark.parametrize("x, w, attributes", WINOGRAD)
def test_winograd_rounds_at_most_three_times_as_much_as_direct_sums(x, w, attributes):
    """The data's gradient is held against the direct convolution that it is: direct gradients are summed in shorter chains."""
    y, gradients = forward("", x, w, attributes), backward("", x, w, attributes)
    dy, _, weight = gradients.inputs
    data = as_convolution(y, dy, weight, tuple(w[2] - 1 - pad for pad in attributes["pads"]))
    assert rounding_error(y) <= 3 * rounding_error(y, direct=1)
    assert rounding_error(gradients, 0) <= 3 * rounding_error(data, direct=1)
    assert rounding_error(gradients, 1) <= 3 * rounding_error(gradients, 1, direct=1)


@pytest.mark.parametrize("x, w", STRIDED_WINOGRAD)
def test_winograd_with_strides_rounds_at_most_three_times_as_much_as_direct_sums(x, w):
    """The data's gradient is a convolution of dy with zeros between its pixels."""
    attributes = SAME | {"strides": (2, 2)}
    y, gradients = forward("", x, w, attributes), backward("", x, w, attributes)
    dy, _, weight = gradients.inputs
    spread = np.zeros((dy.shape[0], *x[1:3], dy.shape[3]))
    spread[:, ::2, ::2] = dy
    assert rounding_error(y) <= 3 * rounding_error(y, direct=1)
    assert rounding_error(gradients, 0) <= 3 * rounding_error(as_convolution(y, spread, weight, (1, 1, 1, 1)), direct=1)
    assert rounding_error(gradients, 1) <= 3 * rounding_error(gradients, 1, direct=1)


@has_amx
@pytest.mark.parametrize("x, w, strides", [((2, 31, 29, 64), (96, 64, 3, 3), (2, 2)), ((1, 40, 41, 96), (64, 96, 4, 3), (3, 2))])
def test_windows_on_tiles_are_at_least_as_exact_as_direct_sums_in_vectors(x, w, strides):
    y, gradients = (made("", x, w, SAME | {"strides": strides}) for made in (forward, backward))
    for sample, output in ((y, 0), (gradients, 0), (gradients, 1)):
        assert rounding_error(sample, output, direct=1, tiles=True) < rounding_error(sample, output, direct=1)


@has_amx
def test_windows_on_tiles_with_infinities_give_what_vectors_give():
    attributes = SAME | {"strides": (2, 2), "direct": 1}
    for sample in (made("", (2, 31, 29, 64), (96, 64, 3, 3), attributes) for made in (forward, backward)):
        sample.inputs[0][0, 6, 5, 7] = np.inf
        for tiles, vectors in zip(run_kernel(sample, "float32"), run_kernel(sample, "float32", tiles=False), strict=True):
            finite = np.isfinite(vectors)
            assert 0 < np.count_nonzero(~finite) < finite.size // 2
            np.testing.assert_array_equal(np.isfinite(tiles), finite)
            np.testing.assert_allclose(tiles[finite], vectors[finite], atol=1e-5)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.op_type}-{s.label}")
def test_any_number_of_workers_gives_the_same_bits(sample):
    alone = run_kernel(sample, "float32")
    for workers in (2, 3):
        for one, other in zip(alone, run_kernel(sample, "float32", workers), strict=True):
            np.testing.assert_array_equal(one, other)


class Net:
    """A model under construction; weights come from one generator."""

    def __init__(self):
        self.rng, self.nodes, self.weights = np.random.default_rng(0), [], {}

    def op(self, op_type, *inputs, **attributes):
        self.nodes.append(helper.make_node(op_type, inputs, [f"v{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def weight(self, value):
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, np.float32)
        return name

    def conv(self, x, filters, channels, kernel=3, **attributes):
        w = self.weight(self.rng.normal(size=(filters, channels, kernel, kernel)) / np.sqrt(channels * kernel * kernel))
        return self.op("Conv", x, w, kernel_shape=[kernel] * 2, **attributes)

    def norm(self, x, channels):
        ones, zeros = np.ones(channels), np.zeros(channels)
        return self.op("BatchNormalization", x, *map(self.weight, (ones, zeros, zeros, ones)), epsilon=1e-5)

    def model(self, output):
        self.op("Identity", output)
        self.nodes[-1].output[0] = "y"
        sizes = [("x", [4, 3, 16, 16]), ("y", [4, 10])]
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes)
        graph = helper.make_graph(self.nodes, "net", [x], [y], [numpy_helper.from_array(a, n) for n, a in self.weights.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def net() -> onnx.ModelProto:
    """Everything that a region may hold: all kinds of convolution, residuals, limits, pools, concatenation; and operators that belong to none."""
    n = Net()
    six = n.weight(6.0)
    zero = n.weight(0.0)
    x = n.op("Clip", n.norm(n.conv("x", 16, 3, pads=[1] * 4), 16), zero, six)
    skip = n.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = n.op("Relu", n.norm(n.conv(skip, 16, 16, pads=[1] * 4), 16))
    y = n.norm(n.conv(y, 16, 1, group=16, pads=[1] * 4), 16)
    y = n.op("Relu", n.op("Add", y, skip))
    y = n.op("Concat", y, n.op("Relu", n.norm(n.conv(y, 16, 16, 1), 16)), axis=1)
    y = n.op("Add", n.norm(n.conv(y, 32, 32, 1), 32), n.op("Transpose", y, perm=[0, 1, 3, 2]))
    y = n.op("HardSwish", n.conv(y, 24, 32, strides=[2, 2], pads=[1] * 4))
    y = n.op("MaxPool", n.op("Relu", n.conv(y, 24, 24, pads=[1] * 4)), kernel_shape=[2, 2], strides=[2, 2])
    y = n.op("Flatten", n.op("GlobalAveragePool", y))
    return n.model(n.op("Gemm", y, n.weight(n.rng.normal(size=(24, 10)))))


BATCH = np.random.default_rng(1).normal(size=(4, 3, 16, 16)).astype(np.float32), np.array([1, 3, 5, 7])


def session(**options) -> TrainingSession:
    model = net()
    names = [t.name for t in model.graph.initializer]
    frozen = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]} | {"w0", "w1"}
    made = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                                      requires_grad=[name for name in names if name not in frozen], options=SessionOptions(**options))
    made.train_step(*BATCH)
    return made


def kernels_of(made: TrainingSession) -> list[str]:
    return [step.call.kernel for step in made._train_runner.last.plan.steps]


def test_a_region_trains_as_its_operators_do_one_by_one(monkeypatch):
    region = session()
    monkeypatch.setattr(planner, "lay_out", lambda nodes, *_: list(nodes))
    plain = session()
    assert not any(kernel.startswith("channels_last") for kernel in kernels_of(plain))
    for name, wanted in plain.state.gradients.items():
        got = region.state.gradients[name]
        np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max() + 1e-6, rtol=0, err_msg=name)


def test_limits_and_residuals_cost_no_pass_of_their_own():
    kernels = kernels_of(session())
    assert not {"clip", "where", "relu", "relu_grad", "less", "batch_norm_train", "conv", "conv_grad"}.intersection(kernels)


def test_a_sum_of_gradients_is_part_of_the_product_that_gives_one_of_them():
    steps = [step for step in session()._train_runner.last.plan.steps if step.node.op_type in ("Sum", "ChannelsLastConvGrad")]
    sums = [step.node.attributes["kernel_shape"] for step in steps if step.node.op_type == "ChannelsLastConvGrad" and len(step.inputs) == 4]
    assert sums == [(1, 1), (1, 1)]
    assert [step.node.op_type for step in steps].count("Sum") == 1                      # of two convolutions that are no products


def test_twice_the_same_gradient_is_a_sum_of_its_own():
    n = Net()
    x = n.op("Relu", n.conv("x", 16, 3, pads=[1] * 4))
    y = n.op("Relu", n.conv(n.op("Add", x, x), 16, 16, 1))
    model = n.model(n.op("Gemm", n.op("Flatten", n.op("GlobalAveragePool", y)), n.weight(n.rng.normal(size=(16, 10)))))
    made = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    made.train_step(*BATCH)
    once = {name: array.copy() for name, array in made.state.gradients.items()}
    for node in model.graph.node:
        if node.op_type == "Add":
            node.op_type, node.input[1] = "Mul", n.weight(2.0)
            model.graph.initializer.append(numpy_helper.from_array(np.float32(2), node.input[1]))
    doubled = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=list(once))
    doubled.train_step(*BATCH)
    for name, wanted in doubled.state.gradients.items():
        np.testing.assert_allclose(once[name], wanted, atol=1e-5 * np.abs(wanted).max(), rtol=0, err_msg=name)


def test_data_moves_only_at_the_edges_of_a_region():
    """In at the input; out and in again around the model's own transpose, forward and backward."""
    steps = session()._train_runner.last.plan.steps
    assert [step.node.op_type for step in steps].count("Transpose") == 1 + 3 + 3


def test_winograd_can_be_disabled_for_a_session():
    fast, direct = session(), session(enable_winograd=False)
    ways = [{step.node.attributes["direct"] for step in made._train_runner.last.plan.steps if step.node.op_type == "ChannelsLastConv"}
            for made in (fast, direct)]
    assert ways == [{0}, {1}]
