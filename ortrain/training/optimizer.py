"""The optimizer of a session: the update that its recipe specifies, run over the flat segments of the state."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import kernels
from ortrain._core.optimizer_update import BoundKernel, OptimizerUpdate, Progress
from ortrain.errors import InvalidArgumentError
from ortrain.ops.registry.optimizers import ALGORITHMS
from ortrain.runtime.segments import Segment, aligned_zeros
from ortrain.runtime.state import TrainingState, is_bfloat16
from ortrain.training.gradients import Gradients
from ortrain.training.parameter_groups import GroupSettings, UpdateSettings
from ortrain.training.recipe import OptimizerRecipe
from ortrain.training.update_nodes import rounding_ints


def check_kept(recipe: OptimizerRecipe, state: TrainingState) -> None:
    """Raise InvalidArgumentError for an optimizer that cannot update parameters of bfloat16, where a state keeps them so."""
    if recipe.algorithm.per_tensor and any(map(is_bfloat16, state.trainable_segments)):
        known = ", ".join(algorithm.operator for algorithm in ALGORITHMS.values() if not algorithm.per_tensor)
        raise InvalidArgumentError(f"expected an optimizer that updates each element on its own with parameters of bfloat16, one of {known}, got "
                                   f"{recipe.algorithm.operator}")


class Optimizer:
    """Updates the parameters of a bound state.

    recipe: from the optimizer model. settings: the parameter groups' settings. gradients: the state's."""

    def __init__(self, recipe: OptimizerRecipe, state: TrainingState, handle: EngineHandle, settings: GroupSettings, gradients: Gradients) -> None:
        self.recipe, self.state, self.handle, self.settings, self.gradients = recipe, state, handle, settings, gradients
        state.bind_moments([None if moment is None else moment.shape for moment in recipe.moments], recipe.algorithm.uses_moments)
        self._masked: frozenset[str] = frozenset()
        self._left_out: frozenset[str] | None = None
        self._progress = Progress(settings.scales)
        self._update = OptimizerUpdate([], self._progress)

    def prepare(self, spent: Set[str] = frozenset()) -> None:
        """Prepare kernel calls for the parameters that are neither masked nor in `spent`, which are updated elsewhere."""
        masked = frozenset(self.state.masked)
        if self._left_out == masked | spent:
            self._masked = masked
            return
        self._masked, self._left_out = masked, masked | spent
        names = set(self.state.trainable)
        calls = self._calls_per_parameter if self.recipe.algorithm.per_tensor else self._calls_per_range
        self._update = OptimizerUpdate([call for settings, mine in self.settings.partition(self.state.trainable).items()
                                        for call in calls(settings, self._left_out | names - mine)], self._progress)

    def _calls_per_range(self, settings: UpdateSettings, left_out: Set[str]) -> Iterator[BoundKernel]:
        """Yield the calls over ranges of the flat segments."""
        gradients = self.state.updated_gradient_segments
        for k, segment in enumerate(self.state.updated_segments):
            arrays = [segment.array, gradients[k].array, *(moments[k].array if moments else None for moments in self._moments)]
            for start, end in segment.runs(left_out):
                ints = (*rounding_ints(self.state, segment, start), *self.recipe.ints)
                yield self._call(settings, [None if array is None else array[start:end] for array in arrays], ints)

    def _calls_per_parameter(self, settings: UpdateSettings, left_out: Set[str]) -> Iterator[BoundKernel]:
        """Yield one call per parameter, in its shape."""
        scratch, gradients = self._scratch(), self.state.updated_gradient_segments
        for k, segment in enumerate(self.state.updated_segments):
            for name in segment.views:
                if name not in left_out:
                    segments = [segment, gradients[k], *(moments[k] if moments else None for moments in self._moments)]
                    yield self._call(settings, [None if part is None else part.views[name] for part in segments], self.recipe.ints, scratch.get(segment.dtype))

    def _call(self, settings: UpdateSettings, arrays: list[np.ndarray | None], ints: tuple[int, ...], scratch: np.ndarray | None = None) -> BoundKernel:
        weights, gradient, *moments = arrays
        assert weights is not None
        kernel = kernels()[self.recipe.algorithm.kernel, weights.dtype.name]
        return BoundKernel(self.handle, kernel, [weights, gradient, self._progress.rows[settings.row], None, *moments], [], ints, settings.floats,
                           scratch)

    def _scratch(self) -> dict[np.dtype, np.ndarray]:
        """Return the working memory that the kernels share, by dtype."""
        elements = self.recipe.algorithm.scratch
        if elements is None:
            return {}
        return {segment.dtype: aligned_zeros(max(map(elements, segment.shapes.values()), default=0), segment.dtype)
                for segment in self.state.updated_segments}

    @property
    def _moments(self) -> list[list[Segment]]:
        return self.state.moments[: self.recipe.algorithm.used_moments]

    def step(self, learning_rate: float) -> None:
        """Update the parameters that prepare() selected."""
        if self._changes_gradients:
            self.gradients.prepare(self._masked)
            self.gradients.change(self.recipe.max_norms)
        self._update.run(learning_rate, self.state.optimizer_step + 1)
        self.state.optimizer_step += 1

    @property
    def _changes_gradients(self) -> bool:
        return bool(self.recipe.max_norms) or self.gradients.are_changed

    @property
    def repeatable(self) -> tuple[OptimizerUpdate | None, frozenset[str] | None]:
        """The kernel update that is the whole next step while the state's mask does not change, and that mask; None otherwise."""
        return (None, None) if self._changes_gradients else (self._update, self._masked)
