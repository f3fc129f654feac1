"""Every sample's gradient agrees with central differences along a random direction in float64, and float32 gradients agree with float64 ones."""

import numpy as np
import onnx.checker
import pytest

from ortrain._core.engine import EngineHandle
from ortrain.formats.onnx_files import to_proto
from ortrain.gradient import add_gradient
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.ops.registry.record import REGISTRY
from ortrain.ops.registry.shape_inference import infer
from ortrain.plan import plan_program
from tests.ops.harness import arena_for, cast, node_of
from tests.ops.test_kernels import all_samples

STEPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
"""Step lengths of the differences, of which the best one counts: a long step may cross a point that is not differentiable, a short one rounds."""
TOLERANCE = 1e-7


def checked_inputs(sample):
    """Return the inputs whose gradients are checked: `indices`, or else all float inputs that the record lets gradients flow to."""
    record = REGISTRY[sample.domain, sample.op_type]
    if sample.indices is not None:
        return list(sample.indices)
    return [i for i, x in enumerate(sample.inputs)
            if x is not None and np.asarray(x).dtype.kind == "f" and i not in record.stop_gradient and i not in sample.constants]


def scalar_model(sample, dtype, seed=3):
    """Return a model whose loss is the inner product of the operator's float outputs with random tensors, and the values of its inputs.

    The random tensors are inputs, too: as initializers they would turn the gradients of linear operators into constants."""
    arrays = cast(sample, dtype)
    node = node_of(sample)
    graph = Graph(inputs=[], nodes=[node])
    for name, x, i in zip(node.inputs, arrays, range(len(arrays)), strict=True):
        if x is None:
            continue
        if i in sample.constants:
            graph.initializers[name] = x
        else:
            graph.inputs.append(name)
            graph.types[name] = TensorType.of(x)
    model = Model(graph, {"": 17 if sample.domain else sample.opset, "com.microsoft": 1}, ir_version=8)
    types = infer(model)
    rng = np.random.default_rng(seed)
    values, terms = [x for i, x in enumerate(arrays) if x is not None and i not in sample.constants], []
    for k, y in enumerate(node.outputs):
        if types[y].dtype != dtype:
            continue
        values.append(np.asarray(rng.standard_normal(types[y].shape), dtype))
        graph.inputs.append(f"direction{k}")
        graph.types[f"direction{k}"] = TensorType.of(values[-1])
        graph.nodes += [Node("Mul", [y, f"direction{k}"], [f"product{k}"]), Node("ReduceSum", [f"product{k}"], [f"term{k}"], attributes={"keepdims": 0})]
        terms.append(f"term{k}")
    graph.nodes.append(Node("Sum", terms, ["loss"]))
    graph.outputs = ["loss"]
    return model, values


def run(model, values, outputs):
    """Return the named outputs of a model, run on one thread."""
    program = plan_program(model, {n: TensorType.of(v) for n, v in zip(model.graph.inputs, values, strict=True)}, {}, outputs, EngineHandle(1))
    program.bind_arena(arena_for(program))
    return program.try_run(tuple(np.ascontiguousarray(v).reshape(np.shape(v)) for v in values))


def gradients(sample, dtype):
    """Return (input values of the sample's scalar model, names of the checked inputs, their gradients)."""
    model, values = scalar_model(sample, dtype)
    names = [f"x{i}" for i in checked_inputs(sample)]
    gradient_names = add_gradient(model, "loss", names)
    return values, names, run(model, values, [gradient_names[name] for name in names])


def differentiable_samples():
    """Yield the samples whose gradients are checked, as test parameters."""
    for parameter in all_samples():
        sample = parameter.values[0]
        record = REGISTRY[sample.domain, sample.op_type]
        if sample.gradient and record.differentiable and (record.gradient or record.decompose) and checked_inputs(sample):
            yield parameter


def slope(loss, step):
    """Return the derivative of loss(x) at 0: central differences with two step lengths, extrapolated to an error of fourth order."""
    wide, narrow = ((loss(h) - loss(-h)) / (2 * h) for h in (step, step / 2))
    return (4 * narrow - wide) / 3


@pytest.mark.parametrize("sample", list(differentiable_samples()))
def test_a_gradient_agrees_with_central_differences(sample):
    values, names, computed = gradients(sample, "float64")
    forward, _ = scalar_model(sample, "float64")
    program = plan_program(forward, {n: TensorType.of(v) for n, v in zip(forward.graph.inputs, values, strict=True)}, {}, ["loss"], EngineHandle(1))
    program.bind_arena(arena_for(program))
    rng = np.random.default_rng(5)
    for name, gradient in zip(names, computed, strict=True):
        index = forward.graph.inputs.index(name)
        x = values[index]
        assert gradient.shape == x.shape
        direction = rng.standard_normal(x.shape)

        def loss(distance, index=index, x=x, direction=direction):
            inputs = [*values[:index], x + distance * direction, *values[index + 1 :]]
            return float(program.try_run(tuple(np.ascontiguousarray(v).reshape(np.shape(v)) for v in inputs))[0].reshape(()))

        analytic, value = float((gradient * direction).sum()), loss(0.0)
        scale = max(float(np.abs(gradient * direction).sum()), 1e-4 * max(1.0, abs(value)))
        assert min(abs(slope(loss, step) - analytic) for step in STEPS) < TOLERANCE * scale


@pytest.mark.parametrize("sample", list(differentiable_samples()))
def test_a_float32_gradient_agrees_with_float64(sample):
    (_, _, exact), (_, _, rounded) = gradients(sample, "float64"), gradients(sample, "float32")
    for expected, actual in zip(exact, rounded, strict=True):
        scale = float(np.abs(expected).max()) if expected.size else 1.0
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * max(scale, 1.0))


@pytest.mark.parametrize("sample", [p for p in differentiable_samples() if "Pool" not in p.values[0].op_type and "Simplified" not in p.values[0].op_type])
def test_a_gradient_graph_is_valid_onnx(sample):
    """Pooling and SimplifiedLayerNormalization are excluded: ONNX Runtime puts operators of theirs into ONNX's domain, which onnx's checker refuses."""
    model, _ = scalar_model(sample, "float32")
    gradient_names = add_gradient(model, "loss", [f"x{i}" for i in checked_inputs(sample)])
    model.graph.outputs += [name for name in gradient_names.values() if name not in model.graph.outputs]
    model.graph.types |= infer(model)
    onnx.checker.check_model(to_proto(model))
