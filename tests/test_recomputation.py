"""Activations that one cheap pass makes again are not kept for the backward pass: less memory, the same bits, and no product or convolution twice."""

from collections import Counter

import numpy as np
import pytest

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import order, planner
from ortrain.plan.lifetimes import live_bytes
from ortrain.plan.recompute import OPERATIONS_PER_BYTE, SHARE
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
    """Blocks that halve the map, with a convolution and a normalisation of its own in each shortcut."""
    n = Net()
    x, channels = n.op("Relu", conv_norm(n, "x", 32, 3)), 32
    for _ in range(2):
        y = n.op("Relu", n.norm(n.conv(x, 2 * channels, channels, strides=[2, 2], pads=[1] * 4), 2 * channels))
        y = conv_norm(n, y, 2 * channels, 2 * channels)
        x = n.op("Relu", n.op("Add", y, n.norm(n.conv(x, 2 * channels, channels, kernel, strides=[2, 2]), 2 * channels)))
        channels *= 2
    return classified(n, x, channels)


def preactivated_blocks():
    """Normalisation and ReLU before each convolution (He et al., arXiv 1603.05027)."""
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


NETWORKS = [residual_blocks, projected_shortcuts, preactivated_blocks, skips_by_concatenation]


def trained(model, steps: int = 3) -> TrainingSession:
    """A session after some steps; the last one adds to the gradients of the one before."""
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    names = [tensor.name for tensor in model.graph.initializer if tensor.name not in statistics]
    session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=names)
    for step in range(steps):
        session.train_step(*BATCH)
        if step < steps - 2:
            session.optimizer_step()
            session.lazy_reset_grad()
    return session


def without(monkeypatch, model, module=planner, name: str = "recompute") -> TrainingSession:
    """The same with a pass over steps left out."""
    with monkeypatch.context() as patch:
        patch.setattr(module, name, lambda steps, *_: steps)
        return trained(model)


def program_of(session: TrainingSession):
    return session._train_runner.last


def operators(session: TrainingSession) -> list[str]:
    return [step.node.op_type for step in program_of(session).plan.steps]


def assert_same_bits(one: TrainingSession, other: TrainingSession) -> None:
    for part in ("gradients", "trainable", "frozen"):
        arrays = getattr(other.state, part)
        for name, array in getattr(one.state, part).items():
            np.testing.assert_array_equal(array, arrays[name], err_msg=f"{part} {name}")


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_networks_take_less_memory_and_get_the_same_bits(network, monkeypatch):
    kept, again = without(monkeypatch, network()), trained(network())
    assert program_of(again).arena_bytes <= 0.95 * program_of(kept).arena_bytes
    assert_same_bits(kept, again)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_only_normalisations_are_computed_twice(network, monkeypatch):
    kept, again = operators(without(monkeypatch, network())), operators(trained(network()))
    assert AGAIN not in kept
    assert Counter(name for name in again if name != AGAIN) == Counter(kept)
    assert again.count(AGAIN) <= kept.count("ChannelsLastBatchNormalization")


def test_the_last_blocks_of_a_residual_network_are_kept():
    """What is needed again right after the forward pass would save nothing."""
    steps = program_of(trained(residual_blocks())).plan.steps
    norms = [step for step in steps if step.node.op_type == "ChannelsLastBatchNormalization"]
    again = {step.inputs[0] for step in steps if step.node.op_type == AGAIN}
    assert norms[0].inputs[0] in again
    assert norms[-1].inputs[0] not in again


def test_networks_that_compute_little_for_each_byte_are_left_alone():
    n = Net()
    x = n.op("Relu", conv_norm(n, "x", 64, 3, 1))
    for _ in range(4):
        x = n.op("Relu", n.norm(n.conv(x, 64, 1, group=64, pads=[1] * 4), 64))
    assert AGAIN not in operators(trained(classified(n, x, 64)))


def test_recomputation_moves_few_bytes_beside_what_the_program_does():
    session = trained(residual_blocks())
    with session.profile() as profile:
        session.train_step(*BATCH)

    def reckoned(steps):
        return sum((step.operations or 0) + OPERATIONS_PER_BYTE * step.bytes for step in steps)

    again = [step for step in profile.steps if step.operator == AGAIN]
    assert 0 < OPERATIONS_PER_BYTE * sum(step.bytes for step in again) <= SHARE * reckoned(profile.steps)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_the_arena_is_hardly_larger_than_the_fullest_step(network, monkeypatch):
    seen = []
    monkeypatch.setattr(planner.Planner, "_lay_out", lambda self, lay_out=planner.Planner._lay_out: seen.append((self, lay_out(self))) or seen[-1][1])
    program = program_of(trained(network()))
    fullest = next(max(live_bytes(made.steps, blocks)) for made, blocks in seen if made.arena_bytes == program.arena_bytes)
    assert fullest <= program.arena_bytes <= 1.03 * fullest


def test_gradients_are_held_no_longer_than_until_they_are_accumulated():
    n = Net()
    y = n.op("Flatten", "x")
    for _ in range(8):
        y = n.op("Relu", n.op("MatMul", y, n.weight(n.rng.normal(size=(768, 768)) / 30)))
    session = trained(n.model(n.op("MatMul", y, n.weight(n.rng.normal(size=(768, 10))))))
    assert program_of(session).arena_bytes < 2 * 768 * 768 * 4


def test_the_gradient_of_a_shortcut_waits_for_that_of_the_block_beside_it(monkeypatch):
    """With a kernel of one pixel the sum of the two is part of it, and it comes where the sum is."""
    at_once, later = without(monkeypatch, projected_shortcuts(2), order, "defer"), trained(projected_shortcuts(2))
    assert program_of(later).arena_bytes <= program_of(at_once).arena_bytes
    assert_same_bits(at_once, later)

    def kernel_sizes(session):
        return [step.node.attributes["kernel_shape"][0] for step in program_of(session).plan.steps if step.node.op_type == "ChannelsLastConvGrad"]

    assert kernel_sizes(at_once)[-4:] == [2, 3, 3, 3]
    assert kernel_sizes(later)[-4:] == [3, 3, 2, 3]
    assert kernel_sizes(trained(projected_shortcuts()))[-4:] == [3, 3, 1, 3]
