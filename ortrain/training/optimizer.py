"""The optimizer of a session: the update that its ONNX model specifies, run over the flat segments of the state."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import kernels
from ortrain._core.optimizer_update import BoundKernel, OptimizerUpdate
from ortrain.errors import InvalidModelError, MissingKernelError
from ortrain.ir import Model, Node
from ortrain.runtime.state import TrainingState

INPUTS = {
    "AdamWOptimizer": ["learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"],
    "SGDOptimizerV2": ["learning_rate", "step", "params", "gradients", "first_order_moments"],
}
CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as InplaceClipGradNorm does."""


@dataclass(frozen=True, slots=True)
class OptimizerRecipe:
    """The algorithm and the hyperparameters that an optimizer model specifies."""

    kind: str
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 1e-2
    correct_bias: bool = True
    adam_mode: int = 0
    max_norms: tuple[float, ...] = ()
    """Limits of the gradients' common norm, applied one after another before the update."""

    @property
    def moments(self) -> int:
        """The number of moments per parameter in a checkpoint (SGD stores one, all zeros)."""
        return 2 if self.kind == "AdamWOptimizer" else 1

    @property
    def writes_moments(self) -> bool:
        """Whether updates change the moments."""
        return self.kind == "AdamWOptimizer"


def read_recipe(model: Model) -> OptimizerRecipe:
    """Read the recipe from an optimizer model. Raises InvalidModelError when it is not an optimizer model, MissingKernelError for nodes ortrain cannot
    run there."""
    updates = [node for node in model.graph.nodes if node.op_type in INPUTS]
    if len(updates) != 1:
        raise InvalidModelError(f"Only support one type of optimizer algorithm, but got: {len(updates)}")
    update = updates[0]
    if model.graph.inputs != INPUTS[update.op_type]:
        raise InvalidModelError(f"Invalid graph inputs. Expected: {INPUTS[update.op_type]} Actual: {model.graph.inputs}")
    max_norms = _clip_norms(model, update)
    if update.op_type == "SGDOptimizerV2":
        return OptimizerRecipe("SGDOptimizerV2", max_norms=max_norms)
    get = update.attributes.get
    recipe = OptimizerRecipe("AdamWOptimizer", get("alpha", 0.9), get("beta", 0.999), get("epsilon", 1e-8), get("weight_decay", 1e-2),
                             bool(get("correct_bias", 1)), get("adam_mode", 0), max_norms)
    if recipe.adam_mode == 0 and not recipe.correct_bias:
        raise InvalidModelError("The correct_bias should be 1 for adam_mode = 0.")
    return recipe


def _clip_norms(model: Model, update: Node) -> tuple[float, ...]:
    """Return max_norm of every InplaceClipGradNorm between the gradients and the update, in order."""
    producers, norms = model.graph.producers(), []
    name = update.inputs[INPUTS[update.op_type].index("gradients") - (update.op_type == "SGDOptimizerV2")]
    while name != "gradients":
        node = producers.get(name)
        if node is None or node.op_type != "InplaceClipGradNorm":
            break
        norms.append(float(node.attributes.get("max_norm", 1.0)))
        name = node.inputs[0]
    if name != "gradients" or len(model.graph.nodes) != len(norms) + 1:
        raise MissingKernelError("expected an optimizer model of one update whose gradients come straight or through InplaceClipGradNorm, got nodes "
                                 f"{[node.op_type for node in model.graph.nodes]}")
    return tuple(reversed(norms))


class Optimizer:
    """Updates the parameters of a bound state."""

    def __init__(self, model: Model, state: TrainingState, handle: EngineHandle) -> None:
        self.recipe = read_recipe(model)
        self.state = state
        self.handle = handle
        state.bind_moments(self.recipe.moments, self.recipe.writes_moments)
        self._masked: frozenset[str] = frozenset()
        self._left_out: frozenset[str] | None = None
        self._progress = np.zeros(2)
        self._update = OptimizerUpdate([], self._progress)
        self._norms: list[tuple[BoundKernel, np.ndarray]] = []
        self._scales: list[BoundKernel] = []

    def prepare(self, spent: Set[str] = frozenset()) -> None:
        """Prepare kernel calls over the ranges of the segments without masked parameters and without `spent`, which are updated elsewhere."""
        masked = frozenset(self.state.masked)
        if self._left_out == masked | spent:
            self._masked = masked
            return
        self._masked, self._left_out = masked, masked | spent
        updates: list[BoundKernel] = []
        self._norms, self._scales = [], []
        for k, segment in enumerate(self.state.trainable_segments):
            gradients = self.state.gradient_segments[k].array
            moments = [moment[k].array for moment in self.state.moments]
            dtype = segment.dtype.name
            for start, end in segment.runs(self._left_out):
                cut = slice(start, end)
                weights, gradient = segment.array[cut], gradients[cut]
                if self.recipe.kind == "AdamWOptimizer":
                    address = kernels()["adamw", dtype]
                    arrays = [weights, gradient, self._progress, None, *(moment[cut] for moment in moments)]
                    updates.append(BoundKernel(self.handle, address, arrays, [], (int(self.recipe.correct_bias), self.recipe.adam_mode)))
                else:
                    updates.append(BoundKernel(self.handle, kernels()["sgd", dtype], [weights, gradient, self._progress]))
                square = np.zeros(1, np.float64)
                self._norms.append((BoundKernel(self.handle, kernels()["squared_norm", dtype], [gradient], [square]), square))
                self._scales.append(BoundKernel(self.handle, kernels()["scale_in_place", dtype], [gradient]))
        recipe = self.recipe
        self._update = OptimizerUpdate(updates, self._progress, (recipe.beta1, recipe.beta2, recipe.epsilon, recipe.weight_decay))

    def step(self, learning_rate: float) -> None:
        """Update the parameters that prepare() selected."""
        for max_norm in self.recipe.max_norms:
            self._clip(max_norm)
        self._update.run(learning_rate, self.state.optimizer_step + 1)
        self.state.optimizer_step += 1

    @property
    def repeatable(self) -> tuple[OptimizerUpdate | None, frozenset[str] | None]:
        """The kernel update that is the whole next step while the state's mask does not change, and that mask; None otherwise."""
        return (None, None) if self.recipe.max_norms else (self._update, self._masked)

    def _clip(self, max_norm: float) -> None:
        """Scale the gradients in place so that their common norm is at most max_norm."""
        total = 0.0
        for call, square in self._norms:
            call.run()
            total += float(square[0])
        factor = min(1.0, max_norm / (float(np.sqrt(total)) + CLIP_EPSILON))
        if factor < 1.0:
            for call in self._scales:
                call.run(factor)
