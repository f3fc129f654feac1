"""What a trainer is made from: a session from a forward model, the roles of its inputs, and metrics by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortrain import metrics as metric_registry
from ortrain.artifacts.generation import LOSSES
from ortrain.enums import LossType
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, Node
from ortrain.loading.loader import ModelSource, load_model
from ortrain.metrics import Accuracy, Metric
from ortrain.onnxblock.loss import BCEWithLogitsLoss, BinaryFocalLoss, CrossEntropyLoss, FocalLoss, loss_by_name, loss_inputs
from ortrain.onnxblock.loss.base import SAMPLE_WEIGHT
from ortrain.ops.loss import DEFAULT_IGNORE_INDEX
from ortrain.passes.new_head import replace_head
from ortrain.passes.open_batch import opened_shapes
from ortrain.passes.specialization import InputShapes
from ortrain.trainer.settings import AUTOMATIC
from ortrain.training.session import TrainingSession

LABEL_LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "SoftmaxFocalLoss"})
"""Operators of scores [n, classes, ...] and class labels."""
SAME_VALUES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose result has the elements of their first input."""


CONTAINED: dict[tuple[type, ...], str] = {(CrossEntropyLoss, FocalLoss): "Softmax", (BCEWithLogitsLoss, BinaryFocalLoss): "Sigmoid"}
"""Losses -> the activation that they contain."""


@dataclass(frozen=True, slots=True)
class InputRoles:
    """The inputs of a session by what they are for, and the value that metrics compare with the targets."""

    training: list[str]
    """Inputs of the training model in its order."""
    evaluation: list[str]
    """Inputs of the eval model in its order; those of the training model without an eval model."""
    forward: list[str]
    """Inputs that the predictions depend on."""
    targets: list[str]
    """The other inputs, without sample weights."""
    predictions: str | None
    """The output that metrics compare with the targets; None where the models return the loss alone."""
    outputs: list[str]
    """Additional outputs of the eval model, after the loss."""
    dtypes: dict[str, str]
    """Input -> element type."""
    ignored: int | None = None
    """The target that the loss ignores; None where targets are no class labels."""


def input_roles(session: TrainingSession, predictions: str | None = None) -> InputRoles:
    """Return the roles of a session's inputs, found by what its predictions depend on; without predictions, the last input is the target.

    predictions: the output that metrics look at; None for the first one after the loss. Raises InvalidArgumentError when there is no such output."""
    training = session.input_names()
    evaluation = session.input_names(training=False) if session.eval_model is not None else training
    outputs = session.output_names(training=False)[1:] if session.eval_model is not None else session.output_names()[1:]
    if predictions is not None and predictions not in outputs:
        raise InvalidArgumentError(f"expected one of the outputs {outputs} as predictions, got {predictions!r}")
    predictions = predictions or (outputs[0] if outputs else None)
    model = session.training_model if session.eval_model is None else session.eval_model
    reached = _inputs_reaching(model, predictions) if predictions else set(training[:-1])
    rest = [name for name in evaluation if name not in reached and name != SAMPLE_WEIGHT]
    targets = rest or evaluation[-1:]
    types = session.training_model.graph.types
    return InputRoles(training, evaluation, [name for name in evaluation if name in reached and name not in targets], targets,
                      predictions, outputs, {name: types[name].dtype for name in training if name in types}, _ignored_label(model, targets[0]))


def label_losses(model: Model) -> dict[str, Node]:
    """Return input -> the loss that it is the class labels of."""
    producers = model.graph.producers()
    found = {}
    for node in model.graph.nodes:
        if node.op_type in LABEL_LOSSES:
            label = node.inputs[1]
            while label in producers and producers[label].op_type in SAME_VALUES:
                label = producers[label].inputs[0]
            if label in model.graph.inputs:
                found[label] = node
    return found


def ignored_label(loss: Node) -> int:
    """Return the label that a loss ignores."""
    return int(loss.attributes.get("ignore_index", DEFAULT_IGNORE_INDEX))


def _ignored_label(model: Model, target: str) -> int | None:
    loss = label_losses(model).get(target)
    return None if loss is None else ignored_label(loss)


def _inputs_reaching(model: Model, output: str) -> set[str]:
    """Return the graph inputs that an output depends on."""
    producers = model.graph.producers()
    waiting, seen = [output], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in producers:
            waiting += [value for value in producers[name].inputs if value]
    return seen & set(model.graph.inputs)


def new_session(model: ModelSource, *, loss: Any, optimizer: Any, learning_rate: float, class_weight: Any, sample_weight: bool,
                loss_options: Mapping[str, Any] | None, requires_grad: Sequence[str] | None, frozen_params: Sequence[str] | None,
                wants_metrics: bool, loss_input_names: Sequence[str] | None = None, additional_output_names: Sequence[str] | None = None,
                input_shapes: InputShapes | None = None, num_classes: int | None = None, seed: int = 0,
                **arguments: Any) -> tuple[TrainingSession, str | None]:
    """Return (session, the output that metrics look at) for Trainer.from_model, whose parameters these are. What the loss is computed from becomes an
    additional output where there are metrics, which compare it with the targets. Without input_shapes, a fixed batch is opened where that can be proved."""
    forward = load_model(model)
    if num_classes is not None:
        forward = replace_head(forward, num_classes, output=loss_input_names[0] if loss_input_names else None, seed=seed)
    if input_shapes is None:
        input_shapes = opened_shapes(forward)
    options = dict(loss_options or {})
    if class_weight is not None:
        options["weight"] = class_weight
    if sample_weight:
        options["sample_weight"] = True
    if isinstance(loss, str):
        loss = loss_by_name(loss, **options)
    elif options:
        raise InvalidArgumentError(f"expected a loss given by name with {sorted(options)}, got {loss!r}: pass these to the loss itself")
    scores = loss_inputs(loss, forward, loss_input_names)
    _warn_of_probabilities(forward, loss, scores)
    if additional_output_names is None and wants_metrics:
        additional_output_names = scores
    session = TrainingSession.from_model(forward, loss=loss, optimizer=optimizer, learning_rate=learning_rate, requires_grad=requires_grad,
                                         frozen_params=frozen_params, loss_input_names=loss_input_names or scores or None,
                                         additional_output_names=additional_output_names or None, input_shapes=input_shapes, **arguments)
    return session, scores[0] if additional_output_names and scores and scores[0] in additional_output_names else None


def check_sample_weight(roles: InputRoles, targets: Any, sample_weight: Any) -> None:
    """Raise InvalidArgumentError for weights of samples that no loss takes, and where a loss needs them and the targets are an array."""
    is_taken = SAMPLE_WEIGHT in roles.training
    if sample_weight is not None and not is_taken and len(roles.targets) == 1:
        raise InvalidArgumentError("expected no sample_weight, since the loss takes none: make it with sample_weight=True")
    if sample_weight is None and is_taken and hasattr(targets, "__array__"):
        raise InvalidArgumentError("expected sample_weight, since the loss was made with sample_weight=True")


def _warn_of_probabilities(forward: Model, loss: Any, scores: Sequence[str]) -> None:
    """Warn where a loss that contains a softmax or sigmoid is given the result of one: such a model hardly learns."""
    kind = LOSSES.get(loss) if isinstance(loss, LossType) else type(loss)
    contained = next((activation for kinds, activation in CONTAINED.items() if kind in kinds), None)
    node = forward.graph.producers().get(scores[0]) if scores else None
    while node is not None and node.op_type in SAME_VALUES:
        node = forward.graph.producers().get(node.inputs[0])
    if kind is not None and node is not None and node.op_type == contained:
        warnings.warn(f"expected scores for {kind.__name__}, which contains a {contained.lower()}, got the result {scores[0]!r} of a {contained}: make "
                      f"{node.inputs[0]!r} the model's output, or give the model a new head by num_classes", stacklevel=5)


def make_metrics(wanted: Any, roles: InputRoles) -> list[Metric]:
    """Return the metrics for names, metrics and functions; for "auto" accuracy where targets are integers. Those made
    here ignore the label that the loss ignores.

    Raises InvalidArgumentError for an unknown name, or when the session returns nothing that a metric could compare with the targets."""
    if wanted is None:
        return []
    if isinstance(wanted, str) and wanted == AUTOMATIC:
        is_classification = roles.predictions is not None and roles.dtypes.get(roles.targets[0], "").startswith(("int", "uint"))
        return [Accuracy(ignore_index=roles.ignored)] if is_classification else []
    made = metric_registry.get_all([wanted] if isinstance(wanted, str | Metric) or callable(wanted) else wanted, roles.ignored)
    if made and roles.predictions is None:
        raise InvalidArgumentError("expected a session whose eval model returns predictions after the loss, for metrics: name them in additional_output_names")
    return made
