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
from ortrain.ops.registry.optimizers import ADAMW, ALGORITHMS, GRADIENTS, OptimizerAlgorithm
from ortrain.runtime.state import TrainingState

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as InplaceClipGradNorm does."""


@dataclass(frozen=True, slots=True)
class OptimizerRecipe:
    """The algorithm and the hyperparameters that an optimizer model specifies."""

    algorithm: OptimizerAlgorithm
    floats: tuple[float, ...] = ()
    """Hyperparameters in the order of the algorithm's kernel."""
    ints: tuple[int, ...] = ()
    max_norms: tuple[float, ...] = ()
    """Limits of the gradients' common norm, applied one after another before the update."""


def read_recipe(model: Model) -> OptimizerRecipe:
    """Read the recipe from an optimizer model. Raises InvalidModelError when it is not an optimizer model, MissingKernelError for nodes ortrain cannot
    run there."""
    updates = [node for node in model.graph.nodes if node.op_type in ALGORITHMS]
    if len(updates) != 1:
        raise InvalidModelError(f"Only support one type of optimizer algorithm, but got: {len(updates)}")
    update = updates[0]
    algorithm = ALGORITHMS[update.op_type]
    if model.graph.inputs != algorithm.inputs:
        raise InvalidModelError(f"Invalid graph inputs. Expected: {algorithm.inputs} Actual: {model.graph.inputs}")
    attributes = update.attributes
    recipe = OptimizerRecipe(algorithm, algorithm.float_values(attributes), algorithm.int_values(attributes), _clip_norms(model, update))
    if algorithm is ADAMW and recipe.ints == (0, 0):
        raise InvalidModelError("The correct_bias should be 1 for adam_mode = 0.")
    return recipe


def _clip_norms(model: Model, update: Node) -> tuple[float, ...]:
    """Return max_norm of every InplaceClipGradNorm between the gradients and the update, in order."""
    producers, norms = model.graph.producers(), []
    name = update.inputs[ALGORITHMS[update.op_type].node_inputs.index(GRADIENTS)]
    while name != GRADIENTS:
        node = producers.get(name)
        if node is None or node.op_type != "InplaceClipGradNorm":
            break
        norms.append(float(node.attributes.get("max_norm", 1.0)))
        name = node.inputs[0]
    if name != GRADIENTS or len(model.graph.nodes) != len(norms) + 1:
        raise MissingKernelError("expected an optimizer model of one update whose gradients come straight or through InplaceClipGradNorm, got nodes "
                                 f"{[node.op_type for node in model.graph.nodes]}")
    return tuple(reversed(norms))


class Optimizer:
    """Updates the parameters of a bound state."""

    def __init__(self, model: Model, state: TrainingState, handle: EngineHandle) -> None:
        self.recipe = read_recipe(model)
        self.state = state
        self.handle = handle
        algorithm = self.recipe.algorithm
        state.bind_moments(len(algorithm.moments), algorithm.uses_moments)
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
        algorithm = self.recipe.algorithm
        updates: list[BoundKernel] = []
        self._norms, self._scales = [], []
        for k, segment in enumerate(self.state.trainable_segments):
            gradients = self.state.gradient_segments[k].array
            moments = [moment[k].array for moment in self.state.moments]
            dtype = segment.dtype.name
            for start, end in segment.runs(self._left_out):
                cut = slice(start, end)
                weights, gradient = segment.array[cut], gradients[cut]
                arrays = [weights, gradient, self._progress, None, *(moment[cut] for moment in moments[: algorithm.used_moments])]
                updates.append(BoundKernel(self.handle, kernels()[algorithm.kernel, dtype], arrays, [], self.recipe.ints))
                square = np.zeros(1, np.float64)
                self._norms.append((BoundKernel(self.handle, kernels()["squared_norm", dtype], [gradient], [square]), square))
                self._scales.append(BoundKernel(self.handle, kernels()["scale_in_place", dtype], [gradient]))
        self._update = OptimizerUpdate(updates, self._progress, self.recipe.floats)

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
