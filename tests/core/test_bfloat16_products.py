"""Products of bfloat16 operands: they round as a reference in NumPy does, with the same bits for any number of workers and, on x86-64 without AMX, whether the
processor multiplies bfloat16 numbers or not, and sessions of that precision train like those of float32."""

import ctypes
import importlib
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain._core.engine import EngineHandle, has_bfloat16_vectors, multiplies_bfloat16
from ortrain._core.kernel_table import instruction_set
from ortrain.artifacts import LossType, OptimType
from ortrain.errors import InvalidArgumentError
from ortrain.runtime.segments import aligned_zeros
from tests.core.test_convolution import has_amx
from tests.core.test_products import SHAPES, TILED_SHAPES, gemm, infinite
from tests.documents.models import perceptron
from tests.layers import ROOT
from tests.ops.harness import run_kernel
from tests.ops.samples import Sample

rng = np.random.default_rng(5)
SMALLEST_SIDE = 24
"""Products with a smaller side or depth stay in float32 (_core/engine.pyx)."""


PAIRS = {"precision": "bfloat16", "enable_amx": False}
"""Options of a session whose products are computed in pairs on processors with AMX, too, which otherwise round only those that suit tiles."""


def engine(workers=1, tiles=False):
    """Return an engine of products of bfloat16 operands, on AMX tiles if `tiles`, else in pairs."""
    handle = EngineHandle(workers)
    handle.amx = tiles
    handle.precision = "bfloat16"
    return handle


def rounded(x):
    """Return float32 numbers rounded to bfloat16, ties to even; subnormal numbers become zero."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    nearest = ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), nearest))


def operands(m, n, k, ta, tb):
    return (rng.standard_normal(shape).astype(np.float32) for shape in ((k, m) if ta else (m, k), (n, k) if tb else (k, n)))


def exact_product(a, b, ta, tb):
    """Return the product of rounded operands, in float64."""
    a, b = (rounded(x).astype(np.float64) for x in (a, b))
    with np.errstate(invalid="ignore"):
        return (a.T if ta else a) @ (b.T if tb else b)


@pytest.mark.parametrize("m, n, k", [shape for shape in SHAPES + TILED_SHAPES if min(shape) >= SMALLEST_SIDE])
def test_only_operands_are_rounded_and_any_number_of_workers_gives_the_same_bits(m, n, k):
    handles = [engine(workers) for workers in (1, 2, 3)]
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = operands(m, n, k, ta, tb)
            exact, row, full = exact_product(a, b, ta, tb), rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
            for c, expected, bias in ((None, exact, False), (row, exact + row, True), (full, exact + full, False)):
                results = [gemm(handle, a, b, c, m, n, k, ta, tb, bias=bias) for handle in handles]
                np.testing.assert_allclose(results[0], expected, atol=2e-6 * (k + 1) + 1e-6 * np.abs(expected).max())
                for other in results[1:]:
                    np.testing.assert_array_equal(results[0], other)
            np.testing.assert_allclose(gemm(handles[1], a, b, None, m, n, k, ta, tb, alpha=0.5), 0.5 * exact, atol=2e-6 * (k + 1))


WITH_TILES = """
import importlib, sys
import numpy as np
from ortrain._core.kernel_table import instruction_set
importlib.import_module(f"ortrain._core.instruction_sets.{instruction_set()}.gemm").GEMM["amx"] = True        # before the engine asks
from tests.core.test_bfloat16_products import small_products
for tiles, pairs, in_float32 in zip(small_products("bfloat16", True), small_products("bfloat16", False), small_products("float32", True)):
    assert tiles.any() and np.array_equal(tiles, in_float32) and not np.array_equal(pairs, in_float32)
print("compared")
"""


def small_products(precision, tiles):
    """Return what a matrix multiplication and a weight gradient of a convolution make of operands that are too small for tiles."""
    drawn = np.random.default_rng(6)
    x, w, dy, pixels = (drawn.standard_normal(shape) for shape in ((30, 32), (32, 100), (2, 4, 5, 40), (2, 4, 5, 33)))
    samples = [Sample("MatMul", [x, w], None), Sample("ChannelsLastConvGrad", [dy, pixels, drawn.standard_normal((40, 33, 1, 1))], None, {}, "ortrain", 3)]
    return [output for sample in samples for output in run_kernel(sample, "float32", tiles=tiles, precision=precision)[:2]]


@pytest.mark.skipif(instruction_set() not in ("avx2", "avx512"), reason="processors with AMX have these instruction sets")
def test_products_that_do_not_suit_tiles_stay_in_float32_where_a_processor_has_tiles():
    environment = {name: value for name, value in os.environ.items() if name != "ORTRAIN_GEMM"}
    done = subprocess.run([sys.executable, "-c", WITH_TILES], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "compared", done.stderr


@pytest.mark.parametrize("m, n, k", [(1, 300, 300), (300, 23, 300), (23, 300, 300), (300, 300, 23)])
def test_small_products_stay_in_float32(m, n, k):
    a, b = operands(m, n, k, 0, 0)
    np.testing.assert_array_equal(gemm(engine(), a, b, None, m, n, k, 0, 0), gemm(EngineHandle(), a, b, None, m, n, k, 0, 0))


def test_float64_stays_float64():
    a, b = rng.standard_normal((64, 64)), rng.standard_normal((64, 64))
    np.testing.assert_array_equal(gemm(engine(), a, b, None, 64, 64, 64, 0, 0), gemm(EngineHandle(), a, b, None, 64, 64, 64, 0, 0))


def test_infinities_and_nans_spread_as_in_float32():
    a, b = rng.standard_normal((64, 96)).astype(np.float32), rng.standard_normal((48, 96)).astype(np.float32)
    infinite(a, b)
    for ta, tb, first, second in ((0, 1, a, b), (1, 0, a.T.copy(), b.T.copy())):
        found = gemm(engine(), first, second, None, 64, 48, 96, ta, tb)
        expected = exact_product(first, second, ta, tb)
        finite = np.isfinite(expected)
        assert 0 < finite.sum() < finite.size
        np.testing.assert_array_equal(found[~finite], expected[~finite])
        np.testing.assert_allclose(found[finite], expected[finite], atol=1e-4)


def test_numbers_are_rounded_to_nearest_even_and_subnormal_ones_to_zero():
    tie, tiny = np.float32(2.0**-8), np.finfo(np.float32).tiny
    numbers = np.array([1, 1 + tie, 1 + 3 * tie, 1 + tie + 2.0**-23, 1 + tie - 2.0**-23, -1 - tie, tiny, tiny / 2, -tiny / 4, 3e38, np.finfo(np.float32).max,
                        -0.0, np.inf, -np.inf], np.float32)
    a = np.zeros((len(numbers) + SMALLEST_SIDE, SMALLEST_SIDE), np.float32)
    a[: len(numbers), 0] = numbers
    b = np.zeros((SMALLEST_SIDE, SMALLEST_SIDE), np.float32)
    b[0, 0] = 1
    found = gemm(engine(), a, b, None, *a.shape[:1], SMALLEST_SIDE, SMALLEST_SIDE, 0, 0)[: len(numbers), 0]
    np.testing.assert_array_equal(found, rounded(numbers))
    assert rounded(numbers[1]) == 1 and rounded(numbers[3]) > 1 and np.isinf(found[10])


def packed_gemm(module):
    """Return the GEMM of one module on one thread: a function of the operands, whether they are transposed, m, n and k."""
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    gemm = importlib.import_module(f"ortrain._core.instruction_sets.{instruction_set()}.{module}").GEMM
    signature = (flag, flag, size, size, size, ctypes.c_float, pointer, size, pointer, size, flag, pointer, size, pointer, flag, pointer)
    function = ctypes.CFUNCTYPE(None, *signature)(gemm["packed_gemm"])
    workspace = aligned_zeros(gemm["workspace_floats"], np.dtype(np.float32))

    def multiply(a, b, ta, tb, m, n, k):
        c = np.zeros((m, n), np.float32)
        function(ta, tb, m, n, k, 1, a.ctypes.data, a.shape[1], b.ctypes.data, b.shape[1], 0, c.ctypes.data, n, None, 0, workspace.ctypes.data)
        return c

    return multiply


def with_vectors_of(name):
    """Skip a test unless the instruction set has this name and the processor multiplies vectors of bfloat16 numbers."""
    return pytest.mark.skipif(instruction_set() != name or not has_bfloat16_vectors(), reason=f"needs the instruction set {name} with products of bfloat16")


each_shape = pytest.mark.parametrize("m, n, k", [(1, 1, 1), (7, 5, 3), (8, 48, 64), (33, 17, 129), (200, 300, 700), (96, 513, 1031), (20, 130, 1300)])


@with_vectors_of("avx512")
@each_shape
def test_an_x86_processor_gives_the_bits_of_the_portable_kernels(m, n, k):
    native, portable = packed_gemm("gemm_bfloat16_native"), packed_gemm("gemm_bfloat16")
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = operands(m, n, k, ta, tb)
            np.testing.assert_array_equal(native(a, b, ta, tb, m, n, k), portable(a, b, ta, tb, m, n, k))


@with_vectors_of("neon")
@each_shape
def test_an_arm_processor_differs_from_the_portable_kernels_by_the_rounding_of_sums_only(m, n, k):
    native, portable = packed_gemm("gemm_bfloat16_native"), packed_gemm("gemm_bfloat16")
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = operands(m, n, k, ta, tb)
            found = native(a, b, ta, tb, m, n, k)
            np.testing.assert_allclose(found, exact_product(a, b, ta, tb), atol=2e-6 * (k + 1))
            assert k < 64 or (found != portable(a, b, ta, tb, m, n, k)).any()
            a, b = (np.rint(4 * x) for x in (a, b))
            np.testing.assert_array_equal(native(a, b, ta, tb, m, n, k), portable(a, b, ta, tb, m, n, k), "sums of whole numbers, which are exact")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """The path of a perceptron with layers that are large enough for bfloat16."""
    path = tmp_path_factory.mktemp("network") / "perceptron.onnx"
    perceptron(str(path), [64, 96, 48], "x", "y", ["first", "second"])
    return path


def train(network, steps=10, **options):
    """Return the losses of some steps on one batch, and the trained parameters."""
    drawn = np.random.default_rng(3)
    batch, losses = (drawn.standard_normal((40, 64)).astype(np.float32), drawn.integers(0, 48, 40)), []
    with ortrain.TrainingSession.from_model(network, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                                            options=ortrain.SessionOptions(**options)) as session:
        for _ in range(steps):
            losses.append(float(session.train_step(*batch)[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
        return losses, {name: parameter.data.copy() for name, parameter in session.parameters}


def test_a_session_trains_like_one_of_float32_and_keeps_float32_weights(network):
    losses, parameters = train(network, **PAIRS)
    expected, _ = train(network)
    assert losses != expected, "no product took bfloat16 operands"
    np.testing.assert_allclose(losses, expected, rtol=0.01)
    assert {value.dtype.name for value in parameters.values()} == {"float32"}
    assert any((value != rounded(value)).any() for value in parameters.values())


def test_a_session_gives_the_same_bits_for_any_number_of_threads(network):
    losses, parameters = train(network, **PAIRS, intra_op_num_threads=1)
    for threads in (2, 3):
        others, found = train(network, **PAIRS, intra_op_num_threads=threads)
        assert others == losses
        for name, value in parameters.items():
            np.testing.assert_array_equal(value, found[name])


def recurrent_network(layer, gates, inputs, hidden):
    """Return a model of one recurrent layer, whose last state is classified."""
    drawn = np.random.default_rng(8)
    weights = {name: (drawn.standard_normal(shape) / 4).astype(np.float32)
               for name, shape in (("W", (1, gates * hidden, inputs)), ("R", (1, gates * hidden, hidden)), ("head", (hidden, 5)))}
    graph = helper.make_graph(
        [helper.make_node(layer, ["x", "W", "R"], ["states", "h"], "layer", hidden_size=hidden), helper.make_node("Squeeze", ["h", "first"], ["state"]),
         helper.make_node("MatMul", ["state", "head"], ["scores"], "head")], "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "rows", inputs])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("scores", "states")],
        [*(numpy_helper.from_array(value, name) for name, value in weights.items()), numpy_helper.from_array(np.array([0], np.int64), "first")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("narrow", [pytest.param(PAIRS, id="pairs"), pytest.param({"precision": "bfloat16"}, id="tiles", marks=has_amx)])
@pytest.mark.parametrize("layer, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_train_like_those_of_float32(layer, gates, narrow):
    model, x, labels = recurrent_network(layer, gates, 32, 24), rng.standard_normal((6, 8, 32)).astype(np.float32), rng.integers(0, 5, 8)
    del model.graph.output[1:]
    losses = {}
    for name, options in {"float32": {}, "bfloat16": narrow}.items():
        with ortrain.TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=["W", "R", "head"],
                                                options=ortrain.SessionOptions(**options)) as session:
            session.learning_rate, losses[name] = 0.01, []
            for _ in range(12):
                losses[name].append(float(session.train_step(x, labels)[0]))
                session.optimizer_step()
                session.lazy_reset_grad()
    assert losses["bfloat16"] != losses["float32"] and losses["float32"][-1] < 0.7 * losses["float32"][0]
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=0.02)


def test_auto_chooses_bfloat16_where_the_processor_multiplies_it(network):
    chosen = "bfloat16" if multiplies_bfloat16() else "float32"
    assert train(network, 2, precision="auto")[0] == train(network, 2, precision=chosen)[0]


@pytest.mark.parametrize("exceptions", [("*",), ("Gemm", "Dense", "GemmUpdate", "MatMul", "FusedMatMul")])
def test_exceptions_by_node_or_operator_stay_in_float32(network, exceptions):
    assert train(network, **PAIRS, float32_nodes=exceptions)[0] == train(network)[0]


def test_an_exception_covers_the_gradients_of_its_node(network):
    model = onnx.load(network)
    products = [node.name for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]
    assert train(network, **PAIRS, float32_nodes=products)[0] == train(network)[0]
    some = train(network, **PAIRS, float32_nodes=products[:1])[0]
    assert some not in (train(network)[0], train(network, **PAIRS)[0])


def test_exceptions_are_a_sequence_of_texts_or_a_configuration_entry(network):
    options = ortrain.SessionOptions(precision="bfloat16")
    options.add_session_config_entry("ortrain.float32_nodes", "first*, /decoder/*")
    assert options.float32_nodes == ("first*", "/decoder/*")
    for refused in ("first", [3], [""], 3, None):
        with pytest.raises(InvalidArgumentError, match="float32_nodes"):
            train(network, float32_nodes=refused)
