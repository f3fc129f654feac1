"""The optimizer's updates as steps of a training model's program: each as soon as its gradient is complete and nothing reads the old value any more
(optimizer_in_backward), or all when an optimizer step spends the gradients that the train step before it has left (ortrain.plan.deferred_gradients)."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, Node
from ortrain.ops.registry.record import ORTRAIN
from ortrain.ops.training import ACCUMULATOR, BUFFER_SUFFIX
from ortrain.runtime.state import TrainingState
from ortrain.training.optimizer import OptimizerRecipe

PROGRESS, MASKED_SUFFIX, MOMENT_SUFFIX = "optimizer::progress", "::masked", "::momentum"
"""How values are called that updates read: the learning rate and their step's number; and what follows a parameter's name."""


def check_recipe(recipe: OptimizerRecipe) -> None:
    """Raises InvalidArgumentError for an optimizer that has to know all gradients first."""
    if recipe.max_norms:
        raise InvalidArgumentError("expected an optimizer without clipping by the gradients' common norm, got one with: with optimizer_in_backward no two "
                                   "gradients need be there at once")


class Updates:
    """What the updates in a training model read and write besides the parameters.

    recipe: of the optimizer model, without clipping. state: bound, with its moments."""

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
        return range(self.recipe.moments if self.recipe.writes_moments else 0)

    def put_into(self, model: Model) -> Model:
        """The training model with updates in place of accumulations."""
        graph = model.graph
        graph.nodes = [self.in_place_of(node, node.inputs[1], node.outputs[0]) if node.op_type == ACCUMULATOR else node for node in graph.nodes]
        return model

    def in_place_of(self, accumulation: Node, gradient: str, flag: str) -> Node:
        """The update of the parameter whose gradient an accumulation adds to, from this gradient; the accumulation itself where it is none of the session's."""
        name = accumulation.inputs[0].removesuffix(BUFFER_SUFFIX)
        if name not in self.masks:
            return accumulation
        inputs = [name, gradient, PROGRESS, f"{name}{MASKED_SUFFIX}", *(f"{name}{MOMENT_SUFFIX}{k}" for k in self._moments)]
        if not self._moments:
            return Node("SGDUpdate", inputs, [flag], accumulation.name, ORTRAIN)
        recipe = self.recipe
        return Node("AdamWUpdate", inputs, [flag], accumulation.name, ORTRAIN,
                    {"alpha": recipe.beta1, "beta": recipe.beta2, "epsilon": recipe.epsilon, "weight_decay": recipe.weight_decay,
                     "correct_bias": int(recipe.correct_bias), "adam_mode": recipe.adam_mode})

    def mask(self, names: Set[str]) -> None:
        """The parameters that updates leave alone from now on."""
        for name, mask in self.masks.items():
            mask[0] = name in names
