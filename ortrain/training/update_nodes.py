"""Optimizer updates as nodes of a training model's graph.

With optimizer_in_backward each runs as soon as its gradient is complete and the old value has no more readers; with deferred gradients
(ortrain.plan.deferred_gradients) all run when an optimizer step uses the gradients that the train step left."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from ortrain._core.optimizer_update import Progress
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, Node
from ortrain.ops.registry.record import ORTRAIN
from ortrain.ops.training import ACCUMULATOR, BUFFER_SUFFIX, ROUNDING
from ortrain.runtime.segments import Segment
from ortrain.runtime.state import TrainingState, is_bfloat16
from ortrain.training.parameter_groups import GroupSettings
from ortrain.training.recipe import OptimizerRecipe

PROGRESS, MASKED_SUFFIX, MOMENT_SUFFIX = "optimizer::progress", "::masked", "::momentum"
"""Names of the values that updates read: the learning rate and step number, and the suffixes of a parameter's mask and moments."""


def _progress_name(row: int) -> str:
    """Return the name of a row of the progress; there is one per learning-rate scale."""
    return f"{PROGRESS}::{row}" if row else PROGRESS


def check_recipe(recipe: OptimizerRecipe) -> None:
    """Raise InvalidArgumentError for an optimizer that needs all gradients before the first update."""
    if recipe.max_norms:
        raise InvalidArgumentError("expected an optimizer without clipping by the gradients' common norm, got one with: with optimizer_in_backward no two "
                                   "gradients need be there at once")


def rounding_ints(state: TrainingState, segment: Segment, element: int) -> tuple[int, ...]:
    """Return what a kernel rounds parameters of bfloat16 by: the seed, as a signed number, and the number of its first element; nothing for other parameters.

    element: the index of the first element in the segment."""
    if not is_bfloat16(segment):
        return ()
    seed = state.rounding_seed or 0
    return (seed - (seed >> 63 << 64), segment.start + element)


class Updates:
    """The values that the updates in a training model read and write besides the parameters.

    recipe: from the optimizer model, without clipping. state: bound, with its moments. settings: the parameter groups' settings."""

    def __init__(self, recipe: OptimizerRecipe, state: TrainingState, settings: GroupSettings) -> None:
        self.recipe, self.settings = recipe, settings
        self.progress = Progress(settings.scales)
        self.masks = {name: np.zeros(1, np.bool_) for name in state.trainable}
        self.arrays = {_progress_name(row): values for row, values in enumerate(self.progress.rows)}
        """Every array by the name that it has in the model."""
        self.arrays |= {f"{name}{MASKED_SUFFIX}": mask for name, mask in self.masks.items()}
        for k, segments in enumerate(state.moments[: recipe.algorithm.used_moments]):
            self.arrays |= {f"{name}{MOMENT_SUFFIX}{k}": view for segment in segments for name, view in segment.views.items()}
        self._rounding = {name: rounding_ints(state, segment, offset) for segment in state.trainable_segments for name, offset in segment.offsets.items()}

    def put_into(self, model: Model) -> Model:
        """Return the training model with updates in place of gradient accumulations."""
        graph = model.graph
        graph.nodes = [self.update_node(node, node.inputs[1], node.outputs[0]) if node.op_type == ACCUMULATOR else node for node in graph.nodes]
        return model

    def update_node(self, accumulation: Node, gradient: str, flag: str) -> Node:
        """Return the node that updates the parameter of an accumulation from a gradient; the accumulation itself where the parameter is not the
        session's."""
        name = accumulation.inputs[0].removesuffix(BUFFER_SUFFIX)
        if name not in self.masks:
            return accumulation
        row, floats = self.settings.of(name)
        algorithm = self.recipe.algorithm
        moments = [f"{name}{MOMENT_SUFFIX}{k}" for k in range(algorithm.used_moments)]
        inputs = [name, gradient, _progress_name(row), f"{name}{MASKED_SUFFIX}", *(moment if moment in self.arrays else "" for moment in moments)]
        attributes = self.recipe.attributes | dict(zip(algorithm.floats, floats, strict=True)) | dict(zip(ROUNDING, self._rounding[name], strict=False))
        return Node(algorithm.update, inputs, [flag], accumulation.name, ORTRAIN, attributes)

    def mask(self, names: Set[str]) -> None:
        """Set the parameters that updates leave unchanged from now on."""
        for name, mask in self.masks.items():
            mask[0] = name in names
