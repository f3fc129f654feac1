"""Gradients of a model's loss with respect to its inputs."""

from __future__ import annotations

from collections.abc import Sequence

from ortrain.errors import InvalidArgumentError
from ortrain.gradient import add_gradient, values_reaching
from ortrain.ir import Model
from ortrain.passes.half_precision import float32_inputs
from ortrain.runtime.state import TrainingState


def with_input_gradients(source: Model, names: Sequence[str] | None, inputs: Sequence[str], state: TrainingState) -> tuple[Model, dict[str, str]]:
    """Return a copy of an eval model that also computes gradients of its loss (output 0), and input name -> value name of its gradient.

    names: the inputs to differentiate; None for those among the user's `inputs` that the loss depends on.
    Raises InvalidArgumentError for names that are not user inputs, UnreachableParameterError where the loss does not depend on one,
    MissingGradientError."""
    model = source.copy()
    loss = model.graph.outputs[0]
    reaching = values_reaching(model, loss)
    inside = float32_inputs(model)
    wanted = list(names) if names is not None else [name for name in inputs if inside.get(name, name) in reaching]
    unknown = [name for name in wanted if name not in model.graph.inputs or name in state.trainable or name in state.frozen]
    if unknown:
        raise InvalidArgumentError(f"expected inputs of the eval model, got {unknown}")
    gradients = add_gradient(model, loss, [inside.get(name, name) for name in wanted])
    return model, {name: gradients[inside.get(name, name)] for name in wanted}
