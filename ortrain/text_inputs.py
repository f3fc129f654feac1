"""Text among the inputs of a model: the nodes that turn it into numbers (Cast, LabelEncoder) run in NumPy before the program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.errors import InputTypeError, MissingKernelError
from ortrain.ir import Model, Node, TensorType
from ortrain.ops.inference import Inference
from ortrain.ops.record import InferenceContext, canonical_domain, record_of

TEXT = "string"


class TextEncoder:
    """The part of a model that reads text, and the model without it.

    model: what is left for a program; inputs: its inputs, the numbers made of text behind the others."""

    def __init__(self, model: Model, inputs: Sequence[str], text: Sequence[str]) -> None:
        self.model = model.copy()
        graph = self.model.graph
        self._given = list(inputs)
        self._nodes: list[Node] = []
        inference = Inference(model.opsets, {name: graph.types[name] for name in text}, dict(graph.initializers), graph.types)
        known, made, rest = set(text), [], []
        for node in graph.nodes:
            if not known.intersection(node.inputs):
                rest.append(node)
                continue
            self._check(node, known, set(graph.initializers))
            self._nodes.append(node)
            inference.visit(node)
            known.update(name for name in node.outputs if name and inference.types[name].dtype == TEXT)
            made += [name for name in node.outputs if name and inference.types[name].dtype != TEXT]
        graph.nodes = rest
        read = {*graph.outputs, *(name for node in graph.nodes for name in node.inputs)}
        self.made = [name for name in made if name in read]
        self.inputs = [name for name in inputs if name not in text] + self.made
        self._opsets = model.opsets

    @classmethod
    def of(cls, model: Model, inputs: Sequence[str]) -> TextEncoder | None:
        """The encoder of a model some of whose inputs are text, else None."""
        text = [name for name in inputs if name in model.graph.types and model.graph.types[name].dtype == TEXT]
        return cls(model, inputs, text) if text else None

    @staticmethod
    def _check(node: Node, known: set[str], constants: set[str]) -> None:
        record = record_of(node)
        if record is None or record.evaluate is None or any(name and name not in known | constants for name in node.inputs):
            raise MissingKernelError(f"expected operators on text that ortrain can evaluate (Cast, LabelEncoder), got {node.op_type} (node {node.name!r})")

    def encode(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The program's inputs for the user's, which have been checked. Raises InputTypeError for text that is no number where one is asked for."""
        values = dict(self.model.graph.initializers) | dict(zip(self._given, arrays, strict=True))
        for node in self._nodes:
            given = [values[name] if name else None for name in node.inputs]
            types = [None if value is None else TensorType.of(value) for value in given]
            record = record_of(node)
            assert record is not None and record.evaluate is not None
            context = InferenceContext(node, types, given, self._opsets.get(canonical_domain(node.domain), 1))
            try:
                results = record.evaluate(context)
            except ValueError as error:
                raise InputTypeError(f"expected text that {node.op_type} can read, got other: {error} (node {node.name!r})") from error
            values.update((name, np.ascontiguousarray(result).reshape(result.shape)) for name, result in zip(node.outputs, results, strict=False) if name)
        return tuple(values[name] for name in self.inputs)
