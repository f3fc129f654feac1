"""Inference export: an eval model reduced to some of its values, with the parameters as initializers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model
from ortrain.passes.half_precision import restore_half_precision


def check_outputs(model: Model, names: Sequence[str]) -> None:
    """Raise InvalidArgumentError if there are no names, or a name is not a value of the model."""
    if not names:
        raise InvalidArgumentError("Expected a non empty vector of graph output names, got none.")
    values = {*model.graph.inputs, *model.graph.initializers, *(output for node in model.graph.nodes for output in node.outputs)}
    for name in names:
        if name not in values:
            raise InvalidArgumentError(f"Expected graph output for inference graph {name} could not be found. Please regenerate the eval graph.")


def inference_model(source: Model, names: Sequence[str], parameters: Mapping[str, np.ndarray]) -> Model:
    """Return a copy of an eval model reduced to the named values, with copies of the parameters as initializers.

    A model converted from half precision is converted back. parameters: values of the model inputs that are
    parameters. Raises InvalidArgumentError as check_outputs does."""
    model = source.copy()
    model.graph.initializers |= {name: array.copy() for name, array in parameters.items()}
    model.graph.inputs = [name for name in source.graph.inputs if name not in model.graph.initializers]
    model = restore_half_precision(model)
    graph = model.graph
    check_outputs(model, names)
    graph.nodes = graph.ancestors(names)
    used = {name for node in graph.nodes for name in node.inputs} | set(names)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in used}
    graph.inputs = [name for name in graph.inputs if name in used]
    graph.outputs = list(names)
    values = used | {name for node in graph.nodes for name in node.outputs}
    graph.types = {name: kind for name, kind in graph.types.items() if name in values and name not in graph.initializers}
    return model
