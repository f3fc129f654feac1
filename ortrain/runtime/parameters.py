"""The parameters and properties of a state as mappings, usable with or without a session."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ortrain.errors import ParameterNotFoundError
from ortrain.runtime.state import PropertyValue, TrainingState


class Parameter:
    """One parameter of a state: name, data, grad and requires_grad."""

    def __init__(self, state: TrainingState, name: str) -> None:
        self._state = state
        self._name = name

    @property
    def name(self) -> str:
        """The parameter's name in the model."""
        return self._name

    @property
    def data(self) -> np.ndarray:
        """The value, a view of the session's memory: writing into it changes the model. Assigning copies a new value. Of a parameter that is kept in bfloat16
        it is a float32 copy, which cannot be written; a new value that is assigned is rounded to nearest.

        Raises ParameterShapeError or ParameterTypeError when shape or dtype differ, InvalidStateError for a nominal state."""
        return self._state.array(self._name)

    @data.setter
    def data(self, value: np.ndarray) -> None:
        self._state.replace(self._name, value)

    @property
    def grad(self) -> np.ndarray | None:
        """The gradient, a view: zeros before the first train step; None for frozen parameters, without an open session, and with optimizer_in_backward.
        Reading it makes train steps compute and keep all gradients from then on; otherwise gradients of large weights are deferred to the optimizer
        step."""
        return self._state.gradients.get(self._name)

    @property
    def requires_grad(self) -> bool:
        """Whether the optimizer trains the parameter."""
        return self._name in self._state.trainable and self._name not in self._state.masked

    def __repr__(self) -> str:
        return f"Parameter(name={self._name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters of a state by name; iteration yields (name, Parameter), sorted, as in onnxruntime-training. keys, values, items and get are those of a
    dict: dict(parameters) and **parameters work."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def names(self) -> list[str]:
        """Return the names, sorted, also of a nominal state, whose values cannot be read."""
        return self._state.names()

    def keys(self) -> list[str]:
        """Return the names, sorted."""
        return self.names()

    def values(self) -> list[Parameter]:
        """Return the parameters, in the order of their names."""
        return [parameter for _, parameter in self]

    def items(self) -> list[tuple[str, Parameter]]:
        """Return (name, parameter), in the order of the names."""
        return list(self)

    def get(self, name: str, default: Parameter | None = None) -> Parameter | None:
        """Return a parameter, or the default where there is none of that name."""
        if name not in self:
            return default
        return self[name]

    def __getitem__(self, name: str) -> Parameter:
        if name not in self:
            raise ParameterNotFoundError(f"Parameter {name} not found.")
        if self._state.nominal:
            self._state.array(name)
        return Parameter(self._state, name)

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        self._state.replace(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._state.trainable or name in self._state.frozen

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, self[name]) for name in self._state.names())

    def __len__(self) -> int:
        return len(self._state.trainable) + len(self._state.frozen)

    def __repr__(self) -> str:
        return f"Parameters({', '.join(self._state.names())})"


class Properties:
    """The user's properties of a checkpoint: int, float (single precision) and str values by name; iteration yields (name, value), sorted. keys, values, items
    and get are those of a dict."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def keys(self) -> list[str]:
        """Return the names, sorted."""
        return sorted(self._state.properties)

    def values(self) -> list[PropertyValue]:
        """Return the values, in the order of their names."""
        return [value for _, value in self]

    def items(self) -> list[tuple[str, PropertyValue]]:
        """Return (name, value), in the order of the names."""
        return list(self)

    def get(self, name: str, default: PropertyValue | None = None) -> PropertyValue | None:
        """Return a value, or the default where there is none of that name."""
        if name not in self:
            return default
        return self[name]

    def __getitem__(self, name: str) -> PropertyValue:
        return self._state.property(name)

    def __setitem__(self, name: str, value: PropertyValue) -> None:
        self._state.set_property(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._state.properties

    def __iter__(self) -> Iterator[tuple[str, PropertyValue]]:
        return iter(sorted(self._state.properties.items()))

    def __len__(self) -> int:
        return len(self._state.properties)

    def __repr__(self) -> str:
        return f"Properties({', '.join(f'{name}={value!r}' for name, value in self)})"
