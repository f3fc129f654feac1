"""The support of each operator: the kind of its kernel and the state of its gradient."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from ortrain._core.kernel_table import OPTIMIZER_KERNELS, kernels
from ortrain.loading.sequences import RULES as SEQUENCE_RULES
from ortrain.ops import REGISTRY
from ortrain.ops.custom import DOMAIN as CUSTOM
from ortrain.ops.registry.onnx_definitions import onnx_record
from ortrain.ops.registry.optimizers import ALGORITHMS, OptimizerAlgorithm
from ortrain.ops.registry.record import ORTRAIN, ElementwiseLowering, OpRecord
from ortrain.ops.training import UPDATED
from ortrain.packages import require_onnx

COMPILED, COMPOSED, FUNCTION, REFERENCE, NONE = "compiled", "composed", "function", "reference", "none"
"""Kinds of kernels: its own; a composition of other operators by ortrain or by ONNX's function body; ONNX's reference implementation in a Python step."""
RULE, BY_PARTS, FLAT, FIRST_ORDER, NOT_YET = "yes", "of its parts", "none by nature", "first order only", "not yet"
"""States of gradients. Of its parts: the gradients of the operators that it decomposes into (for sequences, where their elements are known). First order
only: an operator that is part of a gradient or of a plan and is not differentiated again. Not yet: not implemented."""

GRADIENT_OPERATOR = re.compile(r"\w+Grad(_\w+)?")
"""The names of operators that gradients consist of; ONNX has none."""

NUMPY_NAMES = {"float": "float32", "double": "float64"}
"""ONNX's names of types -> NumPy's, where they differ."""

PLANNED = re.compile(r"ChannelsLast\w+")
"""Operators that plans substitute after differentiation."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: domain, name, the opsets that changed it, dtypes of its compiled kernel, kind of kernel, state of its gradient."""

    domain: str
    name: str
    opsets: tuple[int, ...]
    dtypes: tuple[str, ...]
    kernel: str
    gradient: str


def operators() -> list[Operator]:
    """Return every operator of the default domain that the installed onnx defines, and those of other domains that ortrain supports, by name."""
    versions: dict[tuple[str, str], list[int]] = {}
    allowed: dict[tuple[str, str], set[str]] = {}
    for schema in require_onnx("the list of its operators", "onnx.defs").get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated or (schema.domain, schema.name) in REGISTRY:
            versions.setdefault((schema.domain, schema.name), []).append(schema.since_version)
            allowed.setdefault((schema.domain, schema.name), set()).update(_data_types(schema))
    keys = {*versions, *(key for key, record in REGISTRY.items() if record.infer.__module__ != "ortrain.ops.custom")} - {(CUSTOM, "CustomGradient")}
    return [_row(domain, name, tuple(sorted(versions.get((domain, name), ()))), allowed.get((domain, name))) for domain, name in sorted(keys)]


def _data_types(schema: Any) -> set[str]:
    """Return the dtypes of an operator's data: the widest of its type constraints, as others are of indices or conditions."""
    found = [{NUMPY_NAMES.get(name, name) for text in constraint.allowed_type_strs for name in re.findall(r"\w+", text)}
             for constraint in schema.type_constraints]
    return max(found, key=len, default=set())


def counts() -> dict[str, int]:
    """Count the operators of the default domain by kind of kernel and state of gradient."""
    found: dict[str, int] = {"operators": 0}
    for row in operators():
        if row.domain == "":
            found["operators"] += 1
            for state in (f"kernel: {row.kernel}", f"gradient: {row.gradient}"):
                found[state] = found.get(state, 0) + 1
    return found


def _row(domain: str, name: str, opsets: tuple[int, ...], allowed: set[str] | None) -> Operator:
    """Return the row of an operator. allowed: the dtypes that ONNX gives its data (a kernel may have more), None for operators that ONNX does not define."""
    own = REGISTRY.get((domain, name))
    record = own or onnx_record(domain, name)
    if record is None:
        return Operator(domain, name, opsets, (), NONE, NOT_YET)
    dtypes = tuple(dtype for dtype in _dtypes(record) if not allowed or dtype in allowed) if own else ()
    return Operator(domain, name, opsets, dtypes, _kernel(record, own is not None), _gradient(record, own is not None, domain, name))


def _kernel(record: OpRecord, own: bool) -> str:
    if record.planned_as:
        return COMPILED
    if own:
        if record.lower is not None and _dtypes(record):
            return COMPILED
        if record.decompose is not None:
            return COMPOSED
        return REFERENCE if record.lower is not None or record.gradient is None else COMPILED
    return FUNCTION if _has_body(record) else REFERENCE


def _gradient(record: OpRecord, own: bool, domain: str, name: str) -> str:
    if record.gradient is not None:
        return RULE
    if GRADIENT_OPERATOR.fullmatch(name) or PLANNED.fullmatch(name):
        return FIRST_ORDER
    if domain == "" and name in SEQUENCE_RULES:
        return BY_PARTS
    if not record.differentiable:
        return FLAT
    return BY_PARTS if (own and record.decompose is not None) or (not own and _has_body(record)) else NOT_YET


def _has_body(record: OpRecord) -> bool:
    schema: Any = require_onnx("the bodies of its functions", "onnx.defs").get_schema(record.op_type, domain=record.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _dtypes(record: OpRecord) -> tuple[str, ...]:
    """Return the dtypes of the kernels that a lowering names, or that of the operator by which plans replace this one."""
    if record.planned_as:
        record = REGISTRY[ORTRAIN, record.planned_as]
    names = set(_texts(record.lower)) if record.lower is not None else set()
    if record.op_type not in UPDATED and record.op_type not in ALGORITHMS:
        names -= OPTIMIZER_KERNELS                          # momentum is an attribute of others
    found = dict.fromkeys(dtype for name, dtype in kernels() if name in names)
    return tuple(found)


def _texts(function: Callable[..., Any]) -> Iterator[str]:
    """Return the strings in a function, in its closure, and in the functions of its module that it calls."""
    waiting: list[Any] = [function]
    seen: set[int] = set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif id(item) not in seen:
            seen.add(id(item))
            if isinstance(item, CodeType):
                waiting += item.co_consts
            elif isinstance(item, tuple):
                waiting += item
            elif isinstance(item, ElementwiseLowering):
                waiting.append(item.lower)
            elif isinstance(item, OptimizerAlgorithm):
                waiting.append(item.kernel)
            elif hasattr(item, "__code__") and str(getattr(item, "__module__", "")).startswith("ortrain.ops"):
                cells = [cell.cell_contents for cell in item.__closure__ or ()]
                called = [item.__globals__.get(name) for name in item.__code__.co_names]
                waiting += [item.__code__, *cells, *(item.__defaults__ or ()), *called]
