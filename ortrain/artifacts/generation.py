"""Artifact generation: from a forward model, a loss and an optimizer to the artifacts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortrain._core.arrays import release_free_memory
from ortrain.artifacts.files import Artifacts
from ortrain.dtypes import DIFFERENTIABLE, NUMBERS
from ortrain.enums import LossType, OptimType
from ortrain.errors import ArgumentTypeError, ArtifactNotFoundError, InvalidArgumentError, OutputNotFoundError
from ortrain.formats.atomic_files import replace_files
from ortrain.formats.checkpoint_contents import Checkpoint
from ortrain.formats.onnx_files import read_model, to_proto
from ortrain.gradient import values_reaching
from ortrain.ir import Model, NameSource, TensorType
from ortrain.ir.globs import expand, is_pattern
from ortrain.loading.loader import OLDEST_IR, all_names, load_model, load_with_constants
from ortrain.onnxblock import loss as losses
from ortrain.onnxblock import optim
from ortrain.onnxblock.blocks import Block, PassThrough
from ortrain.onnxblock.building import GENERATED, check, fresh_names, register_outputs
from ortrain.onnxblock.model_accessor import NEWEST_IR, NEWEST_OPSET, base, empty_base
from ortrain.onnxblock.training import output_names
from ortrain.onnxblock.training_graph import make_training_graphs
from ortrain.ops.custom import load_operators
from ortrain.ops.registry.shape_inference import infer
from ortrain.packages import MAKING_ARTIFACTS, onnx, require_onnx
from ortrain.passes.half_precision import convert_to_float32
from ortrain.passes.head import HEAD, head_parameters
from ortrain.passes.specialization import InputShapes, specialize

LOSSES: dict[LossType, type[Block]] = {
    LossType.MSELoss: losses.MSELoss,
    LossType.CrossEntropyLoss: losses.CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: losses.BCEWithLogitsLoss,
    LossType.L1Loss: losses.L1Loss,
}
OPTIMIZERS: dict[OptimType, type[Block]] = {OptimType.AdamW: optim.AdamW, OptimType.SGD: optim.SGD}

LOSS = "loss"
"""The output that is the loss, in artifacts that stay in memory and in a model without a value of that name."""
MAX_BYTES, HEAVY = 2**26, 2**16
"""Bytes of weights that the model edited by blocks may contain, and bytes from which a weight is taken out when there are more: each edit copies the model, and
a model of 430 MB took 440 MB more at its peak."""

WEIGHT_INPUTS = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
    "BatchNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
}
"""Inputs whose value from a Constant node counts as a weight without being named."""

LIMITING = {"Pow": 1, "Max": 0, "Min": 0, "Clip": 1, "Mod": 1}
"""From which input on a single element is an exponent or a limit. Training the exponent 2 of a square would make the square undefined for negative
numbers."""


def generate_artifacts(
    model: Any,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | Block | str | None = None,
    optimizer: OptimType | str | Block | None = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    *,
    save_running_statistics: bool = True,
    ir_version: int | None = None,
    opset_version: int | None = None,
    input_shapes: InputShapes | None = None,
    input_values: Mapping[str, Any] | None = None,
) -> None:
    """Write the artifacts for training a model: training_model.onnx, eval_model.onnx, checkpoint and optimizer_model.onnx.

    model: path, bytes or onnx.ModelProto of the forward model.
    requires_grad: names of the weights to train (initializers, outputs of Constant nodes, or inputs), patterns in the style of fnmatch ("layer4.*"),
    which choose among the float weights that reach the loss, or "head" for the layers behind the features. None with an optimizer trains every float
    weight that reaches the loss, and running statistics of batch normalization become frozen parameters. None without an optimizer, or [], trains
    none. float16 and bfloat16 weights are trained as float32 copies and exported in their own type.
    frozen_params: names or patterns of weights that are stored in the checkpoint but not trained; they are exempt from patterns in requires_grad.
    loss: a LossType, a name (onnxblock.loss.losses_by_name()), an onnxblock block, or None when the model's first output is the loss.
    optimizer: an OptimType, the name of an optimizer in ortrain.onnxblock.optim ("adamw", "sgd", "lion", ...), an onnxblock optimizer, or None.
    artifact_directory: an existing folder (default: the current directory). prefix: put before every file name.
    ort_format: also write the models as .ort files, and .required_operators.config for reduced builds of onnxruntime.
    custom_op_library: a Python file that calls ortrain.register_operator for the model's custom operators.
    additional_output_names: values to return after the loss. nominal_checkpoint: also write a nominal checkpoint.
    loss_input_names: the outputs passed to the loss (default: all).
    save_running_statistics: turn running statistics of batch normalization that training updates into frozen parameters, so that they are saved and
    exported. With False, those that are not named stay constants, as in onnxruntime-training.
    ir_version: of the files (default: the model's, at most 10 where the opset is at most 21, so that 1.18 and 1.19 can read them; 1.16 and 1.17 read
    9).
    opset_version: convert the model to this opset first (default: keep the model's).
    input_shapes, input_values: sizes that inputs will have, or constant values that replace inputs; branches and shapes that depend on them are
    resolved. A symbol for an axis that the model fixes, as in {"image": ["batch", 1, 8, 8]} or {"image": ["batch", ...]}, opens the batch: the model
    then takes any number of samples.

    Nothing is written on an error. Raises ArtifactNotFoundError, InvalidModelError, InvalidArgumentError, ArgumentTypeError, ParameterNotFoundError,
    OutputNotFoundError, UnreachableParameterError, MissingGradientError, MissingKernelError, ShapeInferenceError, MissingPackageError (the package onnx)."""
    folder = Path(artifact_directory) if artifact_directory is not None else Path.cwd()
    if not folder.is_dir():
        raise ArtifactNotFoundError(f"expected an artifact_directory that exists, got {str(folder)!r}")
    if custom_op_library is not None:
        load_operators(custom_op_library)
    made = build_artifacts(model, requires_grad=requires_grad, frozen_params=frozen_params, loss=loss, optimizer=optimizer,
                           additional_output_names=additional_output_names, loss_input_names=loss_input_names,
                           save_running_statistics=save_running_statistics, ir_version=ir_version, opset_version=opset_version,
                           input_shapes=input_shapes, input_values=input_values)
    extra = made.in_ort_format(prefix) if ort_format else {}
    made.write(folder, prefix, nominal_checkpoint)
    replace_files({folder / name: [content] for name, content in extra.items()})


def build_artifacts(
    model: Any,
    *,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | Block | str | None = None,
    optimizer: OptimType | str | Block | None = None,
    additional_output_names: Sequence[str] | None = None,
    loss_input_names: Sequence[str] | None = None,
    save_running_statistics: bool = True,
    ir_version: int | None = None,
    opset_version: int | None = None,
    input_shapes: InputShapes | None = None,
    input_values: Mapping[str, Any] | None = None,
    name_loss: bool = False,
) -> Artifacts:
    """Return the artifacts in memory. Parameters and errors are those of generate_artifacts; the model may also be an ortrain.ir.Model.

    name_loss: call the loss "loss", where the model has no value of that name, instead of "onnx::loss::2" as onnxruntime-training does."""
    require_onnx(MAKING_ARTIFACTS)
    loss_block, optimizer_block = _loss_block(loss), _optimizer_block(optimizer)
    trained, frozen = _names("requires_grad", requires_grad), _names("frozen_params", frozen_params) or []
    loss_inputs, additional = _names("loss_input_names", loss_input_names), _additional_names(additional_output_names)
    if optimizer_block is not None and trained == []:
        raise InvalidArgumentError("expected at least one name in requires_grad for an optimizer (None means all weights), got []")
    forward, constants = load_with_constants(model, opset_version)
    if input_shapes or input_values:
        specialize(forward, input_shapes or {}, input_values or {})
    convert_to_float32(forward)
    _settle_outputs(forward)
    forward.ir_version = _ir_version(forward, ir_version)
    with fresh_names():
        complete = _with_loss(forward, loss_block, loss_inputs, additional, name_loss)
        trained, frozen = _expanded(trained, frozen, forward, complete, constants)
        if trained is None and optimizer_block is not None:
            trained = _weights(forward, complete, constants, set(frozen))
        graphs = make_training_graphs(complete, trained or (), frozen, save_running_statistics)
        made = None if optimizer_block is None else _optimizer_model(optimizer_block, forward, graphs.checkpoint)
    release_free_memory()
    return Artifacts(graphs.training, graphs.eval, made, graphs.checkpoint)


# ---- arguments


def _loss_block(loss: Any) -> Block:
    if loss is None:
        return PassThrough()
    if isinstance(loss, LossType):
        return LOSSES[loss]()
    if isinstance(loss, str):
        return losses.loss_by_name(loss)
    if isinstance(loss, Block):
        return loss
    raise ArgumentTypeError(f"Unknown loss provided {loss!r}. Expected a LossType, the name of a loss, an onnxblock Block instance, or None.")


def _optimizer_block(optimizer: Any) -> Block | None:
    if optimizer is None:
        return None
    if isinstance(optimizer, OptimType):
        return OPTIMIZERS[optimizer]()
    if isinstance(optimizer, str):
        return optim.optimizer_by_name(optimizer)
    if isinstance(optimizer, Block):
        return optimizer
    raise ArgumentTypeError(f"Unknown optimizer provided {optimizer!r}. Expected an OptimType, a name, an onnxblock optimizer instance, or None.")


def _names(argument: str, names: Any) -> list[str] | None:
    if names is None:
        return None
    if isinstance(names, str | bytes):
        raise ArgumentTypeError(f"expected a list of names for {argument}, got {type(names).__name__}")
    found = list(names)
    if not all(isinstance(name, str) for name in found):
        raise ArgumentTypeError(f"expected a list of names for {argument}, got {found!r}")
    return found


def _additional_names(names: Any) -> list[str]:
    if names is not None and not isinstance(names, list | tuple):
        raise ArgumentTypeError(f"Unknown type provided for additional output names {type(names).__name__}. Expected a list.")
    return _names("additional_output_names", names) or []


def _ir_version(forward: Model, wanted: int | None) -> int:
    """Return the requested IR version; otherwise the model's own, capped at the newest that onnxruntime-training reads where it also reads the opset."""
    if wanted is not None:
        if not OLDEST_IR <= wanted <= onnx.IR_VERSION:
            raise InvalidArgumentError(f"expected an ir_version in [{OLDEST_IR}, {onnx.IR_VERSION}], got {wanted}")
        return wanted
    return min(forward.ir_version, NEWEST_IR) if forward.opset <= NEWEST_OPSET else forward.ir_version


# ---- building blocks


def _settle_outputs(forward: Model) -> None:
    """Declare the inferred types of outputs without a declared type, shape or correct rank. Models ship like that and run, but no target type could be
    derived from them."""
    types = forward.graph.types
    found = infer(forward)
    for name in forward.graph.outputs:
        declared, shape = types.get(name), found[name].shape
        if shape is not None and (declared is None or declared.shape is None or len(declared.shape) != len(shape)):
            types[name] = found[name]


def _with_loss(forward: Model, loss: Block, loss_inputs: list[str] | None, additional: list[str], name_loss: bool) -> Model:
    """Return the forward model with the loss. Its outputs are the loss, the loss block's further outputs and the additional ones."""
    outputs = forward.graph.outputs
    for name in loss_inputs or ():
        if name not in outputs:
            raise OutputNotFoundError(f"The provided output name {name} is not a graph output. Expected one of {outputs}.")
    _check_loss_inputs(loss, loss_inputs or outputs)
    light, heavy = _without_heavy_weights(forward)
    proto = to_proto(light)
    with base(proto) as accessor:
        made = output_names(loss(*(loss_inputs or outputs)))
        proto = accessor.model
    if name_loss and made[0].startswith(GENERATED) and made[0] not in outputs:
        made[0] = _name_loss(proto, made[0], all_names(forward.graph))
    register_outputs(proto, list(dict.fromkeys([*made, *additional])))
    check(proto)
    complete = load_model(proto)
    if heavy:
        complete.graph.inputs = [name for name in complete.graph.inputs if name not in heavy]
        known = complete.graph.initializers
        ordered = {name: heavy[name] if name in heavy else known[name] for name in forward.graph.initializers if name in heavy or name in known}
        complete.graph.initializers = ordered | known
    complete.ir_version, complete.producer = forward.ir_version, forward.producer
    return complete


def _name_loss(proto: onnx.ModelProto, generated: str, used: Collection[str]) -> str:
    """Give the loss, whose name was generated, one that says what it is, and return it. used: names that the forward model has."""
    made = {value for node in proto.graph.node for value in node.output} | {value.name for value in (*proto.graph.input, *proto.graph.initializer)}
    name = NameSource({*used, *made}).unique(LOSS)
    for node in proto.graph.node:
        for values in (node.input, node.output):
            values[:] = [name if value == generated else value for value in values]
    for described in proto.graph.value_info:
        described.name = name if described.name == generated else described.name
    return name


def _check_loss_inputs(loss: Block, names: Sequence[str]) -> None:
    """Raise InvalidArgumentError where a loss cannot take that many outputs of the model."""
    try:
        inspect.signature(loss.build).bind(*names)
    except TypeError as error:
        raise InvalidArgumentError(f"expected outputs that {type(loss).__name__} can take (choose some by loss_input_names), got {list(names)}: "
                                   f"{error}") from error


def _without_heavy_weights(forward: Model) -> tuple[Model, dict[str, np.ndarray]]:
    """Return the model without its large weights, and those weights, when they exceed MAX_BYTES in total: blocks edit a ModelProto, which cannot hold 2
    GB. Inputs of the same types stand for them meanwhile."""
    if sum(array.nbytes for array in forward.graph.initializers.values()) <= MAX_BYTES:
        return forward, {}
    heavy = {name: array for name, array in forward.graph.initializers.items() if array.nbytes >= HEAVY}
    light = forward.copy()
    graph = light.graph
    graph.initializers = {name: array for name, array in graph.initializers.items() if name not in heavy}
    graph.inputs += heavy
    graph.types |= {name: TensorType.of(array) for name, array in heavy.items()}
    return light, heavy


def _weights(forward: Model, complete: Model, constants: frozenset[str], excluded: set[str]) -> list[str]:
    """Return the float weights of the forward model that the loss depends on.

    Scalars count as constants, and so do single elements that are exponents or limits, and values of Constant nodes unless a layer uses them as
    weight or bias."""
    fed = {node.inputs[i] for node in forward.graph.all_nodes() for i in WEIGHT_INPUTS.get(node.op_type, ()) if i < len(node.inputs)}
    fed |= {node.inputs[0] for node in forward.graph.all_nodes() if node.op_type == "Cast" and node.outputs[0] in fed}
    reaching = values_reaching(complete, complete.graph.outputs[0])
    candidates = reaching - excluded - (constants - fed)
    limits = {name for node in forward.graph.all_nodes() if node.op_type in LIMITING for name in node.inputs[LIMITING[node.op_type] :]}
    found = [name for name, array in forward.graph.initializers.items()
             if name in candidates and array.ndim and (array.size > 1 or name not in limits) and str(array.dtype) in DIFFERENTIABLE]
    if not found:
        raise InvalidArgumentError("expected a model with float weights that the loss depends on, got none: name them in requires_grad")
    return found


def _expanded(trained: list[str] | None, frozen: list[str], forward: Model, complete: Model, constants: frozenset[str]) -> tuple[list[str] | None, list[str]]:
    """Return the trained and the frozen weights with names in place of patterns and of "head"."""
    known = {*forward.graph.initializers, *forward.graph.inputs}

    def is_name(name: str) -> bool:
        return name in known or not (is_pattern(name) or name == HEAD)

    if all(map(is_name, (*(trained or ()), *frozen))):
        return trained, frozen
    weights = _weights(forward, complete, constants, set())
    keywords = {HEAD: lambda: head_parameters(forward, weights)}

    def names(patterns: list[str], argument: str, exempt: Collection[str] = ()) -> list[str]:
        found = [(name, is_name(pattern)) for pattern in patterns
                 for name in ([pattern] if is_name(pattern) else expand(pattern, weights, argument, keywords))]
        return list(dict.fromkeys(name for name, literal in found if literal or name not in exempt))

    frozen = names(frozen, "frozen_params")
    return None if trained is None else names(trained, "requires_grad", set(frozen)), frozen


def _optimizer_model(block: Block, forward: Model, checkpoint: Checkpoint) -> Model:
    # an optimizer block uses only the number and the types of the parameters
    parameters = [onnx.TensorProto(name=name, data_type=NUMBERS[str(array.dtype)], dims=array.shape)
                  for name, array in checkpoint.trainable.items()]
    with empty_base(forward.opset) as accessor:
        block(parameters)
        proto = accessor.model
    # runtimes read up to an IR version; one that reads the forward model must also read the optimizer model
    proto.ir_version = forward.ir_version
    return read_model(proto)
