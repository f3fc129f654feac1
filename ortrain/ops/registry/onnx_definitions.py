"""Records of the operators of ONNX that have none in ortrain, built from what the onnx package defines.

They need the onnx package, which is imported when a model has such an operator. Types come from ONNX's shape inference. An operator with a function body is
decomposed into it; any other runs as a Python step that calls ONNX's reference implementation, which is correct and slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.dtypes import NAMES, NUMBERS, name_of, numpy_dtype
from ortrain.errors import MissingKernelError, MissingPackageError
from ortrain.ir import Graph, Node, TensorType
from ortrain.ops.registry.record import InferenceContext, KernelCall, LoweringContext, OpRecord, canonical_domain
from ortrain.packages import require_onnx

if TYPE_CHECKING:
    from ortrain.ops.registry.node_builder import NodeBuilder

ONNX_DOMAINS = ("", "ai.onnx.ml")

CONSTANT = frozenset({
    "ArgMax", "ArgMin", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "BlackmanWindow", "EyeLike", "HammingWindow",
    "HannWindow", "ImageDecoder", "MelWeightMatrix", "NonMaxSuppression", "NonZero", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
    "TfIdfVectorizer", "Unique",
})
"""Operators that no gradient flows through: their outputs are indices, counts, text or piecewise constant."""
SAME_SHAPE = frozenset({"Binarizer", "Imputer", "Normalizer", "Scaler"})
"""Operators of ai.onnx.ml whose output has the shape of the input, although ONNX's shape inference does not provide it."""
RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
"""Operators whose results differ from run to run."""


@cache
def onnx_record(domain: str, op_type: str) -> OpRecord | None:
    """Return a record of an operator that ONNX defines; None for an operator that it does not define or that has subgraphs.

    Raises MissingPackageError for an operator in a domain of ONNX where the onnx package is missing."""
    if domain not in ONNX_DOMAINS:
        return None
    definitions = require_onnx(f"operator {op_type}, of which ortrain has no record", "onnx.defs")
    if not definitions.has(op_type, domain=domain):
        return None
    schema = definitions.get_schema(op_type, domain=domain)
    if any(attribute.type in (definitions.OpSchema.AttrType.GRAPH, definitions.OpSchema.AttrType.GRAPHS) for attribute in schema.attributes.values()):
        return None
    has_no_gradient = op_type in CONSTANT or op_type in RANDOM or domain == "ai.onnx.ml"
    summary = f"{op_type} as ONNX defines it"
    return OpRecord(op_type, domain, infer, lower, None, not has_no_gradient, None if op_type in RANDOM else evaluate, frozenset(), body, False,
                    op_type in RANDOM, summary=summary)


def fallback_record(node: Node) -> OpRecord | None:
    """Return the record of ONNX for a node that its own record refuses; None where ONNX defines none, or where the onnx package is missing.

    The error of the node's own record is the one to report then."""
    try:
        return onnx_record(canonical_domain(node.domain), node.op_type)
    except MissingPackageError:
        return None


# ---- conversion from the IR to ONNX


def _attribute_proto(name: str, value: Any) -> Any:
    """Convert an attribute to an AttributeProto. Raises MissingKernelError for a subgraph."""
    import onnx.helper
    import onnx.numpy_helper

    if isinstance(value, np.ndarray):
        return onnx.helper.make_attribute(name, onnx.numpy_helper.from_array(value))
    if isinstance(value, Graph):
        raise MissingKernelError(f"expected an operator without subgraphs, got attribute {name!r}")
    return onnx.helper.make_attribute(name, list(value) if isinstance(value, tuple) else value)


def node_proto(node: Node) -> Any:
    """Convert a node to a NodeProto."""
    import onnx

    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name, input=node.inputs, output=node.outputs)
    proto.attribute.extend(_attribute_proto(name, value) for name, value in node.attributes.items())
    return proto


def type_proto(kind: TensorType) -> Any:
    """Convert a type to a TypeProto."""
    import onnx.helper

    proto = onnx.helper.make_tensor_type_proto(NUMBERS[kind.dtype], None if kind.shape is None else list(kind.shape))
    proto = onnx.helper.make_sequence_type_proto(proto) if kind.sequence else proto
    return onnx.helper.make_optional_type_proto(proto) if kind.optional else proto


def _tensor_type(c: InferenceContext, proto: Any, output: int) -> TensorType:
    """Convert the TypeProto of output `output`; an unknown size becomes a new symbol."""
    inner = proto.optional_type.elem_type if proto.HasField("optional_type") else proto
    tensor = inner.sequence_type.elem_type.tensor_type if inner.HasField("sequence_type") else inner.tensor_type
    dtype = NAMES.get(tensor.elem_type)
    if dtype is None:
        raise c.error(f"expected an output of a known element type, got {tensor.elem_type}")
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or c.new_symbol(f"output{output}.{axis}")
                      for axis, dim in enumerate(tensor.shape.dim))
    return TensorType(dtype, shape, inner.HasField("sequence_type"), proto.HasField("optional_type"))


def _schema(c: InferenceContext) -> Any:
    """Return the node's OpSchema at the model's opset. Raises ShapeInferenceError where that opset has no such operator, or where the onnx package does not
    know that opset; MissingPackageError."""
    domain = canonical_domain(c.node.domain)
    definitions = require_onnx(f"types of operator {c.node.op_type} that its kernels do not compute", "onnx.defs")
    if domain == "" and c.opset > definitions.onnx_opset_version():
        raise c.error(f"expected a release of the package onnx that knows opset {c.opset}, got one that knows {definitions.onnx_opset_version()}")
    try:
        return definitions.get_schema(c.node.op_type, c.opset, domain)
    except definitions.SchemaError as error:
        raise c.error(f"expected an operator of opset {c.opset}, got one of a later opset") from error


def infer(c: InferenceContext) -> list[TensorType]:
    """Return the output types according to ONNX's shape inference. Raises ShapeInferenceError where it fails or an output has no type."""
    import onnx.checker
    import onnx.numpy_helper
    import onnx.shape_inference

    types = {name: type_proto(kind) for name, kind in zip(c.node.inputs, c.types, strict=True) if name and kind is not None}
    data = {name: onnx.numpy_helper.from_array(value) for name, value in zip(c.node.inputs, c.values, strict=True)
            if name and value is not None and value.dtype != object}
    imports = [_opset(c)]
    try:
        found = onnx.shape_inference.infer_node_outputs(_schema(c), node_proto(c.node), types, data, opset_imports=imports)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise c.error(f"expected inputs that fit the operator: {' '.join(str(error).split())}") from error
    missing = [name for name in c.node.outputs if name and name not in found]
    if missing:
        raise c.error(f"expected types for outputs {missing}, which do not follow from the inputs")
    kinds = [_tensor_type(c, found[name], index) if name else TensorType("float32", None) for index, name in enumerate(c.node.outputs)]
    if c.node.op_type in SAME_SHAPE and canonical_domain(c.node.domain) == "ai.onnx.ml" and kinds[0].shape is None:
        kinds[0] = replace(kinds[0], shape=c.type(0).shape)
    return kinds


def _opset(c: InferenceContext) -> Any:
    import onnx.helper

    return onnx.helper.make_opsetid(canonical_domain(c.node.domain), c.opset)


# ---- the reference implementation


def reference_function(node: Node, opset: int) -> Callable[..., list[Any]]:
    """Return a function that runs a node by ONNX's reference implementation.

    The function takes one array per input, None where it is absent, and returns one per output, None where it is unused. Raises whatever the onnx package
    raises, for instance where it has no implementation; MissingPackageError where it is missing."""
    reference = require_onnx(f"the reference implementation of operator {node.op_type}", "onnx.reference")
    import onnx.helper

    domain = canonical_domain(node.domain)
    inputs = [onnx.helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(node.inputs) if name]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    imports = [onnx.helper.make_opsetid(domain, opset), *([onnx.helper.make_opsetid("", 17)] if domain else [])]
    model = onnx.helper.make_model(onnx.helper.make_graph([node_proto(node)], "node", inputs, outputs), opset_imports=imports)
    evaluator = reference.ReferenceEvaluator(model)

    def run(*values: Any) -> list[Any]:
        found = iter(evaluator.run(None, {name: value for name, value in zip(node.inputs, values, strict=True) if name}))
        return [next(found) if name else None for name in node.outputs]

    return run


def check_types(c: InferenceContext) -> None:
    """Raise ShapeInferenceError for element types that ONNX does not define the operator for.

    The reference implementation would accept them and give wrong results or fail with an error that names no node."""
    parameters, bound = _schema(c).inputs, dict[str, str]()
    import onnx.helper

    for index, kind in enumerate(c.types):
        parameter = parameters[min(index, len(parameters) - 1)]
        if kind is None or kind.sequence or kind.optional:
            continue
        name = f"tensor({onnx.helper.tensor_dtype_to_string(NUMBERS[kind.dtype]).removeprefix('TensorProto.').lower()})"
        if name not in parameter.types:
            raise c.error(f"expected input {index} of {' or '.join(sorted(parameter.types))}, got {name}")
        if parameter.is_homogeneous and bound.setdefault(parameter.type_str, name) != name:
            raise c.error(f"expected input {index} of {bound[parameter.type_str]} as those before it, got {name}")


def lower(c: LoweringContext) -> KernelCall:
    """Return the call of a Python step. Raises MissingKernelError where ONNX has no reference implementation."""
    check_types(c)
    try:
        run = reference_function(c.node, c.opset)
    except MissingPackageError:
        raise
    except Exception as error:
        raise MissingKernelError(f"expected a kernel or a reference implementation, found none: {error} (operator {c.node.op_type}, node {c.node.name!r})"
                                 ) from error
    kinds = [None if kind is None else numpy_dtype(kind.dtype) for kind in c.outputs]

    def step(*values: np.ndarray | None) -> Sequence[np.ndarray | None]:
        return [None if found is None else np.asarray(found).astype(kind, copy=False) for found, kind in zip(run(*values), kinds, strict=True)]

    return KernelCall("python", function=step)


def evaluate(c: InferenceContext) -> list[Any]:
    """Return the outputs of a node whose inputs are constant; an empty list where the reference implementation is missing or fails."""
    try:
        found = reference_function(c.node, c.opset)(*c.values)
    except Exception:  # the reference raises arbitrary errors; the node stays in the graph and reports them when it runs
        return []
    kinds = infer(c)
    return [None if value is None else np.asarray(value).astype(numpy_dtype(kind.dtype), copy=False) for value, kind in zip(found, kinds, strict=True)]


# ---- function bodies


def body(g: NodeBuilder) -> list[str] | None:
    """Add the nodes of the operator's function body and return their results; None where it has no body for this opset."""
    function = _function(g)
    if function is None:
        return None
    import onnx.defs

    schema = onnx.defs.get_schema(g.node.op_type, g.opset, canonical_domain(g.node.domain))
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    defaults |= {a.name: a for a in function.attribute_proto}
    names = dict(zip(function.input, [*g.inputs, *[""] * (len(function.input) - len(g.inputs))], strict=False))
    for node in function.node:
        attributes = dict(_attributes(g, node, defaults))
        if node.op_type == "Constant":
            names[node.output[0]] = g.constant(_constant(attributes))
            continue
        results = g.ops(node.op_type, *[names.get(name, "") if name else "" for name in node.input], outputs=[bool(name) for name in node.output],
                        domain=canonical_domain(node.domain), **attributes)
        names |= dict(zip(node.output, results, strict=True))
    return [names.get(name, "") for name in function.output[: len(g.outputs)]]


def _function(g: NodeBuilder) -> Any:
    """Return the operator's FunctionProto for the model's opset, None where it has none or the function contains subgraphs."""
    import onnx
    import onnx.defs

    domain = canonical_domain(g.node.domain)
    schema: Any = onnx.defs.get_schema(g.node.op_type, g.opset, domain)
    found = b""
    if schema.has_function:
        versions = [version for version in schema.function_opset_versions if version <= g.opset]
        found = schema.get_function_with_opset_version(max(versions)) if versions else b""
    elif schema.has_context_dependent_function:
        versions = [version for version in schema.context_dependent_function_opset_versions if version <= g.opset]
        kinds = [type_proto(g.type(name)).SerializeToString() if name else b"" for name in g.inputs]
        found = schema.get_context_dependent_function_with_opset_version(max(versions), node_proto(g.node).SerializeToString(), kinds) if versions else b""
    if not found:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(found)
    has_graphs = any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for node in function.node for a in node.attribute)
    return None if has_graphs else function


def _attributes(g: NodeBuilder, node: Any, defaults: dict[str, Any]) -> Any:
    """Yield (name, value) of the attributes of a node in a function body, references to the operator's attributes resolved.

    defaults: the values of the operator's attributes that its node may omit. A reference to an attribute without a value yields nothing."""
    import onnx.helper
    import onnx.numpy_helper

    def value_of(attribute: Any) -> Any:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return onnx.numpy_helper.to_array(value)
        if isinstance(value, bytes):
            return value.decode()
        return tuple(item.decode() if isinstance(item, bytes) else item for item in value) if isinstance(value, list) else value

    for attribute in node.attribute:
        source = attribute.ref_attr_name
        if not source:
            yield attribute.name, value_of(attribute)
        elif source in g.node.attributes:
            yield attribute.name, g.node.attributes[source]
        elif source in defaults:
            yield attribute.name, value_of(defaults[source])


def _constant(attributes: dict[str, Any]) -> np.ndarray:
    """Return the array of a Constant node in a function body. attributes: its only attribute."""
    ((name, value),) = attributes.items()
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    return np.asarray(value, dtypes.get(name)) if name_of(np.asarray(value).dtype) != "string" else np.asarray(value, object)
