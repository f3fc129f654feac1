"""Channels-last convolution regions: rounding errors, bitwise equality for any number of workers, and transposes only at their boundaries."""

import itertools
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import SessionOptions, TrainingSession
from ortrain._core.engine import EngineHandle
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import layout
from ortrain.plan.layout import convert_to_channels_last
from ortrain.plan.operator_kinds import CONVOLUTIONS, has_any
from tests.ops.harness import expected_outputs, run_kernel
from tests.ops.samples.channels_last import SAMPLES, backward, forward

has_amx = pytest.mark.skipif(not EngineHandle().amx, reason="this processor has no bfloat16 tiles (AMX), or its operating system does not enable them")
SAME = {"pads": (1, 1, 1, 1)}
WINOGRAD = [((2, 30, 31, 64), (64, 64, 3, 3), SAME), ((4, 7, 7, 192), (128, 192, 3, 3), SAME),
            ((2, 28, 28, 64), (64, 64, 5, 5), {"pads": (2, 2, 2, 2)}), ((4, 14, 13, 128), (64, 128, 5, 5), {"pads": (2, 2, 2, 2)}),
            ((4, 17, 17, 128), (128, 128, 1, 7), {"pads": (0, 3, 0, 3)}), ((4, 17, 17, 128), (128, 128, 7, 1), {"pads": (3, 0, 3, 0)}),
            ((4, 28, 28, 58), (58, 58, 3, 3), SAME), ((2, 5, 14, 15, 64), (64, 64, 3, 3, 3), {"pads": (1,) * 6})]
STRIDED_WINOGRAD = [((2, 56, 60, 64), (64, 64, 3, 3)), ((4, 16, 16, 192), (128, 192, 3, 3))]


def rounding_error(sample, output=0, direct=0, tiles=False):
    """Return the root mean square difference of a float32 output from direct convolution in float64."""
    samples = {flag: replace(sample, attributes=sample.attributes | {"direct": flag}) for flag in (0, 1)}
    return np.sqrt(np.mean((run_kernel(samples[direct], "float32", tiles=tiles)[output] - run_kernel(samples[1], "float64")[output]) ** 2))


def data_gradient_as_convolution(y, dy, w, pads):
    """Return a sample whose output is the data gradient: the convolution of dy with filters rotated by 180 degrees."""
    return replace(y, inputs=[dy, np.ascontiguousarray(np.flip(w, range(2, w.ndim)).swapaxes(0, 1))], attributes={"pads": pads})


@pytest.mark.parametrize("x, w, attributes", WINOGRAD)
def test_winograd_rounds_at_most_three_times_as_much_as_direct_sums(x, w, attributes):
    """The data gradient is compared with the equivalent direct convolution, because the direct gradient kernel sums in shorter chains."""
    y, gradients = forward("", x, w, attributes), backward("", x, w, attributes)
    dy, _, weight = gradients.inputs
    data = data_gradient_as_convolution(y, dy, weight, tuple(size - 1 - pad for size, pad in zip(w[2:] * 2, attributes["pads"], strict=True)))
    assert rounding_error(y) <= 3 * rounding_error(y, direct=1)
    assert rounding_error(gradients, 0) <= 3 * rounding_error(data, direct=1)
    assert rounding_error(gradients, 1) <= 3 * rounding_error(gradients, 1, direct=1)


@pytest.mark.parametrize("length", [257, 512])
def test_winograd_along_sequences_rounds_at_most_three_times_as_much_as_direct_sums_and_four_times_for_weights(length):
    """Direct sums of the gradient of the weights are short chains, of a few pixels each."""
    x, w, attributes = (4, 1, length, 64), (64, 64, 1, 3), {"pads": (0, 1, 0, 1)}
    y, gradients = forward("", x, w, attributes), backward("", x, w, attributes)
    dy, _, weight = gradients.inputs
    data = data_gradient_as_convolution(y, dy, weight, (0, 1, 0, 1))
    assert rounding_error(y) <= 3 * rounding_error(y, direct=1)
    assert rounding_error(gradients, 0) <= 3 * rounding_error(data, direct=1)
    assert rounding_error(gradients, 1) <= 4 * rounding_error(gradients, 1, direct=1)


@pytest.mark.parametrize("x, w", STRIDED_WINOGRAD)
def test_winograd_with_strides_rounds_at_most_three_times_as_much_as_direct_sums(x, w):
    """The data gradient is a convolution of dy with zeros between its pixels."""
    attributes = SAME | {"strides": (2, 2)}
    y, gradients = forward("", x, w, attributes), backward("", x, w, attributes)
    dy, _, weight = gradients.inputs
    dilated = np.zeros((dy.shape[0], *x[1:3], dy.shape[3]))
    dilated[:, ::2, ::2] = dy
    assert rounding_error(y) <= 3 * rounding_error(y, direct=1)
    assert rounding_error(gradients, 0) <= 3 * rounding_error(data_gradient_as_convolution(y, dilated, weight, (1, 1, 1, 1)), direct=1)
    assert rounding_error(gradients, 1) <= 3 * rounding_error(gradients, 1, direct=1)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_depthwise_convolution_that_prefetches_has_the_bits_of_its_parts(stride):
    """Four images exceed the caches, so that the rows below are prefetched; two do not."""
    whole = forward("", (4, 128, 131, 36), (36, 1, 3, 3), {"group": 36, "pads": (1, 1, 1, 1), "strides": (stride, stride)})
    x, *others = whole.inputs
    parts = [run_kernel(replace(whole, inputs=[np.ascontiguousarray(images), *others]), "float32")[0] for images in np.split(x, 2)]
    assert 2 * parts[0].nbytes * stride**2 > 8 << 20
    np.testing.assert_array_equal(run_kernel(whole, "float32")[0], np.concatenate(parts))


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 30, 50])
@pytest.mark.parametrize("filters", [1, 2, 3, 4, 5, 8, 12, 13, 16, 20, 24, 33, 48])
@pytest.mark.parametrize("channels", [5, 13, 40])
def test_direct_convolutions_of_integers_are_exact_for_tiles_of_every_size(columns, filters, channels):
    """Tiles have as many rows as divide the columns of an image, and as many vectors as divide the filters, or the elements of a row of a window; sums of small
    integers do not round."""
    kernels = [((3, 3), SAME | {"direct": 1}), ((3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2), "direct": 1}), ((1, 1), {})]
    for make, (kernel, attributes) in itertools.product((forward, backward), kernels):
        sample = of_integers(make("", (2, 3, columns, channels), (filters, channels, *kernel), attributes), seed=columns * filters)
        for found, expected in zip(run_kernel(sample, "float32"), expected_outputs(sample, sample.inputs), strict=True):
            np.testing.assert_array_equal(found, expected)


def of_integers(sample, seed, low=-4):
    """Return the sample with inputs of small integers."""
    numbers = np.random.default_rng(seed)
    return replace(sample, inputs=[numbers.integers(low, 5, array.shape).astype(np.float32) for array in sample.inputs])


@pytest.mark.parametrize("kernel, attributes", [((3, 3), SAME), ((3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}), ((1, 1), {})])
def test_few_filters_pass_on_infinities_of_their_windows_alone(kernel, attributes):
    """A row of a window ends within a vector, whose other elements belong to other windows or count already."""
    sample = of_integers(forward("", (2, 9, 11, 21), (2, 21, *kernel), attributes), seed=1, low=1)
    sample.inputs[0][0, 4, 5, 7] = np.inf
    found, (expected,) = run_kernel(sample, "float32")[0], expected_outputs(sample, sample.inputs)
    assert 0 < np.count_nonzero(np.isinf(expected)) <= 18
    np.testing.assert_array_equal(found, expected)


@has_amx
@pytest.mark.parametrize("x, w, strides", [((2, 31, 29, 64), (96, 64, 3, 3), (2, 2)), ((1, 40, 41, 96), (64, 96, 4, 3), (3, 2))])
def test_implicit_gemm_on_amx_rounds_less_than_direct_sums_on_vectors(x, w, strides):
    y, gradients = (make("", x, w, SAME | {"strides": strides}) for make in (forward, backward))
    for sample, output in ((y, 0), (gradients, 0), (gradients, 1)):
        assert rounding_error(sample, output, direct=1, tiles=True) < rounding_error(sample, output, direct=1)


@has_amx
def test_implicit_gemm_on_amx_handles_infinities_like_vectors():
    attributes = SAME | {"strides": (2, 2), "direct": 1}
    for sample in (make("", (2, 31, 29, 64), (96, 64, 3, 3), attributes) for make in (forward, backward)):
        sample.inputs[0][0, 6, 5, 7] = np.inf
        for tiles, vectors in zip(run_kernel(sample, "float32"), run_kernel(sample, "float32", tiles=False), strict=True):
            finite = np.isfinite(vectors)
            assert 0 < np.count_nonzero(~finite) < finite.size // 2
            np.testing.assert_array_equal(np.isfinite(tiles), finite)
            np.testing.assert_allclose(tiles[finite], vectors[finite], atol=1e-5)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.op_type}-{s.label}")
def test_kernels_are_bitwise_equal_for_any_number_of_workers(sample):
    single = run_kernel(sample, "float32")
    for workers in (2, 3):
        for one, other in zip(single, run_kernel(sample, "float32", workers), strict=True):
            np.testing.assert_array_equal(one, other)


class Net:
    """A builder of models with random weights from one generator."""

    def __init__(self):
        self.rng, self.nodes, self.weights = np.random.default_rng(0), [], {}

    def op(self, op_type, *inputs, **attributes):
        self.nodes.append(helper.make_node(op_type, inputs, [f"v{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def weight(self, value):
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, np.float32)
        return name

    def axes(self, *values):
        """Return the name of a constant with axes."""
        self.nodes.append(helper.make_node("Constant", [], [f"v{len(self.nodes)}"], value_ints=values))
        return self.nodes[-1].output[0]

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
    """Return a model with everything that a region may contain (all kinds of convolution, residuals, Clip, pooling, Concat) and with other operators."""
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
    trained = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                                         requires_grad=[name for name in names if name not in frozen], options=SessionOptions(**options))
    trained.train_step(*BATCH)
    return trained


def kernels_of(trained: TrainingSession) -> list[str]:
    return [step.call.kernel for step in trained._train_runner.last.plan.steps]


def convert_nodes_alone(nodes, builder, outputs, direct):
    """Return the nodes with convolutions channels-last, and every value between them in ONNX's layout."""
    return [converted for node in nodes
            for converted in (convert_to_channels_last([node], builder, node.outputs, direct) if has_any(CONVOLUTIONS, [node]) else [node])]


def test_a_region_has_the_gradients_of_its_single_operators(monkeypatch):
    region = session()
    monkeypatch.setattr(layout, "convert_to_channels_last", convert_nodes_alone)
    unfused = session()
    assert not any(kernel.startswith("channels_last_norm") for kernel in kernels_of(unfused))
    for name, expected in unfused.state.gradients.items():
        actual = region.state.gradients[name]
        np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max() + 1e-6, rtol=0, err_msg=name)


def test_clip_and_residuals_are_fused():
    kernels = kernels_of(session())
    assert not {"clip", "where", "relu", "relu_grad", "less", "batch_norm_train"}.intersection(kernels)


def test_a_sum_of_gradients_is_fused_into_a_pointwise_convolution_gradient():
    steps = [step for step in session()._train_runner.last.plan.steps if step.node.op_type in ("Sum", "ChannelsLastConvGrad")]
    sums = [step.node.attributes["kernel_shape"] for step in steps if step.node.op_type == "ChannelsLastConvGrad" and len(step.inputs) == 4]
    assert sums == [(1, 1), (1, 1)]
    assert [step.node.op_type for step in steps].count("Sum") == 1                      # of two convolutions that are not pointwise


def test_adding_a_value_to_itself_doubles_its_gradient():
    n = Net()
    x = n.op("Relu", n.conv("x", 16, 3, pads=[1] * 4))
    y = n.op("Relu", n.conv(n.op("Add", x, x), 16, 16, 1))
    model = n.model(n.op("Gemm", n.op("Flatten", n.op("GlobalAveragePool", y)), n.weight(n.rng.normal(size=(16, 10)))))
    trained = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
    trained.train_step(*BATCH)
    once = {name: array.copy() for name, array in trained.state.gradients.items()}
    for node in model.graph.node:
        if node.op_type == "Add":
            node.op_type, node.input[1] = "Mul", n.weight(2.0)
            model.graph.initializer.append(numpy_helper.from_array(np.float32(2), node.input[1]))
    doubled = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=list(once))
    doubled.train_step(*BATCH)
    for name, expected in doubled.state.gradients.items():
        np.testing.assert_allclose(once[name], expected, atol=1e-5 * np.abs(expected).max(), rtol=0, err_msg=name)


def test_transposes_occur_only_at_the_boundaries_of_a_region():
    """One at the input, and the Transpose of the model itself with those around it as one, in forward and backward pass."""
    steps = session()._train_runner.last.plan.steps
    assert [step.node.op_type for step in steps].count("Transpose") == 1 + 1 + 1


def transposes_around(op_type, *operands, **attributes):
    """Return the number of Transposes in the training program of a convolution, an operator and a convolution."""
    n = Net()
    y = n.op(op_type, n.conv("x", 16, 3, pads=[1] * 4), *map(n.weight, operands), **attributes)
    y = n.op("Flatten", n.op("GlobalAveragePool", n.conv(y, 24, 16, pads=[1] * 4)))
    model = n.model(n.op("Gemm", y, n.weight(n.rng.normal(size=(24, 10)))))
    filters = [t.name for t in model.graph.initializer if list(t.dims[2:]) == [3, 3]]
    trained = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=filters)
    trained.train_step(*BATCH)
    return [step.node.op_type for step in trained._train_runner.last.plan.steps].count("Transpose")


@pytest.mark.parametrize("op_type", ["Relu", "Softsign", "ThresholdedRelu", "Sin", "Pow", "PRelu"])
def test_an_elementwise_operator_stays_within_its_region(op_type):
    operands = {"Pow": [2.0], "PRelu": [np.full((1, 16, 1, 1), 0.1)]}
    assert transposes_around(op_type, *operands.get(op_type, [])) == 1                  # of the input


def test_a_transposed_convolution_stays_within_its_region():
    assert transposes_around("ConvTranspose", np.full((16, 16, 2, 2), 0.1), strides=[2, 2]) == 1      # of the input


def test_a_bias_of_a_transposed_convolution_and_its_gradient_stay_within_the_region():
    assert transposes_around("ConvTranspose", np.full((16, 16, 3, 3), 0.1), np.full(16, 0.1), strides=[2, 2]) == 1


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_in_a_region_have_the_gradients_of_single_operators(monkeypatch, rank):
    def gradients():
        n = Net()
        x = n.op("MaxPool", "x", kernel_shape=[16, 1]) if rank == 1 else "x"
        x = n.op("Squeeze", x, n.axes(2)) if rank == 1 else n.op("Reshape", x, n.axes(0, 3, 4, 8, 8)) if rank == 3 else x
        y = n.op("Relu", n.op("Conv", x, n.weight(n.rng.normal(size=(20, 3, *[3] * rank)))))
        y = n.op("ConvTranspose", y, n.weight(n.rng.normal(size=(20, 24, *[4] * rank)) / 10), n.weight(n.rng.normal(size=24)), strides=[2] * rank)
        y = n.op("ConvTranspose", n.op("Relu", y), n.weight(n.rng.normal(size=(24, 16, *[3] * rank)) / 10), strides=[2] * rank, output_padding=[1] * rank)
        model = n.model(n.op("Gemm", n.op("Flatten", n.op("GlobalAveragePool", y)), n.weight(n.rng.normal(size=(16, 10)))))
        trained = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
        trained.train_step(*BATCH)
        return kernels_of(trained), trained.state.gradients

    kernels, actual = gradients()
    monkeypatch.setattr(layout, "convert_to_channels_last", convert_nodes_alone)
    unfused, expected = gradients()
    assert kernels.count("strided_copy") < unfused.count("strided_copy")
    for name, wanted in expected.items():
        np.testing.assert_allclose(actual[name], wanted, atol=1e-4 * np.abs(wanted).max(), rtol=0, err_msg=name)


def test_winograd_can_be_disabled_for_a_session():
    fast, direct = session(), session(enable_winograd=False)
    direct_flags = [{step.node.attributes["direct"] for step in trained._train_runner.last.plan.steps if step.node.op_type == "ChannelsLastConv"}
                    for trained in (fast, direct)]
    assert direct_flags == [{0}, {1}]
