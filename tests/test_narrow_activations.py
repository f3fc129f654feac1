"""Narrow activations: sessions of precision bfloat16 keep what the backward pass reads in half the memory, and train as well."""

import numpy as np
import pytest

from ortrain import SessionOptions, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.ops.registry.record import record_of
from ortrain.plan.emission import may_read_rounded
from ortrain.plan.narrow_activations import NarrowActivations
from tests.core.test_convolution import Net
from tests.test_rematerialization import BATCH, NETWORKS, assert_same_bits, program_of, residual_blocks, trained


def perceptron(layers: int = 24, width: int = 256):
    """Dense layers with ReLU: in the backward pass all activations are operands of products or masks."""
    n = Net()
    x, inputs = n.op("Reshape", "x", n.op("Constant", value_ints=[512, 6])), 6
    for _ in range(layers):
        x = n.op("Relu", n.op("Gemm", x, n.weight(n.rng.normal(size=(inputs, width)) / np.sqrt(inputs)), n.weight(np.zeros(width))))
        inputs = width
    x = n.op("ReduceMean", n.op("Reshape", x, n.op("Constant", value_ints=[4, 128, width])), axes=[1], keepdims=0)
    return n.model(n.op("Gemm", x, n.weight(n.rng.normal(size=(width, 10)))))


def exponentials():
    """Products whose exponentials are recomputed from what the gradients of their factors read as well."""
    n = Net()
    x, inputs = n.op("Reshape", "x", n.op("Constant", value_ints=[512, 6])), 6
    for _ in range(6):
        y = n.op("MatMul", x, n.weight(n.rng.normal(size=(inputs, 128)) / inputs))
        x, inputs = n.op("Mul", n.op("Exp", n.op("Mul", y, n.weight(np.full(128, 0.1)))), y), 128
    x = n.op("ReduceMean", n.op("Reshape", x, n.op("Constant", value_ints=[4, 128, 128])), axes=[1], keepdims=0)
    return n.model(n.op("Gemm", x, n.weight(n.rng.normal(size=(128, 10)))))


def gated_layers(layers: int = 4, width: int = 1024):
    """Wide layers between narrow ones: whatever is restored beside their activations is the peak."""
    n = Net()
    x, inputs = n.op("Reshape", "x", n.op("Constant", value_ints=[512, 6])), 6
    for _ in range(layers):
        y = n.op("Gemm", x, n.weight(n.rng.normal(size=(inputs, width)) / np.sqrt(inputs)), n.weight(np.zeros(width)))
        x, inputs = n.op("Gemm", n.op("Mul", y, n.op("Sigmoid", y)), n.weight(n.rng.normal(size=(width, 64)) / np.sqrt(width)), n.weight(np.zeros(64))), 64
    x = n.op("ReduceMean", n.op("Reshape", x, n.op("Constant", value_ints=[4, 128, 64])), axes=[1], keepdims=0)
    return n.model(n.op("Gemm", x, n.weight(n.rng.normal(size=(64, 10)))))


ALL = [*NETWORKS, perceptron, exponentials, gated_layers]
networks = pytest.mark.parametrize("network", ALL, ids=lambda network: network.__name__)


def in_bfloat16(model, **options) -> TrainingSession:
    """Return a session of precision bfloat16 after one step, with its gradients."""
    return trained(model, 1, None, precision="bfloat16", **options)


def not_narrowed(monkeypatch, model, **options) -> TrainingSession:
    with monkeypatch.context() as patch:
        patch.setattr(NarrowActivations, "run", lambda self: self.deferred)
        return in_bfloat16(model, **options)


def narrow_values(session: TrainingSession) -> list[str]:
    plan = program_of(session).plan
    return [name for step in plan.steps for name in step.outputs if name in plan.types and plan.types[name].dtype == "bfloat16"]


def cosine(one: TrainingSession, other: TrainingSession) -> float:
    a, b = (np.concatenate([session.state.gradients[name].ravel() for name in sorted(session.state.gradients)]).astype(np.float64) for session in (one, other))
    return float(a @ b / np.sqrt(a @ a * (b @ b)))


def tainted_reads(session: TrainingSession) -> list[tuple[object, int]]:
    """Return (step, index of the input) for every read of a restored value, or of one that was recomputed from restored ones by other operators than products,
    which round their operands anyway."""
    found, tainted = [], set()
    for step in program_of(session).plan.steps:
        reads = [index for index, name in enumerate(step.inputs) if any(part in tainted for part in name.split("::of "))]
        found += [(step, index) for index in reads if step.node.op_type != "Cast"]
        is_recomputed = any("::recomputed" in name for name in step.outputs)
        if reads and is_recomputed and not record_of(step.node).takes_bfloat16 or any("::restored" in name for name in step.outputs):
            tainted.update(step.outputs)
    return found


@pytest.mark.parametrize("network, ratio",
                         [(perceptron, 0.57), (lambda: residual_blocks(64, 8), 0.7), (exponentials, 0.67), (NETWORKS[-1], 0.71), (gated_layers, 0.65)],
                         ids=["perceptron", "deep residual blocks", "exponentials", "feed-forward blocks", "gated layers"])
def test_networks_take_less_memory_than_in_float32(monkeypatch, network, ratio):
    vectors = {"enable_amx": False}                                       # convolutions on tiles need less scratch than Winograd's
    before = program_of(not_narrowed(monkeypatch, network(), **vectors)).arena_bytes
    assert before == program_of(trained(network(), 1, None, **vectors)).arena_bytes
    assert program_of(in_bfloat16(network(), **vectors)).arena_bytes <= ratio * before


def test_operands_of_products_and_masks_of_relu_keep_their_bits(monkeypatch):
    narrowed = in_bfloat16(perceptron())
    assert len(narrow_values(narrowed)) > 20
    assert_same_bits(narrowed, not_narrowed(monkeypatch, perceptron()))


@pytest.mark.parametrize("steps", [2, 4], ids=["gradients that are read", "updated parameters"])
def test_operands_of_deferred_gradients_keep_their_bits(monkeypatch, steps):
    model = perceptron(8, 1024)
    narrowed = trained(model, steps, precision="bfloat16")
    program = program_of(narrowed)
    assert any("::restored" in name for step in program.plan.steps[program.deferred_updates_start : program.deferred_gradients_start] for name in step.inputs)
    assert any("::restored" in name for step in program.plan.steps[program.deferred_gradients_start :] for name in step.inputs)
    monkeypatch.setattr(NarrowActivations, "run", lambda self: self.deferred)
    other = trained(model, steps, precision="bfloat16")
    assert_same_bits(narrowed, other)
    assert program.arena_bytes < 0.8 * program_of(other).arena_bytes


@networks
def test_gradients_keep_their_direction(monkeypatch, network):
    assert cosine(in_bfloat16(network()), not_narrowed(monkeypatch, network())) > 0.999


@networks
def test_only_inputs_that_records_name_are_read_rounded(network):
    for share in (0, 0.07, 1):
        session = in_bfloat16(network(), rematerialization=share, enable_elementwise_fusion=False)
        reads = tainted_reads(session)
        assert len(narrow_values(session)) == 0 or reads
        assert all(may_read_rounded(step.node, index, ()) for step, index in reads)


def test_exponentials_are_not_recomputed_from_rounded_values():
    session = in_bfloat16(exponentials(), rematerialization=1, enable_elementwise_fusion=False)
    recomputed = [step.node.op_type for step in program_of(session).plan.steps if any("::recomputed" in name for name in step.outputs)]
    assert "Exp" in recomputed
    assert "Exp" not in [step.node.op_type for step, _ in tainted_reads(session)]


@networks
def test_any_number_of_threads_gives_the_same_bits(network):
    one = in_bfloat16(network(), intra_op_num_threads=1)
    assert_same_bits(one, in_bfloat16(network(), intra_op_num_threads=2))


def test_elementwise_readers_restore_values_in_their_own_pass():
    fused = [step for step in program_of(in_bfloat16(perceptron())).plan.steps if step.node.op_type == "Cast+ReluGrad"]
    assert len(fused) > 20


@pytest.mark.parametrize("layers", [3, 6])
def test_values_that_are_narrow_twice_are_rounded_once(layers):
    program = program_of(in_bfloat16(gated_layers(layers, 256), rematerialization=0.4))
    parts = [part for step in program.plan.steps for part in step.parts or (step,)]
    rounded = [part.inputs[0] for part in parts if part.node.op_type == "Cast" and "::narrow" in part.outputs[0]]
    assert rounded and not any("::restored" in name for name in rounded)


def test_peaks_at_values_that_fusion_removes_do_not_end_the_narrowing():
    fused, single = (program_of(in_bfloat16(gated_layers(3), enable_elementwise_fusion=is_fused)).arena_bytes for is_fused in (True, False))
    assert fused < 0.7 * single


def test_values_are_rounded_before_a_step_that_overwrites_them():
    steps = program_of(in_bfloat16(residual_blocks(64, 8), enable_elementwise_fusion=False)).plan.steps
    rounded_at = {step.inputs[0]: index for index, step in enumerate(steps) if step.node.op_type == "Cast" and "::narrow" in step.outputs[0]}
    overwritten = [(rounded_at[step.inputs[source]], index) for index, step in enumerate(steps) for source in step.call.in_place.values()
                   if source < len(step.inputs) and step.inputs[source] in rounded_at]
    assert overwritten
    assert all(rounding < overwriting for rounding, overwriting in overwritten)


def test_forward_and_evaluation_read_no_rounded_value(monkeypatch):
    narrowed, other = in_bfloat16(perceptron()), not_narrowed(monkeypatch, perceptron())
    plan = program_of(narrowed).plan
    loss = next(index for index, step in enumerate(plan.steps) if plan.outputs[0] in step.outputs)
    assert not any("::restored" in name for step in plan.steps[:loss] for name in step.inputs)
    narrowed.eval_step(*BATCH)
    assert all(step.node.op_type != "Cast" for step in narrowed._eval_runner.last.plan.steps)
    np.testing.assert_array_equal(narrowed.train_step(*BATCH)[0], other.train_step(*BATCH)[0])


def test_exceptions_keep_the_values_that_they_read_in_float32():
    assert not narrow_values(in_bfloat16(perceptron(), float32_nodes=("*",)))
    some = narrow_values(in_bfloat16(perceptron(), float32_nodes=("Gemm",)))
    assert len(some) < len(narrow_values(in_bfloat16(perceptron())))


@pytest.mark.parametrize("options", [{"optimizer_in_backward": True}, {"rematerialization": 0}, {"rematerialization": 0.4}, {}],
                         ids=["optimizer in backward", "nothing recomputed", "much recomputed", "deferred gradients"])
@networks
def test_sessions_train_like_those_that_keep_float32(monkeypatch, network, options):
    def parameters(session: TrainingSession) -> np.ndarray:
        return np.concatenate([session.state.trainable[name].ravel() for name in sorted(session.state.trainable)]).astype(np.float64)

    start = parameters(trained(network(), 0))
    narrowed = parameters(trained(network(), 4, OptimType.SGD, precision="bfloat16", **options)) - start
    with monkeypatch.context() as patch:
        patch.setattr(NarrowActivations, "run", lambda self: self.deferred)
        expected = parameters(trained(network(), 4, OptimType.SGD, precision="bfloat16", **options)) - start
    assert narrowed @ expected > 0.998 * np.sqrt(narrowed @ narrowed * (expected @ expected)) > 0


def test_a_program_for_another_batch_size_narrows_as_well():
    model = residual_blocks()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    weights = [tensor.name for tensor in model.graph.initializer if len(tensor.dims) > 1]
    drawn = np.random.default_rng(4)
    batches = {size: (drawn.normal(size=(size, 3, 16, 16)).astype(np.float32), drawn.integers(0, 10, size)) for size in (8, 12)}

    def gradients(*sizes: int) -> TrainingSession:
        session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, requires_grad=weights, options=SessionOptions(precision="bfloat16"))
        for size in sizes:
            session.lazy_reset_grad()
            session.train_step(*batches[size])
        return session

    both, second = gradients(8, 12), gradients(12)
    assert narrow_values(both) and len(narrow_values(both)) == len(narrow_values(second))
    assert program_of(both).template is not None
    assert_same_bits(both, second)
