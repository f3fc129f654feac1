"""The optimizer's updates as steps of the backward pass: each parameter is updated as soon as its gradient is complete and nothing reads the old value any
more, so that no gradient outlives the steps between the two."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, Node
from ortrain.ops.record import ORTRAIN
from ortrain.ops.training import ACCUMULATOR, BUFFER_SUFFIX
from ortrain.optimizer import OptimizerRecipe
from ortrain.state import TrainingState

PROGRESS, MASKED_SUFFIX, MOMENT_SUFFIX = "optimizer::progress", "::masked", "::momentum"
"""How values are called that updates read: the learning rate and their step's number; and what follows a parameter's name."""


def check_recipe(recipe: OptimizerRecipe) -> None:
    """Raises InvalidArgumentError for an optimizer that has to know all gradients first."""
    if recipe.max_norms:
        raise InvalidArgumentError("expected an optimizer without clipping by the gradients' common norm, got one with: with optimizer_in_backward no two "
                                   "gradients need be there at once")


class OptimizerInBackward:
    """What the updates in a training model read and write besides the parameters.

    recipe: of the optimizer model, checked. state: bound, with its moments."""

    def __init__(self, recipe: OptimizerRecipe, state: TrainingState) -> None:
        self.recipe = recipe
        self.progress = np.zeros(2)
        self.masks = {name: np.zeros(1, np.bool_) for name in state.trainable}
        self.arrays = {PROGRESS: self.progress} | {f"{name}{MASKED_SUFFIX}": mask for name, mask in self.masks.items()}
        """Everything by the name that it has in the model."""
        for k, segments in enumerate(state.moments[: len(self._moments)]):
            self.arrays |= {f"{name}{MOMENT_SUFFIX}{k}": view for segment in segments for name, view in segment.views.items()}

    @property
    def _moments(self) -> range:
        """Those that are read: SGD keeps one that stays zero."""
        return range(2 if self.recipe.kind == "AdamWOptimizer" else 0)

    def put_into(self, model: Model) -> Model:
        """The training model with updates in place of accumulations."""
        graph = model.graph
        graph.nodes = [self._update_of(node) if node.op_type == ACCUMULATOR else node for node in graph.nodes]
        return model

    def _update_of(self, node: Node) -> Node:
        name = node.inputs[0].removesuffix(BUFFER_SUFFIX)
        if name not in self.masks:
            return node
        inputs = [name, node.inputs[1], PROGRESS, f"{name}{MASKED_SUFFIX}", *(f"{name}{MOMENT_SUFFIX}{k}" for k in self._moments)]
        if not self._moments:
            return Node("SGDUpdate", inputs, list(node.outputs), node.name, ORTRAIN)
        recipe = self.recipe
        return Node("AdamWUpdate", inputs, list(node.outputs), node.name, ORTRAIN,
                    {"alpha": recipe.beta1, "beta": recipe.beta2, "epsilon": recipe.epsilon, "weight_decay": recipe.weight_decay,
                     "correct_bias": int(recipe.correct_bias), "adam_mode": recipe.adam_mode})

    def mask(self, names: Set[str]) -> None:
        """The parameters that updates leave alone from now on."""
        for name, mask in self.masks.items():
            mask[0] = name in names
