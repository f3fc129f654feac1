"""The checks of every real model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import ortrain
from ortrain.artifacts import LossType, OptimType
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.loading.loader import load_model
from tests.real_models.catalog import FEEDS, inputs_of

STEPS = 5
DIRECTIONS = 3
DISTANCES = (1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
"""Step lengths of central differences, of which the best counts: long steps cross points where clips and ReLUs are not differentiable, short ones round."""
FORWARD = 1e-4
"""Tolerance of outputs, relative to the largest one."""
HALF = 2**-7
"""The same for float16 models: 16 roundings."""
GRADIENT = 1e-4
"""Relative tolerance of the derivative along a direction."""


@dataclass
class Result:
    """One row of the table."""

    model: str
    parameters: int = 0
    forward: float = np.nan
    losses: tuple[float, float] = (np.nan, np.nan)
    gradient: float = np.nan
    exported: float = np.nan
    error: str = ""
    halves: bool = False

    @property
    def passed(self) -> bool:
        """Whether all figures are within their tolerances."""
        limit = HALF if self.halves else FORWARD
        fits = self.forward < limit and self.losses[1] < self.losses[0] and self.exported < limit
        return not self.error and fits and (self.halves or self.gradient < GRADIENT)


def stock(model: bytes | str, feeds: dict[str, np.ndarray], names: list[str] | None = None) -> list[np.ndarray]:
    """Return the outputs of a model in onnxruntime."""
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    return session.run(names, {name: array for name, array in feeds.items() if name in wanted})


def distance(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Return the largest deviation, relative to the largest element of each output."""
    return max(float(np.abs(a.astype(float) - b.astype(float)).max() / max(float(np.abs(b).max()), 1e-12)) for a, b in zip(got, wanted, strict=True))


def fixed_inputs(name: str, feeds: dict[str, np.ndarray]) -> dict:
    """Return the options of generate_artifacts that fix shapes and values of inputs."""
    if not FEEDS[name].fixed:
        return {}
    values = {key: array for key, array in feeds.items() if key == "sr"}
    return {"input_shapes": {key: array.shape for key, array in feeds.items() if key not in values}, "input_values": values}


def check(name: str, data: bytes, folder: Path) -> Result:
    """Run all checks of a model and return its row; an exception becomes the error of the row."""
    result = Result(name)
    try:
        feeds = inputs_of(name, data)
        reference = stock(data, feeds)
        result.forward = distance(ortrain.InferenceSession(data).run(None, feeds), reference)
        output = next(index for index, array in enumerate(reference) if array.dtype.kind == "f")
        train(result, name, data, feeds, output, reference[output].shape, folder)
        result.gradient = along_directions(name, data, feeds, output, reference[output].shape)
    except Exception as error:
        result.error = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return result


def train(result: Result, name: str, data: bytes, feeds: dict[str, np.ndarray], output: int, shape: tuple[int, ...], folder: Path) -> None:
    """Train some steps towards fixed random targets, and compare the exported model with onnxruntime."""
    output_name = load_model(data).graph.outputs[output]
    options = fixed_inputs(name, feeds) | {"learning_rate": FEEDS[name].learning_rate}
    target = np.random.default_rng(1).random(shape, dtype=np.float32)
    with ortrain.TrainingSession.from_model(data, loss=LossType.MSELoss, optimizer=OptimType.AdamW, loss_input_names=[output_name],
                                            **options) as session:
        result.parameters = len(session.state.trainable)
        given = [feeds.get(key, target) for key in session.input_names()]
        losses = []
        for _ in range(STEPS):
            losses.append(float(session.train_step(*given)[0].reshape(-1)[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
        result.losses = losses[0], min(losses)
        path = folder / name
        session.export(path, [output_name])
        names = [key for key in session.input_names(False) if key in feeds]
        own = session.predict(**{key: feeds[key] for key in names}, output_names=[output_name])
        result.exported = distance(stock(str(path), feeds), own)


# ---- in half precision


HALVES_LEFT_OUT = {
    "ch_PP-OCRv4_det_infer.onnx": "running variances beyond what float16 holds",
    "thai2rom_decoder.onnx": "onnxruntime 1.23 crashes on it in float16",
    "nmp.onnx": "logarithms of what float16 rounds: 1.6e-2 of the largest output from onnxruntime",
    **dict.fromkeys(("Run_1663829550_Stage_0.onnx", "Run_1663915512_Stage_0.onnx", "Run_1668423760_Stage_0.onnx", "bak_ovr.onnx", "sig.onnx",
                     "sig_bak_ovr.onnx", "model_v8.onnx", "plcmos_v2.onnx"), "onnxruntime crashes on one of the package's models in float16"),
}


def check_half(name: str, data: bytes, folder: Path) -> Result:
    """Run all checks except for gradients on a model that onnxruntime's converter has converted to float16, with the tolerances of float16."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    result = Result(name, halves=True)
    try:
        half = convert_float_to_float16(onnx.load_model_from_string(data)).SerializeToString()
        feeds = inputs_of(name, half)
        reference = stock(half, feeds)
        result.forward = distance(ortrain.InferenceSession(half).run(None, feeds), reference)
        output = next(index for index, array in enumerate(reference) if array.dtype.kind == "f")
        train(result, name, half, feeds, output, reference[output].shape, folder)
    except Exception as error:
        result.error = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return result


# ---- gradients, in float64


def in_float64(model: Model) -> Model:
    """Return the model in float64 instead of float32; values that determine sizes are unchanged."""
    copy = model.copy()
    graph = copy.graph
    kept = {name for node in graph.nodes if node.op_type in ("Resize", "Upsample") for name in node.inputs[1:]}
    _widen(graph, kept)
    return copy


def _widen(graph: Graph, kept: set[str]) -> None:
    graph.initializers = {name: array.astype(np.float64) if array.dtype == np.float32 and name not in kept else array
                          for name, array in graph.initializers.items()}
    graph.types = {name: TensorType("float64" if kind.dtype == "float32" else kind.dtype, kind.shape) for name, kind in graph.types.items()}
    for node in graph.nodes:
        for key, value in node.attributes.items():
            if isinstance(value, Graph):
                _widen(value, kept)
            elif isinstance(value, np.ndarray) and value.dtype == np.float32:
                node.attributes[key] = value.astype(np.float64)
        if node.op_type == "Cast" and node.attributes["to"] == 1:
            node.attributes["to"] = 11


def with_product(model: Model, output: str, shape: tuple[int, ...]) -> Model:
    """Return the model with the inner product of its output and an input of weights as its only output.

    This loss has no constant part, which would hide differences of outputs that hardly change."""
    graph, names = model.graph, NameSource(model.graph.names())
    weights, product, loss = (names.unique(name) for name in ("weights", "product", "loss"))
    graph.inputs.append(weights)
    graph.types[weights] = TensorType("float64", shape)
    graph.nodes += [Node("Mul", [output, weights], [product]), Node("ReduceSum", [product], [loss], attributes={"keepdims": 0})]
    graph.outputs = [loss]
    graph.types[loss] = TensorType("float64", ())
    return model


def along_directions(name: str, data: bytes, feeds: dict[str, np.ndarray], output: int, shape: tuple[int, ...]) -> float:
    """Return the largest relative difference between gradient and central difference along random directions of all parameters."""
    model = load_model(data)
    model = with_product(in_float64(model), model.graph.outputs[output], shape)
    random = np.random.default_rng(2)
    wide = {key: array.astype(np.float64) if array.dtype == np.float32 else array for key, array in feeds.items()}
    with ortrain.TrainingSession.from_model(model, optimizer=OptimType.AdamW, **fixed_inputs(name, feeds)) as session:
        given = [wide[key] if key in wide else random.standard_normal(shape) for key in session.input_names()]

        def loss() -> float:
            session.lazy_reset_grad()
            return float(session.train_step(*given)[0].reshape(-1)[0])

        loss()
        parameters = session.state.trainable
        gradients = {key: session.state.gradients[key].copy() for key in parameters}
        return max(_one_direction(parameters, gradients, loss, random) for _ in range(DIRECTIONS))


def _one_direction(parameters: dict[str, np.ndarray], gradients: dict[str, np.ndarray], loss, random: np.random.Generator) -> float:
    start = {key: array.copy() for key, array in parameters.items()}
    direction = {key: random.standard_normal(array.shape) * (np.abs(array).mean() + 1e-3) for key, array in parameters.items()}
    got = sum(float((gradients[key] * direction[key]).sum()) for key in parameters)
    differences = []
    for step in DISTANCES:
        values = []
        for sign in (1, -1):
            for key, array in parameters.items():
                array[...] = start[key] + sign * step * direction[key]
            values.append(loss())
        wanted = (values[0] - values[1]) / (2 * step)
        differences.append(abs(got - wanted) / max(abs(wanted), abs(got), 1e-9))
    for key, array in parameters.items():
        array[...] = start[key]
    return min(differences)
