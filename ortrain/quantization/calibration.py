"""Calibration: the range of each value over some batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model
from ortrain.runtime.inference_session import InferenceSession


def value_ranges(model: Model, values: Sequence[str], batches: Iterable[Any]) -> dict[str, tuple[float, float]]:
    """Return value -> (lowest, highest) over all batches, 0 always included, since padding and ReLU must be exact.

    batches: mappings by input name, sequences in the order of the inputs, or arrays for a model with one input.
    Raises InvalidArgumentError without batches, or for a value that is not finite; input errors as InferenceSession.run."""
    observed = model.copy()
    observed.graph.outputs = list(dict.fromkeys([*values]))
    found = dict.fromkeys(values, (0.0, 0.0))
    count = 0
    session = InferenceSession(observed)
    for batch in batches:
        count += 1
        for name, array in zip(observed.graph.outputs, session.run(None, _by_name(batch, observed.graph.inputs)), strict=True):
            low, high = float(array.min()), float(array.max())
            if not (math.isfinite(low) and math.isfinite(high)):
                raise InvalidArgumentError(f"expected finite values in calibration, got {low} and {high} as the range of {name!r} in batch {count}")
            found[name] = min(found[name][0], low), max(found[name][1], high)
    if not count:
        raise InvalidArgumentError("expected at least one batch for calibration, got none")
    return found


def _by_name(batch: Any, inputs: Sequence[str]) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return {name: batch[name] for name in inputs if name in batch}
    if isinstance(batch, np.ndarray) or not isinstance(batch, Sequence):
        batch = [batch]
    return dict(zip(inputs, batch, strict=False))
