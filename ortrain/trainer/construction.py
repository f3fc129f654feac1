"""What a trainer is made from: a session from a forward model, the roles of its inputs, and metrics by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortrain import metrics as metric_registry
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model
from ortrain.loading.loader import ModelSource, load_model
from ortrain.metrics import Accuracy, Metric
from ortrain.onnxblock.loss import SAMPLE_WEIGHT, loss_by_name
from ortrain.onnxblock.blocks import Block
from ortrain.trainer.settings import AUTOMATIC
from ortrain.training.session import TrainingSession


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
    outputs: list[str]
    """Additional outputs of the eval model, after the loss; the first one is what metrics look at."""
    dtypes: dict[str, str]
    """Input -> element type."""


def input_roles(session: TrainingSession) -> InputRoles:
    """Return the roles of a session's inputs, found by what its predictions depend on; without predictions, the last input is the target."""
    training = session.input_names()
    evaluation = session.input_names(training=False) if session.eval_model is not None else training
    outputs = session.output_names(training=False)[1:] if session.eval_model is not None else session.output_names()[1:]
    model = session.training_model if session.eval_model is None else session.eval_model
    reached = _inputs_reaching(model, outputs) if outputs else set(training[:-1])
    rest = [name for name in evaluation if name not in reached and name != SAMPLE_WEIGHT]
    targets = rest or evaluation[-1:]
    types = session.training_model.graph.types
    return InputRoles(training, evaluation, [name for name in evaluation if name in reached and name not in targets], targets, outputs,
                      {name: types[name].dtype for name in training if name in types})


def _inputs_reaching(model: Model, outputs: Sequence[str]) -> set[str]:
    """Return the graph inputs that the first additional output depends on."""
    producers = model.graph.producers()
    waiting, seen = list(outputs[:1]), set()
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
                **arguments: Any) -> TrainingSession:
    """Return a session for Trainer.from_model, whose parameters these are. The forward model's first output becomes an additional output, so that
    metrics and predictions need no further request."""
    forward = load_model(model)
    options = dict(loss_options or {})
    if class_weight is not None:
        options["weight"] = class_weight
    if sample_weight:
        options["sample_weight"] = True
    if isinstance(loss, str):
        loss = loss_by_name(loss, **options)
    elif options:
        raise InvalidArgumentError(f"expected a loss given by name with {sorted(options)}, got {loss!r}: pass these to the loss itself")
    first = forward.graph.outputs[:1]
    if loss_input_names is None and not isinstance(loss, Block) and loss is not None:
        loss_input_names = first
    elif loss_input_names is None and isinstance(loss, Block) and getattr(loss, "scores", 1) == 1:
        loss_input_names = first
    if additional_output_names is None:
        additional_output_names = first if wants_metrics and loss is not None else None
    return TrainingSession.from_model(forward, loss=loss, optimizer=optimizer, learning_rate=learning_rate, requires_grad=requires_grad,
                                      frozen_params=frozen_params, loss_input_names=loss_input_names, additional_output_names=additional_output_names,
                                      **arguments)


def make_metrics(wanted: Any, session: TrainingSession, roles: InputRoles) -> list[Metric]:
    """Return the metrics for names, metrics and functions; for "auto" accuracy where targets are integers.

    Raises InvalidArgumentError for an unknown name, or when the session returns nothing that a metric could compare with the targets."""
    if wanted is None:
        return []
    if isinstance(wanted, str) and wanted == AUTOMATIC:
        is_classification = bool(roles.outputs) and roles.dtypes.get(roles.targets[0], "").startswith(("int", "uint"))
        return [Accuracy()] if is_classification else []
    made = metric_registry.get_all([wanted] if isinstance(wanted, str | Metric) or callable(wanted) else wanted)
    if made and not roles.outputs:
        raise InvalidArgumentError("expected a session whose eval model returns predictions after the loss, for metrics: name them in additional_output_names")
    return made
