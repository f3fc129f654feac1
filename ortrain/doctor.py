"""Diagnosis of a model or a folder of artifacts: what cannot be trained, what is known to be wrong, and what can be done about it."""

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
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, OpRecord, canonical_domain, record_of
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.training import BUFFER_SUFFIX, RESET_FLAG
from ortrain.passes.half_precision import OriginalTypes, convert_to_float32
from ortrain.passes.open_batch import fixed_batch, open_batch
from ortrain.training.session import TrainingSession

ERROR, WARNING, NOTE = "error", "warning", "note"
"""error: the model cannot be trained. warning: it trains, but perhaps not as expected. note: worth knowing."""

NEWEST_OLD_IR, NEWEST_OLD_OPSET = 10, 21
"""The newest versions that onnxruntime-training 1.18 and 1.19 read."""

DEEP = 8
"""Number of convolutions from which a network without normalization is unusual."""

NORMALIZATIONS = frozenset({"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem or remark: the place, the reason and the remedy, the last two as full sentences."""

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
        return [Finding(ERROR, str(path.name), f"The file is not a valid model: {_sentence(error)}",
                        "Export the model again; onnx.checker.check_model may say more.")]
    if RESET_FLAG in model.graph.inputs or any(name.endswith(BUFFER_SUFFIX) for name in model.graph.inputs):
        return list(written_gradients(model))
    convert_to_float32(model)
    return [*_nodes(model), *_batch(model), *_inference_mode(model), *_weights(model), *_versions(model)]


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
                yield Finding(ERROR, described(node), f"Shape inference refuses the node: {_sentence(error)}",
                              "Change the model so that the operator's inputs fit.")
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
        remedy = "Define the operator in Python with ortrain.register_operator." if own else (
            "Replace the operator, or define one of your own with ortrain.register_operator.")
        return Finding(ERROR, described(node), "ortrain does not know the operator.", remedy)
    if record.lower is None and record.evaluate is None and record.decompose is None and not record.planned_as:
        return Finding(ERROR, described(node), "The operator has no kernel.", "Replace the operator.")
    if carried and record.differentiable and record.gradient is None and record.decompose is None:
        return Finding(ERROR, described(node), "The operator has no gradient, and weights before it need one.",
                       "Freeze the weights before it (frozen_params), or replace the operator.")
    return None


def _dry_run(model: Model, flows: set[str]) -> Iterator[Finding]:
    """Differentiate a sum of the first output that weights reach, to find what differentiation refuses."""
    trial = model.copy()
    graph = trial.graph
    output = next((name for name in graph.outputs if name in flows), None)
    if output is None:
        yield Finding(ERROR, "outputs", "No output depends on a float weight through operators that have gradients.", "Check that the weights are float32.")
        return
    graph.nodes.append(Node("ReduceSum", [output], ["ortrain::doctor::loss"], "ortrain::doctor", attributes={"keepdims": 0}))
    reached = values_reaching(trial, "ortrain::doctor::loss")
    weights = [name for name, array in graph.initializers.items() if name in reached and array.ndim]
    try:
        add_gradient(trial, "ortrain::doctor::loss", weights)
    except OrtrainError as error:
        yield Finding(ERROR, "gradient", f"The model cannot be differentiated: {_sentence(error)}",
                      "Freeze the weights before the node (frozen_params), or replace the node.")


def _batch(model: Model) -> Iterator[Finding]:
    """Find a fixed batch size, and whether it can be opened."""
    axes = fixed_batch(model)
    if not axes:
        return
    name, axis = next(iter(axes.items()))
    size = (model.graph.types[name].shape or ())[axis]
    where = f"{'inputs' if len(axes) > 1 else 'input'} {', '.join(map(repr, axes))}"
    reason = f"The model fixes its batch: axis {axis} has size {size}, so that every step takes exactly {size} {'sample' if size == 1 else 'samples'}."
    shapes = {name: ["batch" if place == axis else dim for place, dim in enumerate(model.graph.types[name].shape or ())] for name in axes}
    try:
        open_batch(model.copy(), axes)
    except OrtrainError as error:
        yield Finding(WARNING, where, reason,
                      f"Train with this batch size, or export the model with a dynamic batch axis. The batch cannot be opened: {_sentence(error)}")
    else:
        yield Finding(NOTE, where, reason, "It has been proved that the model computes each sample on its own, so that a Trainer opens the batch. Open it with "
                                           f"input_shapes={shapes} where artifacts or a session are made.")


def _inference_mode(model: Model) -> Iterator[Finding]:
    """Find signs of an export in inference mode: folded batch normalization, and dropout that was removed or switched off."""
    nodes = [node for node in model.graph.nodes if canonical_domain(node.domain) == ""]
    convolutions = [node for node in nodes if node.op_type == "Conv"]
    n_biased = sum(len(node.inputs) > 2 and bool(node.inputs[2]) for node in convolutions)
    if len(convolutions) >= DEEP and n_biased > len(convolutions) // 2 and not any(node.op_type in NORMALIZATIONS for node in nodes):
        yield Finding(NOTE, f"{n_biased} convolutions with a bias", "The network has no normalization. If the original has batch normalization, the export has "
                      "folded it into the convolutions, and training may be less stable than that of the original.",
                      "If so, export the model in training mode without constant folding, or train with a smaller learning rate.")
    inactive = [node for node in nodes if node.op_type == "Dropout" and _is_inactive(node, model)]
    inactive += [node for node in nodes if node.op_type == "Identity" and "dropout" in f"{node.name} {node.outputs[0]}".lower()]
    if inactive:
        yield Finding(NOTE, f"{len(inactive)} nodes, the first of them {described(inactive[0])}",
                      "The model was exported in inference mode, in which dropout does nothing; it does nothing in training either.",
                      "If dropout is wanted, export the model in training mode.")
    elif _has_attention(nodes) and not any(node.op_type == "Dropout" for node in nodes):
        yield Finding(NOTE, "attention", "The model has attention but no Dropout. Many such models are trained with dropout, which an export in inference mode "
                      "removes; the file does not tell whether the original has any.", "If dropout is wanted, export the model in training mode.")


def _sentence(error: OrtrainError) -> str:
    """Return an error's message with a period at the end."""
    return f"{str(error).rstrip('.')}."


def _is_inactive(node: Node, model: Model) -> bool:
    """Return whether a Dropout is the identity in training too: below opset 12, or without a training_mode that may be true."""
    if model.opset < 12 or len(node.inputs) < 3 or not node.inputs[2]:
        return True
    mode = model.graph.initializers.get(node.inputs[2])
    return mode is not None and not mode.any()


def _has_attention(nodes: list[Node]) -> bool:
    """Return whether the result of a Softmax is a factor of a matrix product."""
    weights = {node.outputs[0] for node in nodes if node.op_type == "Softmax"}
    return any(node.op_type == "MatMul" and node.inputs[0] in weights for node in nodes)


def _weights(model: Model) -> Iterator[Finding]:
    halves = [name for name, kind in OriginalTypes.of(model).types.items() if kind in HALVES and name in model.graph.initializers]
    if halves:
        yield Finding(NOTE, f"{len(halves)} weights, the first of them {halves[0]!r}", "The weights are of half precision, and float32 copies are trained.",
                      "Nothing needs to be done: the exported model has the original types again.")
    statistics = [name for node in model.graph.nodes if node.op_type == "BatchNormalization" for name in node.inputs[3:5]]
    twice = sorted({name for name in statistics if statistics.count(name) > 1})
    if twice:
        yield Finding(NOTE, f"{twice[0]!r}", "One initializer holds the running statistics of several nodes, because exporters merge equal initializers.",
                      "Nothing needs to be done: each node gets its own statistics when artifacts are made.")


def _versions(model: Model) -> Iterator[Finding]:
    if model.opset > NEWEST_OLD_OPSET:
        yield Finding(NOTE, "opset", f"The model has opset {model.opset}; onnxruntime-training 1.19 reads opsets up to {NEWEST_OLD_OPSET}.",
                      f"If the artifacts are for that package, call generate_artifacts with opset_version={NEWEST_OLD_OPSET}.")
    elif model.ir_version > NEWEST_OLD_IR:
        yield Finding(NOTE, "IR version", f"The model has IR version {model.ir_version}; its artifacts get version {NEWEST_OLD_IR}, the newest that "
                      "onnxruntime-training reads.", "Nothing needs to be done; generate_artifacts takes another ir_version.")


# ---- artifacts


def examine_artifacts(folder: Path, prefix: str = "") -> list[Finding]:
    """Return the findings for a folder that generate_artifacts wrote."""
    found: list[Finding] = []
    wanted = {TRAINING_MODEL: ERROR, CHECKPOINT: ERROR, EVAL_MODEL: WARNING, OPTIMIZER_MODEL: WARNING}
    lost = {TRAINING_MODEL: "nothing can be trained", CHECKPOINT: "there are no parameters",
            EVAL_MODEL: "evaluation, prediction and export are refused",
            OPTIMIZER_MODEL: "optimizer steps, learning rates and schedules are refused"}
    missing = [name for name in wanted if not (folder / f"{prefix}{name}").exists()]
    found += [Finding(wanted[name], f"{prefix}{name}", f"The file does not exist; without it, {lost[name]}.", "Make the artifacts again.") for name in missing]
    if TRAINING_MODEL in missing or CHECKPOINT in missing:
        return found
    found += _statistics_and_state(folder, prefix)
    try:
        with TrainingSession.from_artifacts(folder, prefix=prefix) as session:
            found += list(written_gradients(session.training_model))
            found += list(_own_operators(session))
            if session.eval_model is not None:
                found += list(_order(session.training_model.graph, session.eval_model.graph))
    except OrtrainError as error:
        found.append(Finding(ERROR, "artifacts", f"No session can be made of the files: {_sentence(error)}", "Make the artifacts again, all from one model."))
    return found


def _statistics_and_state(folder: Path, prefix: str) -> Iterator[Finding]:
    try:
        checkpoint = read_checkpoint(folder / f"{prefix}{CHECKPOINT}")
        model = read_model(str(folder / f"{prefix}{TRAINING_MODEL}"))
    except OrtrainError:
        return                                          # the session reports it better
    if checkpoint.nominal:
        yield Finding(WARNING, f"{prefix}{CHECKPOINT}", "The checkpoint is nominal: it has the names of the parameters without their values.",
                      "Fill it with copy_buffer_to_parameters before training.")
    for node in model.graph.nodes:
        if node.op_type != "BatchNormInternal":
            continue
        if any(name in model.graph.initializers for name in node.inputs[3:5]):
            yield Finding(WARNING, described(node), "The running statistics are constants: training does not update them, and evaluation uses the old ones.",
                          "Name them in frozen_params, or make the artifacts with ortrain, which does so by default.")
        if all(name not in checkpoint.trainable for name in node.inputs[1:3]):
            yield Finding(WARNING, described(node), "Scale and bias are frozen, but the node normalizes with the statistics of the batch and updates the "
                          "running ones.",
                          "Make the artifacts with ortrain, which uses the running statistics of a frozen normalization and does not update them.")


def _own_operators(session: TrainingSession) -> Iterator[Finding]:
    """Find what only ortrain can run: operators of its own domain in the models, and settings that only its sessions read."""
    for where, model in ((TRAINING_MODEL, session.training_model), (OPTIMIZER_MODEL, session.optimizer_model)):
        own = sorted({node.op_type for node in model.graph.nodes if canonical_domain(node.domain) == ORTRAIN}) if model is not None else []
        if own:
            yield Finding(NOTE, where, f"Only ortrain has the operators {', '.join(own)}: onnxruntime-training cannot load the model.",
                          "Nothing for ortrain. For onnxruntime-training, use AdamW or plain SGD and one of its four losses.")
    if session.parameter_groups:
        yield Finding(NOTE, CHECKPOINT, "The checkpoint has parameter groups, which onnxruntime-training ignores.", "Nothing for ortrain.")


def _order(training: Graph, evaluation: Graph) -> Iterator[Finding]:
    theirs = [name for name in training.inputs if name in evaluation.inputs]
    mine = [name for name in evaluation.inputs if name in training.inputs]
    if theirs != mine:
        yield Finding(WARNING, EVAL_MODEL, "The parameters are in another order than in the training model; onnxruntime-training passes them by position.",
                      "Make both models again together.")


Check = Callable[[Node, dict[str, Node]], str | None]


def _auto_pad(node: Node, producers: dict[str, Node]) -> str | None:
    pad = node.attributes.get("auto_pad", "NOTSET")
    pad = pad.decode() if isinstance(pad, bytes) else pad
    return f"onnxruntime-training computes a wrong gradient for auto_pad {pad}; ortrain computes the right one." if pad.startswith("SAME") else None


def _leaky_relu(node: Node, producers: dict[str, Node]) -> str | None:
    forward = producers.get(node.inputs[1])
    if node.attributes.get("alpha", 0.01) < 0 and forward is not None and forward.op_type == "LeakyRelu":
        return "The written gradient is wrong: it reads the sign of the output, which a negative alpha reverses."
    return None


def _gelu(node: Node, producers: dict[str, Node]) -> str | None:
    approximations = {n.attributes.get("approximate", "none") for n in producers.values() if n.op_type == "Gelu" and n.inputs[0] == node.inputs[1]}
    return "The written gradient is that of the exact GELU instead of the tanh form; it is wrong by up to 2e-4." if "tanh" in {
        a.decode() if isinstance(a, bytes) else a for a in approximations} else None


def _scatter(node: Node, producers: dict[str, Node]) -> str | None:
    reduction = node.attributes.get("reduction", "none")
    reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
    # onnxruntime-training scatters zeros into dY whatever the reduction; ortrain does so only where values are replaced
    gradient = [n for n in producers.values() if n.op_type == node.op_type and n is not node and "Grad" in n.name]
    if reduction != "none" and gradient:
        return f"The written gradient is wrong if onnxruntime-training made it, since that package ignores the reduction {reduction}."
    return None


def _peepholes(node: Node, producers: dict[str, Node]) -> str | None:
    return "The node has peepholes, for which onnxruntime-training's gradient is wrong." if len(node.inputs) > 7 and node.inputs[7] else None


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
            yield Finding(WARNING, described(node), reason, "Make the artifacts again with ortrain.")
        kind = model.graph.types.get(node.outputs[0])
        if node.op_type == "AveragePoolGrad" and (kind is None or not kind.is_static):
            yield Finding(NOTE, described(node), "The result has a dynamic size. ortrain runs the node; onnxruntime-training crashes with SIGFPE.",
                          "If the artifacts are for that package, give the model's inputs fixed sizes, including the batch.")
        if record_of(node) is None:
            yield Finding(ERROR, described(node), "ortrain does not know the operator.", "Make the artifacts again with ortrain from the forward model.")


def described(node: Node) -> str:
    """Describe a node by its operator and its name or output."""
    domain = f"{node.domain}::" if canonical_domain(node.domain) else ""
    return f"{domain}{node.op_type} {node.name or node.outputs[0]!r}"
