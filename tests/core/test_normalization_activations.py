"""Activations behind a normalization between convolutions become a part of it, with the results that they have alone."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import layout

NORMALIZATIONS = {
    "batch": "z, m, v = BatchNormalization<training_mode=1>(a, scale, bias, mean, variance)",
    "group": "z = GroupNormalization<num_groups=4>(a, scale, bias)",
}
ACTIVATIONS = {
    "Swish": ("s = Sigmoid(z) h = Mul(z, s)", {"activation": "Swish", "alpha": 1.0}),
    "QuickGelu": ("h = com.microsoft.QuickGelu<alpha=1.5>(z)", {"activation": "Swish", "alpha": 1.5}),
    "LeakyRelu": ("h = LeakyRelu<alpha=0.25>(z)", {"activation": "LeakyRelu", "alpha": 0.25}),
    "HardSwish": ("h = HardSwish(z)", {"activation": "HardSwish"}),
    "Relu": ("h = Relu(z)", {"low": 0.0, "closed": 0}),
    "Clip": ("h = Clip(z, zero, six)", {"low": 0.0, "high": 6.0, "closed": 1}),
}
KINDS = "Swish", "Gelu", "Relu", "Clip", "Where"
"""Parts of the names of steps that compute an activation or its gradient."""
OPERATORS = {"batch": "ChannelsLastBatchNormalization", "group": "ChannelsLastGroupNorm"}
WEIGHTS = {"w0": (8, 3, 3, 3), "scale": (8,), "bias": (8,), "w1": (5, 8, 3, 3)}
WIDE = ",".join(["1.0"] * 8)


def trained(normalization, activation, further=""):
    """Return the losses of some steps, the trained weights and the steps of the plan. further: nodes behind the activation."""
    text = f"""<ir_version: 8, opset_import: ["" : 21, "com.microsoft" : 1]> g (double[n,3,9,7] x) => (double[n,5] y)
        <double[8] mean={{{WIDE}}}, double[8] variance={{{WIDE}}}, double zero={{0}}, double six={{6}}, int64[2] spatial={{2,3}}> {{
        a = Conv<pads=[1,1,1,1]>(x, w0) {NORMALIZATIONS[normalization]} {ACTIVATIONS[activation][0]} {further or 'k = Identity(h)'}
        b = Conv<pads=[1,1,1,1]>(k, w1) y = ReduceMean<keepdims=0>(b, spatial) }}"""
    generator, model = np.random.default_rng(1), parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(generator.standard_normal(shape), name) for name, shape in WEIGHTS.items())
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=list(WEIGHTS)) as session:
        session.learning_rate, losses = 0.05, []
        for rows in (6, 6, 2):
            losses.append(float(session.train_step(generator.standard_normal((rows, 3, 9, 7)), np.arange(rows) % 5)[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
        return losses, [session.state.array(name).copy() for name in WEIGHTS], [step.node for step in session._train_runner.last.plan.steps]


@pytest.fixture
def without_epilogues(monkeypatch):
    """A function that trains with activations as steps of their own."""

    def run(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(layout, "fuse_epilogues", lambda nodes, *_: list(nodes))
            return trained(*arguments)

    return run


def check_alike(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    for weights, others in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(weights, others, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_an_activation_and_its_gradient_are_parts_of_the_normalization(normalization, activation, without_epilogues):
    found, expected = trained(normalization, activation), without_epilogues(normalization, activation)
    assert any(kind in node.op_type for node in expected[2] for kind in KINDS)
    by_kind = {node.op_type: node for node in found[2]}
    assert not any(kind in op_type for op_type in by_kind for kind in KINDS)
    for operator in (OPERATORS[normalization], f"{OPERATORS[normalization]}Grad"):
        assert ACTIVATIONS[activation][1].items() <= by_kind[operator].attributes.items()
    check_alike(found, expected)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_an_activation_whose_input_has_another_reader_is_a_step_of_its_own(normalization, without_epilogues):
    further = "k = Add(h, z)"
    found = trained(normalization, "Swish", further)
    assert not any(node.attributes.get("activation") for node in found[2])
    check_alike(found, without_epilogues(normalization, "Swish", further))
