"""Diagnosis of a model or a folder of artifacts: what cannot be trained, what is known to be wrong, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ortrain.dtypes import DIFFERENTIABLE, HALVES
from ortrain.errors import OrtrainError
from ortrain.formats.artifact_names import CHECKPOINT, EVAL_MODEL, OPTIMIZER_MODEL, TRAINING_MODEL
from ortrain.formats.checkpoint import read_checkpoint
from ortrain.formats.onnx_files import read_model
from ortrain.gradient import add_gradient, values_reaching
from ortrain.ir import Graph, Model, Node
from ortrain.loading.loader import load_model
from ortrain.ops.registry.record import MICROSOFT, OpRecord, canonical_domain, record_of
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.training import BUFFER_SUFFIX, RESET_FLAG
from ortrain.passes.half_precision import OriginalTypes, convert_to_float32
from ortrain.training.session import TrainingSession

ERROR, WARNING, NOTE = "error", "warning", "note"
"""error: it cannot be trained. warning: it trains, but perhaps not as expected. note: worth knowing."""

NEWEST_OLD_IR, NEWEST_OLD_OPSET = 10, 21
"""The newest versions that onnxruntime-training 1.18 and 1.19 read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem or remark: where, why, and the remedy."""

    severity: str
    where: str
    reason: str
    remedy: str


def examine(path: str | os.PathLike[str], prefix: str = "") -> list[Finding]:
    """Return the findings for a model file, or for a folder of artifacts whose names begin with `prefix`, most severe first. Raises
    ArtifactNotFoundError."""
    place = Path(path)
    found = examine_artifacts(place, prefix) if place.is_dir() else examine_model(place)
    return sorted(found, key=lambda finding: (ERROR, WARNING, NOTE).index(finding.severity))


# ---- forward models


def examine_model(path: Path) -> list[Finding]:
    """Return the findings for one model; a training model is examined as such, any other as a forward model to be trained."""
    try:
        model = load_model(path)
    except FileNotFoundError:
        raise
    except OrtrainError as error:
        return [Finding(ERROR, str(path.name), str(error), "mend the file: onnx.checker.check_model says more")]
    if RESET_FLAG in model.graph.inputs or any(name.endswith(BUFFER_SUFFIX) for name in model.graph.inputs):
        return list(written_gradients(model))
    convert_to_float32(model)
    return [*_nodes(model), *_weights(model), *_versions(model)]


def _nodes(model: Model) -> Iterator[Finding]:
    """Find nodes without a kernel, without a gradient where one is needed, or refused by shape inference."""
    graph = model.graph
    inference = ShapeInference(model.opsets, {name: graph.types[name] for name in graph.inputs if name in graph.types}, dict(graph.initializers), graph.types)
    flows = {name for name, array in graph.initializers.items() if str(array.dtype) in DIFFERENTIABLE and array.ndim}
    broken: set[str] = set()
    for node in graph.nodes:
        record = record_of(node)
        carried = any(name in flows for i, name in enumerate(node.inputs) if record is None or i not in record.stop_gradient)
        found = _finding_of(node, record, carried)
        if found is not None:
            yield found
        if record is None or broken.intersection(node.inputs):
            broken.update(node.outputs)
        else:
            try:
                inference.visit(node)
            except OrtrainError as error:
                broken.update(node.outputs)
                yield Finding(ERROR, described(node), str(error), "change the model so that the operator's inputs fit")
        if carried and (record is None or record.differentiable):
            flows.update(name for name in node.outputs if name and _carries(inference, name))
    if not broken:
        yield from _dry_run(model, flows)


def _carries(inference: ShapeInference, name: str) -> bool:
    kind = inference.types.get(name)
    return kind is None or kind.dtype in DIFFERENTIABLE


def _finding_of(node: Node, record: OpRecord | None, carried: bool) -> Finding | None:
    own = canonical_domain(node.domain) not in ("", MICROSOFT)
    if record is None:
        remedy = "give ortrain the operator (ortrain.register_operator)" if own else "replace the operator, or use one of your own (ortrain.register_operator)"
        return Finding(ERROR, described(node), "ortrain does not know the operator", remedy)
    if record.lower is None and record.evaluate is None and record.decompose is None:
        return Finding(ERROR, described(node), "the operator has no kernel", "replace the operator")
    if carried and record.differentiable and record.gradient is None and record.decompose is None:
        return Finding(ERROR, described(node), "the operator has no gradient yet, and weights before it need one",
                       "freeze the weights before it (frozen_params), or replace the operator")
    return None


def _dry_run(model: Model, flows: set[str]) -> Iterator[Finding]:
    """Differentiate a sum of the first output that weights reach, to find what differentiation refuses."""
    trial = model.copy()
    graph = trial.graph
    output = next((name for name in graph.outputs if name in flows), None)
    if output is None:
        yield Finding(ERROR, "outputs", "no output depends on a float weight through operators that carry a gradient", "check that the weights are float32")
        return
    graph.nodes.append(Node("ReduceSum", [output], ["ortrain::doctor::loss"], "ortrain::doctor", attributes={"keepdims": 0}))
    reached = values_reaching(trial, "ortrain::doctor::loss")
    weights = [name for name, array in graph.initializers.items() if name in reached and array.ndim]
    try:
        add_gradient(trial, "ortrain::doctor::loss", weights)
    except OrtrainError as error:
        yield Finding(ERROR, "gradient", str(error), "freeze the weights before the node (frozen_params), or replace it")


def _weights(model: Model) -> Iterator[Finding]:
    halves = [name for name, kind in OriginalTypes.of(model).types.items() if kind in HALVES and name in model.graph.initializers]
    if halves:
        yield Finding(NOTE, f"{len(halves)} weights, {halves[0]!r} the first", "they are of half precision: float32 copies are trained",
                      "nothing: the exported model has their own type again")
    statistics = [name for node in model.graph.nodes if node.op_type == "BatchNormalization" for name in node.inputs[3:5]]
    twice = sorted({name for name in statistics if statistics.count(name) > 1})
    if twice:
        yield Finding(NOTE, f"{twice[0]!r}", "one initializer holds running statistics of several nodes (exporters merge equal ones)",
                      "nothing: each gets its own when artifacts are made")


def _versions(model: Model) -> Iterator[Finding]:
    if model.opset > NEWEST_OLD_OPSET:
        yield Finding(NOTE, "opset", f"the model has opset {model.opset}; onnxruntime-training 1.19 reads up to {NEWEST_OLD_OPSET}",
                      f"only if the artifacts are for it: generate_artifacts(opset_version={NEWEST_OLD_OPSET})")
    elif model.ir_version > NEWEST_OLD_IR:
        yield Finding(NOTE, "IR version", f"the model has IR version {model.ir_version}; its artifacts get {NEWEST_OLD_IR}, which the old package reads",
                      "nothing; generate_artifacts(ir_version=…) asks for another")


# ---- artifacts


def examine_artifacts(folder: Path, prefix: str = "") -> list[Finding]:
    """Return the findings for a folder that generate_artifacts wrote."""
    found: list[Finding] = []
    wanted = {TRAINING_MODEL: ERROR, CHECKPOINT: ERROR, EVAL_MODEL: WARNING, OPTIMIZER_MODEL: WARNING}
    lost = {TRAINING_MODEL: "nothing can be trained", CHECKPOINT: "there are no parameters", EVAL_MODEL: "eval, predict and export are refused",
            OPTIMIZER_MODEL: "optimizer steps, learning rate and scheduler are refused"}
    missing = [name for name in wanted if not (folder / f"{prefix}{name}").exists()]
    found += [Finding(wanted[name], f"{prefix}{name}", f"the file is not there: {lost[name]}", "make the artifacts again") for name in missing]
    if TRAINING_MODEL in missing or CHECKPOINT in missing:
        return found
    found += _statistics_and_state(folder, prefix)
    try:
        with TrainingSession.from_artifacts(folder, prefix=prefix) as session:
            found += list(written_gradients(session.training_model))
            if session.eval_model is not None:
                found += list(_order(session.training_model.graph, session.eval_model.graph))
    except OrtrainError as error:
        found.append(Finding(ERROR, "artifacts", str(error), "make the artifacts again, all from one model"))
    return found


def _statistics_and_state(folder: Path, prefix: str) -> Iterator[Finding]:
    try:
        checkpoint = read_checkpoint(folder / f"{prefix}{CHECKPOINT}")
        model = read_model(str(folder / f"{prefix}{TRAINING_MODEL}"))
    except OrtrainError:
        return                                          # the session reports it better
    if checkpoint.nominal:
        yield Finding(WARNING, f"{prefix}{CHECKPOINT}", "it is nominal: names without values", "fill it with copy_buffer_to_parameters before training")
    for node in model.graph.nodes:
        if node.op_type != "BatchNormInternal":
            continue
        if any(name in model.graph.initializers for name in node.inputs[3:5]):
            yield Finding(WARNING, described(node), "its running statistics are constants: training does not move them, and eval uses the old ones",
                          "name them in frozen_params, or make the artifacts with ortrain, which does so by itself")
        if all(name not in checkpoint.trainable for name in node.inputs[1:3]):
            yield Finding(WARNING, described(node), "scale and bias are frozen, but it normalizes with the batch's statistics and moves the running ones",
                          "make the artifacts with ortrain, which leaves a frozen normalization alone")


def _order(training: Graph, evaluation: Graph) -> Iterator[Finding]:
    theirs = [name for name in training.inputs if name in evaluation.inputs]
    mine = [name for name in evaluation.inputs if name in training.inputs]
    if theirs != mine:
        yield Finding(WARNING, EVAL_MODEL, "it lists its parameters in another order than the training model; the old package feeds them by position",
                      "make both models again together")


Check = Callable[[Node, dict[str, Node]], str | None]


def _auto_pad(node: Node, producers: dict[str, Node]) -> str | None:
    pad = node.attributes.get("auto_pad", "NOTSET")
    pad = pad.decode() if isinstance(pad, bytes) else pad
    return f"auto_pad {pad}: onnxruntime-training computes a wrong gradient from it, ortrain the right one" if pad.startswith("SAME") else None


def _leaky_relu(node: Node, producers: dict[str, Node]) -> str | None:
    forward = producers.get(node.inputs[1])
    if node.attributes.get("alpha", 0.01) < 0 and forward is not None and forward.op_type == "LeakyRelu":
        return "the gradient looks at the output's sign, which a negative alpha turns round: the written gradient is wrong"
    return None


def _gelu(node: Node, producers: dict[str, Node]) -> str | None:
    approximations = {n.attributes.get("approximate", "none") for n in producers.values() if n.op_type == "Gelu" and n.inputs[0] == node.inputs[1]}
    return "the exact derivative stands for the tanh form's: the written gradient is off by up to 2e-4" if "tanh" in {
        a.decode() if isinstance(a, bytes) else a for a in approximations} else None


def _scatter(node: Node, producers: dict[str, Node]) -> str | None:
    reduction = node.attributes.get("reduction", "none")
    reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
    # onnxruntime-training scatters zeros into dY whatever the reduction; ortrain does so only where values are replaced
    gradient = [n for n in producers.values() if n.op_type == node.op_type and n is not node and "Grad" in n.name]
    if reduction != "none" and gradient:
        return f"reduction {reduction}, which onnxruntime-training's gradient ignores: the written gradient is wrong if that package made it"
    return None


def _peepholes(node: Node, producers: dict[str, Node]) -> str | None:
    return "it has peepholes, for which onnxruntime-training's gradient is wrong" if len(node.inputs) > 7 and node.inputs[7] else None


KNOWN_WRONG: dict[str, Check] = {
    "ConvGrad": _auto_pad, "AveragePoolGrad": _auto_pad, "LeakyReluGrad": _leaky_relu, "GeluGrad": _gelu, "ScatterElements": _scatter,
    "LSTMTraining": _peepholes,
}
"""Operator of a training model -> check for gradients that are known to be wrong as onnxruntime-training writes them (docs/migration.md)."""


def written_gradients(model: Model) -> Iterator[Finding]:
    """Find nodes of a training model whose gradient is known to be wrong as written; ortrain runs what is written."""
    producers = model.graph.producers()
    for node in model.graph.nodes:
        check = KNOWN_WRONG.get(node.op_type)
        reason = check(node, producers) if check is not None else None
        if reason:
            yield Finding(WARNING, described(node), reason, "make the artifacts again with ortrain")
        kind = model.graph.types.get(node.outputs[0])
        if node.op_type == "AveragePoolGrad" and (kind is None or not kind.is_static):
            yield Finding(NOTE, described(node), "a size of its result is open: ortrain runs it, onnxruntime-training dies with SIGFPE",
                          "only if the artifacts are for that package: give the model's inputs fixed sizes, the batch too")
        if record_of(node) is None:
            yield Finding(ERROR, described(node), "ortrain does not know the operator", "make the artifacts again with ortrain from the forward model")


def described(node: Node) -> str:
    """Describe a node by its operator and its name or output."""
    domain = f"{node.domain}::" if canonical_domain(node.domain) else ""
    return f"{domain}{node.op_type} {node.name or node.outputs[0]!r}"
