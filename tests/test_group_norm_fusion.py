"""Fusion of group normalization: forms of exporters become one operator with equal values, near misses do not, and networks stay channels-last."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.fusion import OPSETS, fuse
from ortrain.loading.loader import load_model
from ortrain.ops.registry.shape_inference import infer
from ortrain.runtime.inference_session import InferenceSession

GROUPS, CHANNELS = 3, 6
rng = np.random.default_rng(4)
FEEDS = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in
         (("x", (2, CHANNELS, 4, 5)), ("w", (CHANNELS,)), ("b", (CHANNELS,)), ("ones", (GROUPS,)), ("p", (CHANNELS, 1, 1)), ("m", (1, CHANNELS, 1, 1)))}
RESHAPED = "r = Reshape(x, into) i = InstanceNormalization<epsilon=0.01>(r, ones, zeros) s = Shape(x) g = Reshape(i, s) "
OPERATOR = "g = GroupNormalization<epsilon=0.01, num_groups=3>(x, ones, zeros) "
AFFINE = "u = Unsqueeze(w, axes) v = Unsqueeze(b, axes) t = Mul(g, u) y = Add(t, v)"


def model_of(nodes, inputs="w b p m", ones=1.0, opset=18, batch="n", outputs="y"):
    """Return a model over x [n, 6, 4, 5]. inputs: those beside x. ones: the scale of the groups, where it is no input."""
    others = "".join(f", float{list(FEEDS[name].shape)} {name}" for name in inputs.split())
    scale = "" if "ones" in inputs.split() else f"float[{GROUPS}] ones={{{','.join([str(ones)] * GROUPS)}}}, "
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[{batch},{CHANNELS},4,5] x{others}) =>
        ({', '.join(f'float[{batch},{CHANNELS},4,5] {name}' for name in outputs.split())})
        <{scale}float[{GROUPS}] zeros={{{','.join(['0.0'] * GROUPS)}}}, int64[3] into={{0,{GROUPS},-1}}, int64[2] axes={{1,2}},
         int64[3] flat={{{CHANNELS},1,1}}, int64[4] rows={{0,0,5,4}}> {{ {nodes} }}"""
    model = load_model(parser.parse_model(text))
    model.opsets |= OPSETS
    model.graph.types |= infer(model)
    return model


FORMS = {
    "with weights that are unsqueezed": RESHAPED + AFFINE,
    "with weights that are reshaped": RESHAPED + "u = Reshape(w, flat) v = Reshape(b, flat) t = Mul(u, g) y = Add(v, t)",
    "with weights of shape [c, 1, 1] and [1, c, 1, 1]": RESHAPED + "t = Mul(g, p) y = Add(t, m)",
    "without a bias": RESHAPED + "y = Mul(g, p)",
    "without a scale": RESHAPED + "y = Add(g, m)",
    "without weights": RESHAPED + "y = Identity(g)",
    "by the operator that scales groups": OPERATOR + AFFINE,
}


def operators(model):
    return [node.op_type for node in model.graph.nodes]


def run(model):
    return InferenceSession(model).run(None, {name: FEEDS[name] for name in model.graph.inputs})


@pytest.mark.parametrize("batch", ["n", "2"])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_group_normalization_becomes_one_operator_with_equal_values(form, batch):
    model = model_of(FORMS[form], batch=batch)
    x = FEEDS["x"].astype(np.float64).reshape(2, GROUPS, -1)
    normalized = ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.01)).reshape(FEEDS["x"].shape)
    expected = run(model.copy())[0]
    if form == "without weights":
        np.testing.assert_allclose(expected, normalized, rtol=1e-5, atol=1e-5)
    assert fuse(model.graph) == 1
    assert operators(model).count("GroupNorm") == 1 and not {"InstanceNormalization", "GroupNormalization", "Mul", "Add"} & set(operators(model))
    np.testing.assert_allclose(run(model)[0], expected, rtol=2e-5, atol=1e-5)


NEAR_MISSES = {
    "the scale of groups is not 1": {"nodes": RESHAPED + AFFINE, "ones": 2.0},
    "the scale of groups is an input": {"nodes": RESHAPED + AFFINE, "inputs": "w b ones"},
    "the result has another shape": {"nodes": RESHAPED.replace("g = Reshape(i, s)", "g = Reshape(i, rows)") + "y = Reshape(g, s)"},
    "the normalized groups are an output": {"nodes": RESHAPED + "y = Identity(g) z = Reshape(i, s)", "outputs": "y z"},
}

@pytest.mark.parametrize("reason", NEAR_MISSES)
def test_a_near_miss_is_not_fused(reason):
    model = model_of(**NEAR_MISSES[reason])
    assert fuse(model.graph) == 0 and "GroupNorm" not in operators(model)


def test_a_scale_of_groups_that_is_trained_is_not_taken_for_a_constant():
    model = model_of(RESHAPED + AFFINE)
    assert fuse(model.graph, trained=["ones"]) == 0


def test_a_sum_with_another_image_stays():
    model = model_of(RESHAPED + "y = Add(g, x)")
    expected = run(model.copy())[0]
    assert fuse(model.graph) == 1 and operators(model)[-1] == "Add"
    np.testing.assert_allclose(run(model)[0], expected, rtol=2e-5, atol=1e-5)


NETWORK = """<ir_version: 8, opset_import: ["" : 18]> g (float[n,3,9,7] x) => (float[n,5] y)
    <float[4] ones={1,1,1,1}, float[4] zeros={0,0,0,0}, int64[3] into={0,4,-1}, int64[2] axes={1,2}, int64[2] spatial={2,3}> {
    a = Conv<pads=[1,1,1,1]>(x, w0) r = Reshape(a, into) i = InstanceNormalization(r, ones, zeros) s = Shape(a) g = Reshape(i, s)
    u = Unsqueeze(scale, axes) v = Unsqueeze(bias, axes) t = Mul(g, u) q = Add(t, v) e = Sigmoid(q) h = Mul(q, e)
    b = Conv<pads=[1,1,1,1]>(h, w1) y = ReduceMean<keepdims=0>(b, spatial) }"""


def trained(**options):
    """Return the losses of some steps, the trained weights and the plan of a train step."""
    generator = np.random.default_rng(1)
    weights = {"w0": (12, 3, 3, 3), "scale": (12,), "bias": (12,), "w1": (5, 12, 3, 3)}
    model = parser.parse_model(NETWORK)
    model.graph.initializer.extend(numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items())
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=list(weights), **options) as session:
        session.learning_rate, losses = 0.05, []
        for rows in (6, 6, 2):
            losses.append(float(session.train_step(generator.standard_normal((rows, 3, 9, 7)).astype(np.float32), np.arange(rows) % 5)[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
        return losses, session.to_buffer(), session._train_runner.last.plan


def test_a_network_of_convolutions_stays_channels_last_and_trains_as_without_fusion(monkeypatch):
    losses, weights, plan = trained()
    steps = {step.node.op_type: step.node for step in plan.steps}
    assert steps["ChannelsLastGroupNorm"].attributes["activation"] == steps["ChannelsLastGroupNormGrad"].attributes["activation"] == "Swish"
    assert not any(name in kind for kind in steps for name in ("Sigmoid", "Swish", "Gelu"))
    monkeypatch.setattr("ortrain.training.binding.fused_training_model", lambda model: model)
    expected_losses, expected_weights, unfused = trained()
    assert "ChannelsLastGroupNorm" not in {step.node.op_type for step in unfused.steps}
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
