"""Models with dynamic sizes: results match the reference evaluator, gradients match finite differences in float64."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import ortrain
from ortrain import errors
from ortrain.artifacts import OptimType

rng = np.random.default_rng(4)
X, Z = rng.standard_normal((2, 4, 3, 5)), rng.standard_normal((4, 6))


def parsed(inputs, body, opset=18):
    """Return a model from ONNX text; its output y is a tensor of doubles."""
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> g ({inputs}) => (double[] y) {{ {body} }}')


def with_loss(proto, shape):
    """Return the model with one output: the inner product of y and fixed random numbers, times a weight of 1."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    make_node = onnx.helper.make_node
    result.graph.node.extend([make_node("Mul", ["y", "numbers"], ["product"]), make_node("ReduceSum", ["product"], ["sum"], keepdims=0),
                            make_node("Mul", ["sum", "weight"], ["loss"])])
    for name, array in (("numbers", np.random.default_rng(0).standard_normal(shape)), ("weight", np.array(1.0))):
        result.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    result.graph.ClearField("output")
    result.graph.output.append(onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.DOUBLE, []))
    return result


def check(proto, *names, **feeds):
    """Compare the output with the reference evaluator, and the gradients of the named inputs with finite differences."""
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    (actual,) = ortrain.InferenceSession(proto).run(None, feeds)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
    with ortrain.TrainingSession.from_model(with_loss(proto, expected.shape), optimizer=OptimType.SGD, requires_grad=["weight"]) as session:
        for name, gradient in session.input_gradients(**feeds, names=list(names)).items():
            direction = np.random.default_rng(1).standard_normal(feeds[name].shape)
            high, low = (float(session.eval_step(**{**feeds, name: feeds[name] + h * direction})[0]) for h in (1e-6, -1e-6))
            np.testing.assert_allclose(float((gradient * direction).sum()), (high - low) / 2e-6, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("swapped", [False, True])
def test_differently_named_sizes_may_broadcast(swapped):
    one, many = rng.standard_normal((4, 1)), rng.standard_normal((1, 5))
    x, z = (many, one) if swapped else (one, many)
    check(parsed("double[a, b] x, double[c, d] z", "s = Add(x, z) p = Mul(s, s) y = Sub(p, x)"), "x", "z", x=x, z=z)


@pytest.mark.parametrize("limit", [-100.0, 100.0])
def test_branches_may_return_different_shapes(limit):
    body = """s = ReduceSum <keepdims = 0> (x) c = Greater(s, limit)
              q = If (c) <then_branch = t () => (double[] r) { r = ReduceSum(x) }, else_branch = e () => (double[] r2) { r2 = Identity(x) }>
              y = Mul(q, x)"""
    check(parsed("double[n, k] x, double limit", body), "x", x=Z, limit=np.array(limit))


def test_top_k_of_minus_infinity_has_zero_gradient():
    mask = np.where(np.arange(6) == 1, -np.inf, 0.0)
    check(parsed("double[n, k] x, double[k] mask", "m = Add(x, mask) count = Constant <value = int64[1] {3}> () y, i = TopK(m, count)"), "x", x=Z, mask=mask)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pad_modes_that_repeat_elements(mode):
    check(parsed("double[n, c, h, w] x", f'p = Constant <value = int64[8] {{0, 0, 1, 0, 0, 0, 2, 3}}> () y = Pad <mode = "{mode}"> (x, p)', 19), "x", x=X)


def test_pad_widths_may_be_inputs():
    check(parsed("double[n, k] x, int64[p] pads", "y = Pad(x, pads)"), "x", x=Z, pads=np.array([1, 0, 0, 2]))


@pytest.mark.parametrize("axis", ["<axis = 1>", "<axis = -2>", ""])
def test_compress_by_an_input(axis):
    kept = rng.random({"": 24, "<axis = 1>": 6, "<axis = -2>": 4}[axis]) < 0.6
    check(parsed("double[n, k] x, bool[c] kept", f"y = Compress {axis} (x, kept)"), "x", x=Z, kept=kept)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode):
    check(parsed("double[n, 4, h, w] x", f'y = DepthToSpace <blocksize = 2, mode = "{mode}"> (x)'), "x", x=X)
    check(parsed("double[n, c, h, w] x", "y = SpaceToDepth <blocksize = 2> (x)"), "x", x=X[:, :, :2, :4])


@pytest.mark.parametrize(("inputs", "body", "feeds"), [
    ("double[n] x, int64[2] size", "y = Expand(x, size)", {"x": Z[0, :1], "size": np.array([2, -3])}),
    ("double[n] x, int64[2] size", "y = Expand(x, size)", {"x": Z[0, :1], "size": np.array([1 << 31, 1 << 31])}),
    ("double[n] x, int64[1] size", "y = Resize(x, , , size)", {"x": Z[0], "size": np.array([-3])}),
    ("double a, double b, double c", "y = Range(a, b, c)", {"a": np.array(0.0), "b": np.array(1e300), "c": np.array(1.0)}),
    ("double[n] x, int64 depth, double[2] two", "i = Cast <to = 7> (x) y = OneHot(i, depth, two)", {"x": Z[0], "depth": np.array(-3), "two": Z[0, :2]}),
])
def test_invalid_sizes_are_rejected(inputs, body, feeds):
    with pytest.raises(errors.ShapeInferenceError, match="expected sizes that are not negative"):
        ortrain.InferenceSession(parsed(inputs, body)).run(None, feeds)


def test_division_by_a_size_of_zero_is_allowed():
    body = """a = Shape(x) b = Shape(z) q = Div(a, b) first = Constant <value = int64[1] {0}> ()
              size = Gather(q, first) y = Expand(one, size)"""
    proto = parsed("double[n, 3] x, double[m, 0] z, double[1] one", body)
    assert ortrain.TrainingSession.from_model(with_loss(proto, (2,)), optimizer=OptimType.SGD, requires_grad=["weight"])
