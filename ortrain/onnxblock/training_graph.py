"""Training graph and eval graph of a forward model with its loss. Both compute half precision in float32.

Both take the user inputs, then the parameters in the order of their initializers. The training graph also has one gradient buffer per trainable
parameter, the reset flag, and one accumulator output per buffer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ortrain.errors import InvalidArgumentError, InvalidModelError, ParameterNotFoundError
from ortrain.formats.checkpoint_contents import Checkpoint
from ortrain.gradient import add_gradient
from ortrain.ir import Dim, Graph, Model, NameSource, Node, TensorType
from ortrain.loading.loader import read_values
from ortrain.ops.registry.record import MICROSOFT, canonical_domain
from ortrain.ops.registry.shape_inference import infer
from ortrain.ops.training import ACCUMULATOR, BUFFER_SUFFIX, RESET_FLAG, UPDATED_SUFFIX
from ortrain.passes.half_precision import convert_to_float32, copy_original_type, restore_output_types

TRAINING_OPSETS = {
    "ai.onnx.ml": 5, "ai.onnx.training": 1, "ai.onnx.preview.training": 1, MICROSOFT: 1, "com.microsoft.experimental": 1,
    "com.microsoft.nchwc": 1, "org.pytorch.aten": 1,
}
"""Opset imports of a training model in addition to the forward model's, as onnxruntime-training writes them."""


@dataclass(slots=True)
class TrainingGraphs:
    """What training needs besides an optimizer."""

    training: Model
    eval: Model
    checkpoint: Checkpoint


def make_training_graphs(model: Model, requires_grad: Collection[str], frozen_params: Collection[str],
                         save_running_statistics: bool = True) -> TrainingGraphs:
    """Return training model, eval model and checkpoint of a model whose first output is the loss.

    requires_grad: initializers and user inputs. frozen_params: initializers; unknown names are ignored.
    save_running_statistics: turn running statistics of batch normalization that training updates into frozen parameters, named or not, so that they
    are saved and exported.
    Raises InvalidArgumentError for a name in both, ParameterNotFoundError for an unknown one, UnreachableParameterError, MissingGradientError,
    MissingKernelError, ShapeInferenceError, InvalidModelError."""
    both = sorted(set(requires_grad) & set(frozen_params))
    if both:
        raise InvalidArgumentError(f"A parameter cannot be frozen and require gradient computation at the same time {both}")
    graph = model.graph
    convert_to_float32(model)
    restore_output_types(model, graph.outputs[1:])
    for name in requires_grad:
        if name not in graph.initializers and name not in graph.inputs:
            raise ParameterNotFoundError(f"Node arg {name} is not found in the graph. Expected an initializer, a Constant node or an input.")
    if save_running_statistics:
        frozen_params = [*frozen_params, *_running_statistics(model, set(requires_grad), set(frozen_params))]
    wanted = [name for name in (*graph.inputs, *graph.initializers) if name in requires_grad]
    checkpoint = Checkpoint({name: graph.initializers[name] for name in wanted if name in graph.initializers},
                            {name: array for name, array in graph.initializers.items() if name in frozen_params})
    _free_names(model, wanted)
    bound = _parameters_as_inputs(model, checkpoint)
    return TrainingGraphs(_training_model(bound, wanted), _eval_model(bound), checkpoint)


def trains_statistics(node: Node, trained: Collection[str]) -> bool:
    """Whether a batch normalization uses the statistics of the batch in training: its scale or its bias is trained. One that is entirely frozen is a
    fixed scale and shift and keeps its running statistics."""
    return node.op_type == "BatchNormalization" and canonical_domain(node.domain) == "" and any(name in trained for name in node.inputs[1:3])


def _running_statistics(model: Model, trained: set[str], frozen: set[str]) -> list[str]:
    """Return the running statistics that training updates and that are not named yet. One initializer used twice (exporters merge equal ones) is split,
    since the two are updated separately."""
    graph = model.graph
    names = NameSource(graph.names())
    found: list[str] = []
    taken = set(trained)
    for node in graph.nodes:
        if not trains_statistics(node, trained):
            continue
        for index in (3, 4):
            name = node.inputs[index]
            if name not in graph.initializers:
                continue
            if name in taken:
                node.inputs[index] = names.unique(name)
                graph.initializers[node.inputs[index]] = graph.initializers[name].copy()
                copy_original_type(model, name, node.inputs[index])
                name = node.inputs[index]
            taken.add(name)
            if name not in frozen:
                found.append(name)
    return found


def _free_names(model: Model, wanted: Collection[str]) -> None:
    """Rename inner values whose names have a meaning in training models."""
    graph = model.graph
    reserved = {RESET_FLAG, *(name + suffix for name in wanted for suffix in (BUFFER_SUFFIX, UPDATED_SUFFIX))}
    fixed = reserved.intersection((*graph.inputs, *graph.initializers, *graph.outputs))
    if fixed:
        raise InvalidModelError(f"expected no inputs, outputs or weights with names that training models use, got {sorted(fixed)}")
    names = NameSource(graph.names() | reserved)
    renamed = {name: names.unique(name) for node in graph.nodes for name in node.outputs if name in reserved}
    if not renamed:
        return
    for node in graph.nodes:
        if any(isinstance(value, Graph) for value in node.attributes.values()) and renamed.keys() & set(read_values(node)):
            raise InvalidModelError(f"expected no subgraph to read a value named {sorted(renamed)}, got one in node {node.name!r}")
        node.inputs = [renamed.get(name, name) for name in node.inputs]
        node.outputs = [renamed.get(name, name) for name in node.outputs]
    graph.types = {renamed.get(name, name): kind for name, kind in graph.types.items()}


def _parameters_as_inputs(model: Model, checkpoint: Checkpoint) -> Model:
    bound = model.copy()
    graph = bound.graph
    for name in model.graph.initializers:
        if name in checkpoint.trainable or name in checkpoint.frozen:
            graph.inputs.append(name)
            graph.types[name] = TensorType.of(graph.initializers.pop(name))
    return bound


# ---- training model


def _training_model(bound: Model, wanted: list[str]) -> Model:
    model = bound.copy()
    graph = model.graph
    model.opsets |= {domain: version for domain, version in TRAINING_OPSETS.items() if version > model.opsets.get(domain, 0)}
    names = NameSource(graph.names())
    read = values_read(graph)
    fixed = [piece for node in graph.nodes for piece in ([node] if trains_statistics(node, wanted) else with_fixed_statistics(node, read))]
    graph.nodes = fixed
    for node in fixed:
        if node.op_type != "BatchNormalization" or trains_statistics(node, wanted):
            _prepare_for_training(node, names)
    note_types(model)
    gradients = add_gradient(model, graph.outputs[0], wanted) if wanted else {}
    buffers = []
    for name in wanted:
        buffer, updated = name + BUFFER_SUFFIX, name + UPDATED_SUFFIX
        label = f"GradientAccumulator{len(graph.outputs)}"
        graph.nodes.append(Node(ACCUMULATOR, [buffer, gradients[name], RESET_FLAG], [updated], label, MICROSOFT))
        graph.outputs.append(updated)
        graph.types[buffer] = graph.types[name]
        graph.types[updated] = TensorType("bool", (1,))
        buffers.append(buffer)
    graph.inputs += [*buffers, RESET_FLAG]
    graph.types[RESET_FLAG] = TensorType("bool", (1,))
    drop_unused_initializers(graph)
    return model


def _prepare_for_training(node: Node, names: NameSource) -> None:
    """Put a node into its training form: batch statistics, and the outputs that its gradient reads."""
    if node.domain not in ("", "ai.onnx"):
        return
    if node.op_type == "BatchNormalization":
        kept = node.outputs[:3] + [""] * (3 - len(node.outputs))
        labels = ("running_mean", "running_var", "saved_mean", "saved_inv_std")
        made = [name or names.unique(f"{node.outputs[0]}_{label}") for name, label in zip([*kept[1:], "", ""], labels, strict=True)]
        node.outputs = [kept[0], *made]
        node.op_type, node.domain = "BatchNormInternal", MICROSOFT
        node.name = f"{node.name}_BatchNormInternal" if node.name else ""
        have = node.attributes
        node.attributes = {"momentum": float(have.get("momentum", 0.9)), "epsilon": float(have.get("epsilon", 1e-5)), "training_mode": 1}
    elif node.op_type == "SoftmaxCrossEntropyLoss" and not any(node.outputs[1:]):
        node.outputs = [node.outputs[0], names.unique(f"{node.outputs[0]}_log_prob")]
    elif node.op_type == "Dropout" and any(node.inputs[2:]) and not any(node.outputs[1:]):
        node.outputs = [node.outputs[0], names.unique(f"{node.outputs[0]}_mask")]


# ---- eval model


def _eval_model(bound: Model) -> Model:
    model = bound.copy()
    graph = model.graph
    read = values_read(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend(with_fixed_statistics(node, read))
        if node.op_type == "Dropout" and canonical_domain(node.domain) == "" and len(node.inputs) > 2:
            node.inputs[2] = ""
    graph.nodes = nodes
    drop_unused_initializers(graph)
    note_types(model)
    return model


# ---- both models


def values_read(graph: Graph) -> set[str]:
    """Return the graph's outputs and every value that a node reads."""
    return {*graph.outputs, *(name for node in graph.nodes for name in read_values(node))}


def with_fixed_statistics(node: Node, read: Collection[str]) -> list[Node]:
    """Return a batch normalization in its inference form (any other node unchanged): statistics that are read are those that came in."""
    if node.op_type != "BatchNormalization" or canonical_domain(node.domain) != "":
        return [node]
    if "training_mode" in node.attributes:
        node.attributes["training_mode"] = 0
    copies = [Node("Identity", [statistic], [output], f"{node.name}_{output}")
              for statistic, output in zip(node.inputs[3:5], node.outputs[1:3], strict=False) if output in read]
    node.outputs = node.outputs[:1]
    return [node, *copies]


def drop_unused_initializers(graph: Graph) -> None:
    """Keep only the constants that a node reads or that are outputs."""
    read = values_read(graph)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in read}


def note_types(model: Model) -> None:
    """Add the inferred types to the graph, and remove those of values that no longer exist."""
    graph = model.graph
    found = infer(model)
    known = {name: _merged(graph.types.get(name), kind) for name, kind in found.items() if name not in graph.initializers}
    for name in (*graph.inputs, *graph.outputs):
        if name not in known and name in graph.types:
            known[name] = graph.types[name]
    graph.types = known


def _merged(declared: TensorType | None, found: TensorType) -> TensorType:
    """Merge two types: a number wins over a symbol, the model's symbol over a generated one."""
    if declared is None or declared.shape is None or declared.dtype != found.dtype:
        return found
    if found.shape is None or len(found.shape) != len(declared.shape):
        return declared if found.shape is None else found

    def dim(mine: Dim, theirs: Dim) -> Dim:
        return theirs if isinstance(theirs, int) else mine if isinstance(mine, int) or not mine.startswith("unk__") else theirs

    return TensorType(found.dtype, tuple(dim(m, t) for m, t in zip(declared.shape, found.shape, strict=True)), found.sequence)
