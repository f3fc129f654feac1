"""What is cheap to compute again is not kept for the backward pass: less memory, the same bits, and no more of a step's time than its session allows."""

from collections import Counter

import numpy as np
import pytest
from onnx import numpy_helper

from ortrain import SessionOptions, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import planner, scheduling
from ortrain.plan.emission import Emission
from ortrain.plan.liveness import live_bytes
from ortrain.plan.rematerialization import OPERATIONS_PER_BYTE
from tests.core.test_convolution import Net

AGAIN = "ChannelsLastBatchNormalizationAgain"
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
    """Blocks that halve the map, with a convolution and a normalization of its own in each shortcut."""
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


def skips_by_concatenation():
    """What is computed first is read last, as in U-Net (Ronneberger et al., arXiv 1505.04597)."""
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


NETWORKS = [residual_blocks, projected_shortcuts, preactivated_blocks, skips_by_concatenation, feed_forward_blocks]
SHARES = 0, 0.03, 0.1, 0.4, 1


def trained(model, steps: int = 3, optimizer: OptimType | None = OptimType.AdamW, **options) -> TrainingSession:
    """A session after some steps; the last one adds to the gradients of the one before, where there are any. Without an optimizer none of them lies in the
    arena after a step."""
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
    """Operators of what is computed once more."""
    return Counter(step.node.op_type for step in program_of(session).plan.steps if any("::again" in name for name in step.outputs))


networks = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)


@networks
def test_networks_take_less_memory_and_get_the_same_bits(network):
    kept, again = trained(network(), rematerialization=0), trained(network())
    assert program_of(again).arena_bytes <= 0.95 * program_of(kept).arena_bytes
    assert_same_bits(kept, again)


@networks
def test_a_larger_share_of_time_takes_less_memory_and_gives_the_same_bits(network):
    sessions = [trained(network(), rematerialization=share) for share in SHARES]
    arenas = [program_of(trained(network(), 1, None, rematerialization=share)).arena_bytes for share in SHARES]
    assert arenas == sorted(arenas, reverse=True) and arenas[-1] <= 0.9 * arenas[0]
    for session in sessions[1:]:
        assert_same_bits(sessions[0], session)


@networks
@pytest.mark.parametrize("share", SHARES[1:])
def test_parameters_that_are_updated_on_the_way_back_get_the_same_bits(network, share):
    """What is computed again reads parameters: it is to be done before they are updated."""
    kept, again = (trained(network(), rematerialization=share, optimizer_in_backward=True) for share in (0, share))
    assert program_of(again).arena_bytes < program_of(kept).arena_bytes
    assert_same_bits(kept, again)


@networks
def test_nothing_is_computed_twice_for_no_share_of_time(network):
    assert not computed_twice(trained(network(), rematerialization=0))


def test_what_is_cheap_for_its_bytes_comes_first():
    assert set(computed_twice(trained(residual_blocks(), rematerialization=0.01))) == {AGAIN}


def test_convolutions_and_products_follow_where_there_is_time_for_them():
    assert "ChannelsLastConv" in computed_twice(trained(residual_blocks(), rematerialization=1))
    assert "MatMul" in computed_twice(trained(feed_forward_blocks(), rematerialization=1))


@networks
def test_beside_a_terabyte_of_parameters_nothing_is_worth_its_time(network, monkeypatch):
    monkeypatch.setattr(planner, "rematerialize", lambda *given, plain=planner.rematerialize: plain(*given[:-1], 1 << 40))
    assert not computed_twice(trained(network(), rematerialization=1))


def test_what_is_random_is_not_computed_twice():
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


def test_the_last_blocks_of_a_residual_network_are_kept():
    """What is needed again right after the forward pass would save nothing."""
    steps = program_of(trained(residual_blocks())).plan.steps
    norms = [step for step in steps if step.node.op_type == "ChannelsLastBatchNormalization"]
    again = {step.inputs[0] for step in steps if step.node.op_type == AGAIN}
    assert again
    assert norms[-1].inputs[0] not in again


def test_networks_that_compute_little_for_each_byte_are_left_alone():
    n = Net()
    x = n.op("Relu", conv_norm(n, "x", 64, 3, 1))
    for _ in range(4):
        x = n.op("Relu", n.norm(n.conv(x, 64, 1, group=64, pads=[1] * 4), 64))
    assert AGAIN not in operators(trained(classified(n, x, 64), rematerialization=0.03))


@pytest.mark.parametrize("share", SHARES[1:])
def test_recomputation_costs_no_more_than_its_share(share):
    session = trained(residual_blocks(), rematerialization=share)
    with session.profile() as profile:
        session.train_step(*BATCH)

    def reckoned(steps):
        return sum((step.operations or 0) + OPERATIONS_PER_BYTE * step.bytes for step in steps)

    twice = {number for number, step in enumerate(program_of(session).plan.steps) if any("::again" in name for name in step.outputs)}
    again = [step for step in profile.steps if step.position in twice]
    assert 0 < reckoned(again) <= share * reckoned([step for step in profile.steps if step.position not in twice])


def test_a_check_of_an_input_is_not_taken_for_its_node():
    """A recurrent layer's check of its lengths, reckoned as the layer, had no three axes."""
    plan = program_of(trained(residual_blocks())).plan
    checks = [step for step in plan.steps if step.guard is not None]
    assert [step.operations(plan.types) for step in checks] == [None]
    assert checks[0].traffic(plan.types) == BATCH[1].nbytes


@networks
@pytest.mark.parametrize(("optimizer", "most"), [(None, 1.03), (OptimType.AdamW, 1.1)])
def test_the_arena_is_hardly_larger_than_the_fullest_step(network, optimizer, most, monkeypatch):
    """A little more with an optimizer: what is held for its step lies at the beginning, where other programs leave it alone."""
    seen = []
    monkeypatch.setattr(Emission, "run", lambda self, handle, run=Emission.run: seen.append((self, run(self, handle))) or seen[-1][1])
    program = program_of(trained(network(), 1, optimizer))
    fullest = next(max(live_bytes(made.steps, made.lifetimes.blocks(made.steps))) for made, planned in seen if planned is program)
    assert fullest <= program.arena_bytes <= most * fullest


def test_gradients_are_held_no_longer_than_until_they_are_accumulated():
    n = Net()
    y = n.op("Flatten", "x")
    for _ in range(8):
        y = n.op("Relu", n.op("MatMul", y, n.weight(n.rng.normal(size=(768, 768)) / 30)))
    session = trained(n.model(n.op("MatMul", y, n.weight(n.rng.normal(size=(768, 10))))))
    assert program_of(session).arena_bytes < 2 * 768 * 768 * 4


def test_what_a_step_that_stays_reads_is_made_before_it():
    """A shortcut's value was put off until the sum at its end, and the dropout beside it, which is random and stays, ran on what lay there before."""
    n = Net()
    half, training = n.op("Constant", value_float=0.5), n.op("Constant", value=numpy_helper.from_array(np.array(True)))
    x = n.op("MatMul", n.op("Reshape", "x", n.op("Constant", value_ints=[192, 16])), n.weight(n.rng.normal(size=(16, 256)) / 4))
    y = n.op("MatMul", n.op("Dropout", x, half, training), n.weight(n.rng.normal(size=(256, 256)) / 16))
    y = n.op("ReduceMean", n.op("Reshape", n.op("Add", x, y), n.op("Constant", value_ints=[4, 48, 256])), axes=[1], keepdims=0)
    steps = program_of(trained(n.model(n.op("MatMul", y, n.weight(n.rng.normal(size=(256, 10))))))).plan.steps
    made = {name: number for number, step in reversed(list(enumerate(steps))) for name in step.outputs if name}
    assert any(step.call.kernel == "dropout" for step in steps)
    assert [name for number, step in enumerate(steps) for name in step.inputs if made.get(name, -1) >= number] == []


def test_the_gradient_of_a_shortcut_waits_for_that_of_the_block_beside_it(monkeypatch):
    """With a kernel of one pixel the sum of the two is part of it, and it comes where the sum is."""
    with monkeypatch.context() as patch:
        patch.setattr(scheduling, "defer", lambda steps, *_: steps)
        at_once = trained(projected_shortcuts(2))
    later = trained(projected_shortcuts(2))
    assert program_of(later).arena_bytes <= program_of(at_once).arena_bytes
    assert_same_bits(at_once, later)

    def kernel_sizes(session):
        """Of the convolutions whose gradients of the data are computed, in this order."""
        return [step.node.attributes["kernel_shape"][0] for step in program_of(session).plan.steps
                if step.node.op_type == "ChannelsLastConvGrad" and step.outputs[0]]

    assert kernel_sizes(at_once)[-3:] == [2, 3, 3]
    assert kernel_sizes(later)[-3:] == [3, 3, 2]
    assert kernel_sizes(trained(projected_shortcuts()))[-3:] == [3, 3, 1]
