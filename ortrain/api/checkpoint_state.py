"""CheckpointState and what it holds: Parameter, Parameters, Properties."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ortrain.parameters import Parameter, Parameters
from ortrain.state import TrainingState

__all__ = ["CheckpointState", "Parameter", "Parameters", "Properties"]


class Properties:
    """The user's properties of a checkpoint: int, float (single precision) and str values by name; iteration gives (name, value), sorted."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> int | float | str:
        return self._state.property(name)

    def __setitem__(self, name: str, value: int | float | str) -> None:
        self._state.set_property(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._state.properties

    def __iter__(self) -> Iterator[tuple[str, int | float | str]]:
        return iter(sorted(self._state.properties.items()))

    def __len__(self) -> int:
        return len(self._state.properties)

    def __repr__(self) -> str:
        return f"Properties({', '.join(f'{name}={value!r}' for name, value in self)})"


class CheckpointState:
    """The parameters, optimizer state and properties of a training run (old package: onnxruntime.training.api.CheckpointState)."""

    def __init__(self, state: TrainingState) -> None:
        if not isinstance(state, TrainingState):
            raise TypeError(f"Invalid argument for CheckpointState received {type(state)}")
        self._state = state

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """The state in a checkpoint file, full or nominal. Raises ArtifactNotFoundError or InvalidCheckpointError."""
        return cls(TrainingState.load(checkpoint_uri))

    @classmethod
    def save_checkpoint(cls, state: CheckpointState, checkpoint_uri: str | os.PathLike[str], include_optimizer_state: bool = False) -> None:
        """Writes the state to a file, which is whole or not there; the optimizer's moments and step only if asked."""
        state._state.save(checkpoint_uri, include_optimizer_state)

    @property
    def parameters(self) -> Parameters:
        """The model's parameters by name."""
        return Parameters(self._state)

    @property
    def properties(self) -> Properties:
        """The user's properties by name."""
        return Properties(self._state)
