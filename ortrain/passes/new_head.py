"""A new head for another task: the last layer of a classifier replaced by one with another number of outputs."""

from __future__ import annotations

import math

import numpy as np

from ortrain.dtypes import FLOATS, numpy_dtype
from ortrain.errors import InvalidArgumentError, OutputNotFoundError, ShapeInferenceError
from ortrain.ir import Model, NameSource, Node, Shape, TensorType
from ortrain.loading.loader import ModelSource, all_names, as_model
from ortrain.ops.registry.shape_inference import infer
from ortrain.passes.weight_layers import BETWEEN

ACTIVATIONS = frozenset({"LogSoftmax", "Sigmoid", "Softmax"})
"""Activations behind a head, which losses contain."""

PASSED = frozenset({"AveragePool", "Cast", "Clip", "Dropout", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "Identity", "ReduceMean", "Relu", "Reshape",
                    "Resize", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that may stand behind a head, since they keep its classes apart; the shapes show whether they did."""

LAYERS = {"Conv": (1, 2), "Gemm": (1, 2), "MatMul": (1, None)}
"""Layers that can be a head -> their inputs for weight and bias."""


def replace_head(model: ModelSource, classes: int, *, output: str | None = None, seed: int = 0) -> Model:
    """Return a copy of a classifier whose last layer has another number of outputs, and new weights.

    The layer is the dense layer (Gemm or MatMul with Add) or convolution that an output comes from. Its weight and its bias are uniform in ±1/sqrt(inputs),
    as in torch.nn.Linear, and keep their names where nothing else reads them. The output keeps its name and returns scores: a Softmax, LogSoftmax or Sigmoid
    behind the layer is left out, since losses such as cross-entropy contain one.

    model: a path, bytes, an onnx.ModelProto or an ortrain.ir.Model. classes: the number of outputs, at least 1. output: the model's output whose head is
    replaced, by default the first one. seed: of the new weights.

    Raises InvalidArgumentError where no such layer is found, or the shapes do not prove that its outputs are those of the model; OutputNotFoundError for a
    name that is not an output; errors of load_model. Source of the initial values: K. He et al., Delving Deep into Rectifiers (2015)."""
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 1:
        raise InvalidArgumentError(f"expected a number of classes of at least 1, got {classes!r}")
    made = as_model(model)
    chosen = made.graph.outputs[0] if output is None else output
    if chosen not in made.graph.outputs:
        raise OutputNotFoundError(f"expected one of the outputs {made.graph.outputs}, got {chosen!r}")
    head = _Head(made, chosen)
    head.replace(int(classes), np.random.default_rng(seed))
    return made


class _Head:
    """The nodes from a layer to an output of a model."""

    def __init__(self, model: Model, output: str) -> None:
        self.model, self.graph, self.output = model, model.graph, output
        self.names = NameSource(all_names(model.graph))
        self.declared = dict(model.graph.types)
        # declared types of values behind the head name its old size
        self.graph.types = {name: self.declared[name] for name in self.graph.inputs if name in self.declared}
        self.types = infer(model)
        self.behind: list[Node] = []
        """The nodes behind the layer, from the output on."""
        self.additions: list[tuple[Node, int]] = []
        """Nodes that add a bias, and which of their inputs it is."""
        self.layer = self._find()
        self.bias = LAYERS[self.layer.op_type][1]
        self.classes = self.types[self.layer.inputs[1]].sizes[self._class_axis()]
        """The number of outputs that the layer has."""

    def _find(self) -> Node:
        producers = self.graph.producers()
        value = self.output
        while True:
            node = producers.get(value)
            if node is None:
                raise self._refusal(f"{value!r}, which no node computes")
            if node.op_type in LAYERS and not node.domain:
                self._check_layer(node, producers)
                return node
            constant = next((place for place, name in enumerate(node.inputs) if name in self.graph.initializers), None)
            if node.op_type == "Add" and constant is not None and not self.additions:
                self.additions.append((node, constant))
                value = node.inputs[1 - constant]
            elif node.op_type in ACTIVATIONS | PASSED and not node.domain:
                value = node.inputs[0]
            else:
                raise self._refusal(f"{node.op_type} (node {node.name!r})")
            self.behind.append(node)

    def _check_layer(self, node: Node, producers: dict[str, Node]) -> None:
        """Raise InvalidArgumentError for a layer whose weight is computed or whose form has no single axis of outputs."""
        value = node.inputs[1]
        while value not in self.graph.initializers:
            source = producers.get(value)
            if source is None or source.op_type not in BETWEEN:
                raise self._refusal(f"{node.op_type} (node {node.name!r}) with the computed weight {node.inputs[1]!r}")
            value = source.inputs[0]
        kind = self.types[node.inputs[1]]
        is_plain = kind.dtype in FLOATS and not node.attributes.get("transA", 0) and node.attributes.get("group", 1) == 1
        if not is_plain or (node.op_type == "MatMul" and len(kind.sizes) != 2):
            raise self._refusal(f"{node.op_type} (node {node.name!r}) with groups, a transposed input or a weight of {kind.dtype}{list(kind.sizes)}")

    def _refusal(self, got: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"expected a model whose output {self.output!r} comes from a dense layer or convolution with constant weights, to replace "
                                    f"its head, got {got}")

    def _class_axis(self) -> int:
        """Return the axis of outputs in the layer's weight."""
        return 0 if self.layer.op_type == "Conv" or self.layer.attributes.get("transB", 0) else 1

    # ---- changes

    def replace(self, classes: int, random: np.random.Generator) -> None:
        """Give the layer new weights, and the model the new shape. Raises InvalidArgumentError where shapes do not prove that it has that shape."""
        kind, axis = self.types[self.layer.inputs[1]], self._class_axis()
        limit = 1 / math.sqrt(max(1, math.prod(size for place, size in enumerate(kind.sizes) if place != axis)))
        self._set(self.layer, 1, _resized(kind.sizes, axis, classes), limit, random)
        places = [(self.layer, self.bias)] if self.bias is not None and len(self.layer.inputs) > self.bias and self.layer.inputs[self.bias] else []
        for node, place in [*places, *self.additions]:
            sizes = self._constant_shape(node, place)
            axes = [axis for axis, size in enumerate(sizes) if size == self.classes]
            if len(axes) > 1:
                raise self._refusal(f"a bias of shape {list(sizes)} (node {node.name!r})")
            self._set(node, place, _resized(sizes, axes[0], classes) if axes else sizes, limit, random)
        for node in self.behind:
            if node.op_type == "Reshape":
                self._reshape(node, classes)
        before = {name: self.types[name] for name in self.graph.outputs}
        self._leave_out_activations()
        self._check(before, classes)

    def _constant_shape(self, node: Node, place: int) -> Shape:
        if node.inputs[place] not in self.graph.initializers:
            raise self._refusal(f"{node.op_type} (node {node.name!r}) with the computed bias {node.inputs[place]!r}")
        return self.types[node.inputs[place]].sizes

    def _set(self, node: Node, place: int, sizes: Shape, limit: float, random: np.random.Generator) -> None:
        """Give a node a new weight, under the name of the constant that the old one came from where nothing else reads it."""
        producers, value = self.graph.producers(), node.inputs[place]
        dtype = numpy_dtype(self.types[value].dtype)
        node.inputs[place] = ""
        while value not in self.graph.initializers:
            source = producers[value]
            if not any(value in reader.inputs for reader in self.graph.nodes) and value not in self.graph.outputs:
                self.graph.nodes = [other for other in self.graph.nodes if other is not source]
            value = source.inputs[0]
        name = value if not any(value in reader.inputs for reader in self.graph.all_nodes()) else self.names.unique(value)
        self.graph.initializers[name] = random.uniform(-limit, limit, [int(size) for size in sizes]).astype(dtype)
        node.inputs[place] = name

    def _reshape(self, node: Node, classes: int) -> None:
        """Replace the number of classes in a constant shape."""
        shape = self.graph.initializers.get(node.inputs[1])
        if shape is None or self.classes not in shape:
            return
        if np.count_nonzero(shape == self.classes) > 1:
            raise self._refusal(f"Reshape (node {node.name!r}) to {shape.tolist()}, in which {self.classes} occurs twice")
        node.inputs[1] = self.names.unique(f"{node.inputs[1]}.{classes}")
        self.graph.initializers[node.inputs[1]] = np.where(shape == self.classes, classes, shape).astype(shape.dtype)

    def _leave_out_activations(self) -> None:
        """Connect the nodes behind the layer without the activations, which stay for other readers."""
        for place, node in enumerate(self.behind):
            if node.op_type not in ACTIVATIONS:
                continue
            source, result = node.inputs[0], node.outputs[0]
            follower = self.behind[place - 1] if place else None
            node.outputs[0] = self.names.unique(result)
            for other in self.graph.nodes:
                other.inputs = [node.outputs[0] if name == result and other is not follower else name for name in other.inputs]
            if follower is not None and result not in self.graph.outputs:
                follower.inputs[0] = source
            elif source in self.graph.outputs:
                self.graph.nodes.insert(self.graph.nodes.index(node), Node("Identity", [source], [result], self.names.unique(f"{result}.scores")))
            else:
                _rename(self.graph.nodes, source, result)
        self.graph.nodes = self.graph.ancestors(self.graph.outputs)
        read = {name for node in self.graph.nodes for name in node.inputs} | set(self.graph.outputs)
        self.graph.initializers = {name: array for name, array in self.graph.initializers.items() if name in read}

    def _check(self, before: dict[str, TensorType], classes: int) -> None:
        """Declare the new shapes of the outputs. Raises InvalidArgumentError unless the output has the classes along one axis and is as before otherwise."""
        try:
            after = infer(self.model)
        except ShapeInferenceError as error:
            raise self._refusal(f"nodes behind it that need its {self.classes} outputs: {error}") from error
        for name in self.graph.outputs:
            old, new = before[name].shape, after[name].shape
            changed = _changed_axes(old, new)
            sizes = [] if old is None or changed is None else [old[axis] for axis in changed]
            is_wanted = sizes == [self.classes] or (not sizes and (name != self.output or classes == self.classes))
            if old is None or changed is None or not is_wanted:
                raise self._refusal(f"the output {name!r}, whose shape {_text(old)} becomes {_text(new)} with {classes} outputs in place of {self.classes}")
            declared = self.declared.get(name, before[name]).shape
            shape = declared if declared is not None and len(declared) == len(old) else old
            self.graph.types[name] = TensorType(after[name].dtype, tuple(classes if axis in changed else size for axis, size in enumerate(shape)))


def _changed_axes(old: Shape | None, new: Shape | None) -> list[int] | None:
    """Return the axes along which two shapes differ; None where they have no common rank."""
    if old is None or new is None or len(old) != len(new):
        return None
    return [axis for axis, sizes in enumerate(zip(old, new, strict=True)) if sizes[0] != sizes[1]]


def _resized(sizes: Shape, axis: int, size: int) -> Shape:
    return (*sizes[:axis], size, *sizes[axis + 1 :])


def _rename(nodes: list[Node], old: str, new: str) -> None:
    for node in nodes:
        node.inputs = [new if name == old else name for name in node.inputs]
        node.outputs = [new if name == old else name for name in node.outputs]


def _text(shape: Shape | None) -> str:
    return "of unknown rank" if shape is None else str(list(shape))
