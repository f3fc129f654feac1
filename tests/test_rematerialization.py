"""Rematerialization: lower peak memory, bit-identical results, and no more time than the session's share allows."""

from collections import Counter

import numpy as np
import pytest
from onnx import numpy_helper

from ortrain import SessionOptions, TrainingSession, lora
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import planner, rematerialization, scheduling
from ortrain.plan.emission import Emission
from ortrain.plan.liveness import live_bytes
from ortrain.plan.rematerialization import OPERATIONS_PER_BYTE, Rematerialization
from tests.core.test_convolution import Net

RECOMPUTED_NORM = "ChannelsLastBatchNormalizationRecompute"
RNG = np.random.default_rng(2)
BATCH = RNG.normal(size=(4, 3, 16, 16)).astype(np.float32), np.array([1, 3, 5, 7])


def conv_norm(n: Net, x: str, filters: int, channels: int, kernel: int = 3) -> str:
    return n.norm(n.conv(x, filters, channels, kernel, pads=[kernel // 2] * 4), filters)


def classified(n: Net, x: str, channels: int):
    y = n.op("Flatten", n.op("GlobalAveragePool", x))
    return n.model(n.op("Gemm", y, n.weight(n.rng.normal(size=(channels, 10)))))


def residual_blocks(channels: int = 64, blocks: int = 3):
    """Two convolutions beside a shortcut, as in ResNet (He et al., arXiv 1512.03385)."""
    n = Net()
    x = n.op("Relu", conv_norm(n, "x", channels, 3))
    for _ in range(blocks):
        y = n.op("Relu", conv_norm(n, x, channels, channels))
        x = n.op("Relu", n.op("Add", conv_norm(n, y, channels, channels), x))
    return classified(n, x, channels)


def projected_shortcuts(kernel: int = 1):
    """Blocks that halve the feature map, with a convolution and a normalization in each shortcut."""
    n = Net()
    x, channels = n.op("Relu", conv_norm(n, "x", 32, 3)), 32
    for _ in range(2):
        y = n.op("Relu", n.norm(n.conv(x, 2 * channels, channels, strides=[2, 2], pads=[1] * 4), 2 * channels))
        y = conv_norm(n, y, 2 * channels, 2 * channels)
        x = n.op("Relu", n.op("Add", y, n.norm(n.conv(x, 2 * channels, channels, kernel, strides=[2, 2]), 2 * channels)))
        channels *= 2
    return classified(n, x, channels)


def preactivated_blocks():
    """Normalization and ReLU before each convolution (He et al., arXiv 1603.05027)."""
    n = Net()
    x = n.conv("x", 64, 3, pads=[1] * 4)
    for _ in range(3):
        y = n.conv(n.op("Relu", n.norm(x, 64)), 64, 64, pads=[1] * 4)
        x = n.op("Add", n.conv(n.op("Relu", n.norm(y, 64)), 64, 64, pads=[1] * 4), x)
    return classified(n, x, 64)


def group_normalized_blocks():
    """Group normalization and Swish before each convolution, as in diffusion models (Ho et al., arXiv 2006.11239)."""
    n = Net()

    def normalized(x: str) -> str:
        constants = [n.op("Constant", value_floats=[value] * 8) for value in (1.0, 0.0)]
        groups = n.op("InstanceNormalization", n.op("Reshape", x, n.op("Constant", value_ints=[0, 8, -1])), *constants)
        y = n.op("Mul", n.op("Reshape", groups, n.op("Constant", value_ints=[4, 64, 16, 16])), n.weight(np.ones((64, 1, 1))))
        y = n.op("Add", y, n.weight(np.zeros((64, 1, 1))))
        return n.op("Mul", y, n.op("Sigmoid", y))

    x = n.conv("x", 64, 3, pads=[1] * 4)
    for _ in range(3):
        y = n.conv(normalized(x), 64, 64, pads=[1] * 4)
        x = n.op("Add", n.conv(normalized(y), 64, 64, pads=[1] * 4), x)
    return classified(n, x, 64)


def skips_by_concatenation():
    """The activations computed first are read last, as in U-Net (Ronneberger et al., arXiv 1505.04597)."""
    n = Net()
    outer = n.op("Relu", conv_norm(n, "x", 64, 3))
    inner = n.op("Relu", conv_norm(n, outer, 64, 64))
    y = n.op("Relu", conv_norm(n, inner, 64, 64))
    y = n.op("Relu", conv_norm(n, n.op("Concat", y, inner, axis=1), 64, 128))
    return classified(n, n.op("Relu", conv_norm(n, n.op("Concat", y, outer, axis=1), 64, 128)), 64)


def feed_forward_blocks():
    """Normalized dense layers beside shortcuts, as in transformers, on values that are read under two shapes."""
    n = Net()

    def dense(x: str, inputs: int, outputs: int) -> str:
        return n.op("MatMul", x, n.weight(n.rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)))

    x = dense(n.op("Reshape", "x", n.op("Constant", value_ints=[4, 48, 16])), 16, 256)
    for _ in range(3):
        y = dense(n.op("LayerNormalization", x, n.weight(np.ones(256))), 256, 512)
        x = n.op("Add", x, dense(n.op("Mul", y, n.op("Sigmoid", y)), 512, 256))
    return n.model(dense(n.op("ReduceMean", x, axes=[1], keepdims=0), 256, 10))


NETWORKS = [residual_blocks, projected_shortcuts, preactivated_blocks, group_normalized_blocks, skips_by_concatenation, feed_forward_blocks]
SHARES = 0, 0.03, 0.1, 0.4, 1


def trained(model, steps: int = 3, optimizer: OptimType | None = OptimType.AdamW, **options) -> TrainingSession:
    """Return a session after some training steps. The last step accumulates into the gradients of the step before.

    Without an optimizer no gradients are deferred, so that none are in the arena after a step."""
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    names = [tensor.name for tensor in model.graph.initializer if tensor.name not in statistics]
    session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=optimizer, requires_grad=names,
                                         options=SessionOptions(**options))
    for step in range(steps):
        session.train_step(*BATCH)
        if step < steps - 2 or options.get("optimizer_in_backward"):
            if optimizer is not None:
                session.optimizer_step()
            session.lazy_reset_grad()
    return session


def program_of(session: TrainingSession):
    return session._train_runner.last


def operators(session: TrainingSession) -> list[str]:
    return [step.node.op_type for step in program_of(session).plan.steps]


def assert_same_bits(one: TrainingSession, other: TrainingSession) -> None:
    for part in ("gradients", "trainable", "frozen"):
        arrays = getattr(other.state, part)
        for name, array in getattr(one.state, part).items():
            np.testing.assert_array_equal(array, arrays[name], err_msg=f"{part} {name}")


def computed_twice(session: TrainingSession) -> Counter[str]:
    """Count the recomputed operators."""
    return Counter(step.node.op_type for step in program_of(session).plan.steps if any("::recomputed" in name for name in step.outputs))


networks = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)


@networks
def test_networks_take_less_memory_with_identical_results(network):
    kept, recomputed = trained(network(), rematerialization=0), trained(network())
    assert program_of(recomputed).arena_bytes <= 0.95 * program_of(kept).arena_bytes
    assert_same_bits(kept, recomputed)


@networks
def test_nothing_is_computed_twice_that_saves_less_memory_than_its_time_is_worth(network, monkeypatch):
    assert computed_twice(trained(network()))
    monkeypatch.setattr(rematerialization, "MIN_FREED_PER_TIME", 1e6)
    assert not computed_twice(trained(network()))


def test_the_exchange_rate_is_that_of_sessions_without_a_share_of_their_own():
    assert SessionOptions().rematerialization == rematerialization.PRICED_SHARE


@networks
def test_larger_share_of_time_takes_less_memory_with_identical_results(network):
    sessions = [trained(network(), rematerialization=share) for share in SHARES]
    arenas = [program_of(trained(network(), 1, None, rematerialization=share)).arena_bytes for share in SHARES]
    assert arenas == sorted(arenas, reverse=True) and arenas[-1] <= 0.9 * arenas[0]
    for session in sessions[1:]:
        assert_same_bits(sessions[0], session)


@networks
@pytest.mark.parametrize("share", SHARES[1:])
def test_optimizer_in_backward_gives_identical_results(network, share):
    """Recomputations read parameters, so they must run before the parameters are updated."""
    kept, recomputed = (trained(network(), rematerialization=share, optimizer_in_backward=True) for share in (0, share))
    assert program_of(recomputed).arena_bytes < program_of(kept).arena_bytes
    assert_same_bits(kept, recomputed)


def test_nothing_is_tried_where_gradients_for_the_optimizer_step_are_nearly_all_of_the_memory(monkeypatch):
    def dense_layers(width: int):
        n = Net()
        x, inputs = n.op("Reshape", "x", n.op("Constant", value_ints=[64, 48])), 48
        for _ in range(24):
            x, inputs = n.op("Relu", n.op("Gemm", x, n.weight(n.rng.normal(size=(inputs, width)) / np.sqrt(inputs)), n.weight(np.zeros(width)))), width
        x = n.op("ReduceMean", n.op("Reshape", x, n.op("Constant", value_ints=[4, 16, width])), axes=[1], keepdims=0)
        return n.model(n.op("Gemm", x, n.weight(n.rng.normal(size=(width, 10)))))

    searches = []
    monkeypatch.setattr(Rematerialization, "run", lambda self, share: searches.append(share) or self.steps)
    trained(dense_layers(256))
    assert not searches
    trained(dense_layers(256), optimizer=None)               # gradients are accumulated, and activations are what is live
    assert searches


@networks
def test_nothing_is_recomputed_with_share_zero(network):
    assert not computed_twice(trained(network(), rematerialization=0))


def test_cheapest_per_byte_is_recomputed_first():
    assert set(computed_twice(trained(residual_blocks(), rematerialization=0.01))) == {RECOMPUTED_NORM}


def test_convolutions_and_matmuls_are_recomputed_with_large_share():
    assert "ChannelsLastConv" in computed_twice(trained(residual_blocks(), rematerialization=1))
    assert "MatMul" in computed_twice(trained(feed_forward_blocks(), rematerialization=1))


@networks
def test_nothing_is_recomputed_beside_a_terabyte_of_parameters(network, monkeypatch):
    monkeypatch.setattr(planner, "rematerialize", lambda *arguments, original=planner.rematerialize: original(*arguments[:-1], 1 << 40))
    assert not computed_twice(trained(network(), rematerialization=1))


def test_random_operators_are_not_recomputed():
    n = Net()
    x = n.op("MatMul", n.op("Reshape", "x", n.op("Constant", value_ints=[192, 16])), n.weight(n.rng.normal(size=(16, 256)) / 4))
    half, training = n.op("Constant", value_float=0.5), n.op("Constant", value=numpy_helper.from_array(np.array(True)))
    for _ in range(3):
        y = n.op("Dropout", n.op("LayerNormalization", x, n.weight(np.ones(256))), half, training)
        x = n.op("Add", x, n.op("MatMul", y, n.weight(n.rng.normal(size=(256, 256)) / 16)))
    y = n.op("ReduceMean", n.op("Reshape", x, n.op("Constant", value_ints=[4, 48, 256])), axes=[1], keepdims=0)
    session = trained(n.model(n.op("MatMul", y, n.weight(n.rng.normal(size=(256, 10))))), rematerialization=1)
    assert computed_twice(session)
    assert not [name for name in computed_twice(session) if "Dropout" in name]


def test_last_blocks_of_a_residual_network_are_kept():
    """Recomputing values that are needed right after the forward pass would save nothing."""
    steps = program_of(trained(residual_blocks())).plan.steps
    norms = [step for step in steps if step.node.op_type == "ChannelsLastBatchNormalization"]
    recomputed_inputs = {step.inputs[0] for step in steps if step.node.op_type == RECOMPUTED_NORM}
    assert recomputed_inputs
    assert norms[-1].inputs[0] not in recomputed_inputs


def test_a_group_normalization_is_recomputed_from_its_statistics():
    assert "ChannelsLastGroupNormRecompute" in computed_twice(trained(group_normalized_blocks()))


def test_nothing_is_recomputed_at_low_arithmetic_intensity():
    n = Net()
    x = n.op("Relu", conv_norm(n, "x", 64, 3, 1))
    for _ in range(4):
        x = n.op("Relu", n.norm(n.conv(x, 64, 1, group=64, pads=[1] * 4), 64))
    assert RECOMPUTED_NORM not in operators(trained(classified(n, x, 64), rematerialization=0.03))


def test_an_activation_is_recomputed_before_a_bias_whose_matrix_product_would_have_to_be_repeated():
    """With adapters on all layers of a transformer, biases came first by their own cost, and with them the matrix
    products before them, while the activations of feed-forward layers stayed in memory."""
    n = Net()

    def dense(x: str, inputs: int, outputs: int) -> str:
        return n.op("Add", n.op("MatMul", x, n.weight(n.rng.normal(size=(inputs, outputs)) / np.sqrt(inputs))), n.weight(np.zeros(outputs)))

    x = dense(n.op("Reshape", "x", n.op("Constant", value_ints=[4, 48, 16])), 16, 256)
    for _ in range(4):
        x = n.op("Add", x, n.op("Mul", dense(x, 256, 256), dense(x, 256, 256)))
        x = n.op("Add", x, dense(n.op("Softplus", dense(x, 256, 512)), 512, 256))
    adapted = lora.add(n.model(dense(n.op("ReduceMean", x, axes=[1], keepdims=0), 256, 10)), rank=4)
    session = TrainingSession.from_model(adapted, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=lora.parameters(adapted),
                                         options=SessionOptions(rematerialization=0.02))
    session.train_step(*BATCH)
    assert computed_twice(session)["Softplus"] >= 3 and "MatMul" not in computed_twice(session)


@pytest.mark.parametrize("share", SHARES[1:])
def test_recomputation_stays_within_its_share(share):
    session = trained(residual_blocks(), rematerialization=share)
    with session.profile() as profile:
        session.train_step(*BATCH)

    def estimated_cost(steps):
        return sum((step.operations or 0) + OPERATIONS_PER_BYTE * step.bytes for step in steps)

    recomputed_positions = {index for index, step in enumerate(program_of(session).plan.steps) if any("::recomputed" in name for name in step.outputs)}
    recomputed = [step for step in profile.steps if step.position in recomputed_positions]
    assert 0 < estimated_cost(recomputed) <= share * estimated_cost([step for step in profile.steps if step.position not in recomputed_positions])


def test_guard_is_not_costed_as_its_node():
    """The cost model of a recurrent layer, applied to the guard of its lengths, would access axes that the lengths do
    not have."""
    plan = program_of(trained(residual_blocks())).plan
    checks = [step for step in plan.steps if step.guard is not None]
    assert [step.operations(plan.types) for step in checks] == [None]
    assert checks[0].traffic(plan.types) == BATCH[1].nbytes


@networks
@pytest.mark.parametrize(("optimizer", "max_ratio"), [(None, 1.03), (OptimType.AdamW, 1.1)])
def test_arena_is_close_to_peak_of_live_bytes(network, optimizer, max_ratio, monkeypatch):
    """The margin is larger with an optimizer: values kept for its step are at the beginning of the arena, reserved
    across programs."""
    emitted = []
    monkeypatch.setattr(Emission, "run", lambda self, handle, run=Emission.run: emitted.append((self, run(self, handle))) or emitted[-1][1])
    program = program_of(trained(network(), 1, optimizer))
    emission = next(emission for emission, planned in emitted if planned is program)
    live = live_bytes(emission.steps, emission.lifetimes.blocks(emission.steps))
    assert emission.lifetimes.live_bytes(emission.steps)[0] == live            # which the search adds up without blocks
    assert max(live) <= program.arena_bytes <= max_ratio * max(live)


def test_gradients_are_live_until_accumulated_only():
    n = Net()
    y = n.op("Flatten", "x")
    for _ in range(8):
        y = n.op("Relu", n.op("MatMul", y, n.weight(n.rng.normal(size=(768, 768)) / 30)))
    session = trained(n.model(n.op("MatMul", y, n.weight(n.rng.normal(size=(768, 10))))))
    assert program_of(session).arena_bytes < 2 * 768 * 768 * 4


def test_operands_of_pinned_steps_are_computed_before_them():
    """Regression test: the value of a shortcut was delayed until the sum, while a pinned dropout beside it read its
    memory earlier."""
    n = Net()
    half, training = n.op("Constant", value_float=0.5), n.op("Constant", value=numpy_helper.from_array(np.array(True)))
    x = n.op("MatMul", n.op("Reshape", "x", n.op("Constant", value_ints=[192, 16])), n.weight(n.rng.normal(size=(16, 256)) / 4))
    y = n.op("MatMul", n.op("Dropout", x, half, training), n.weight(n.rng.normal(size=(256, 256)) / 16))
    y = n.op("ReduceMean", n.op("Reshape", n.op("Add", x, y), n.op("Constant", value_ints=[4, 48, 256])), axes=[1], keepdims=0)
    steps = program_of(trained(n.model(n.op("MatMul", y, n.weight(n.rng.normal(size=(256, 10))))))).plan.steps
    produced_at = {name: index for index, step in reversed(list(enumerate(steps))) for name in step.outputs if name}
    assert any(step.call.kernel == "dropout" for step in steps)
    assert [name for index, step in enumerate(steps) for name in step.inputs if produced_at.get(name, -1) >= index] == []


def test_shortcut_gradient_is_computed_after_its_block(monkeypatch):
    """With a 1 x 1 kernel the sum of the two gradients is fused into it, so it runs at the position of the sum."""
    with monkeypatch.context() as patch:
        patch.setattr(scheduling, "delay_large_outputs", lambda steps, *_: steps)
        at_once = trained(projected_shortcuts(2))
    delayed = trained(projected_shortcuts(2))
    assert program_of(delayed).arena_bytes <= program_of(at_once).arena_bytes
    assert_same_bits(at_once, delayed)

    def kernel_sizes(session):
        """Return the kernel sizes of the convolutions whose data gradients are computed, in this order."""
        return [step.node.attributes["kernel_shape"][0] for step in program_of(session).plan.steps
                if step.node.op_type == "ChannelsLastConvGrad" and step.outputs[0]]

    assert kernel_sizes(at_once)[-3:] == [2, 3, 3]
    assert kernel_sizes(delayed)[-3:] == [3, 3, 2]
    assert kernel_sizes(trained(projected_shortcuts()))[-3:] == [3, 3, 1]
