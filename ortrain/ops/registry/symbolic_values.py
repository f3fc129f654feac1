"""Propagation of shape arithmetic: the elements of small integer tensors of which some are symbols or symbolic sizes.

Models compute shapes with Shape, Gather, Mul, Concat and the like. Constant folding stops at the first dynamic dimension; the rules here carry the known
elements on, so that for instance the target [n, 12, 64] of a Reshape keeps its two known sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortrain.ir import Dim
from ortrain.ops.registry.record import InferenceContext

Elements = tuple[Dim, ...]
"""The elements of an integer tensor with at most one axis: integers, or symbols for those known only at run time."""


def propagate_sizes(c: InferenceContext) -> Elements | None:
    """Return the elements of a node's first output, None where its operator has no rule here or too little is known of its inputs."""
    rule = RULES.get(c.node.op_type) if not c.node.domain else None
    return None if rule is None else rule(c)


def _shape(c: InferenceContext) -> Elements | None:
    kind = c.types[0]
    if kind is None or kind.shape is None:
        return None
    return tuple(kind.shape[int(c.attribute("start", 0)) : c.attribute("end")])


def _size(c: InferenceContext) -> Elements | None:
    kind = c.types[0]
    return (kind.count,) if kind is not None and kind.is_static else None


def _same(c: InferenceContext) -> Elements | None:
    return c.sizes(0)


def _gather(c: InferenceContext) -> Elements | None:
    sizes, indices = c.sizes(0), c.value(1)
    if sizes is None or indices is None or indices.ndim > 1 or c.types[0] is None or c.types[0].shape is None or len(c.types[0].shape) != 1:
        return None
    selected = [int(index) for index in indices.reshape(-1)]
    return tuple(sizes[index] for index in selected) if all(-len(sizes) <= index < len(sizes) for index in selected) else None


def _slice(c: InferenceContext) -> Elements | None:
    sizes = c.sizes(0)
    if c.opset < 10:
        bounds = [c.attribute("starts"), c.attribute("ends"), (1,)]
    else:
        given = [c.value(index) if c.has(index) else None for index in (1, 2, 4)]
        if given[0] is None or given[1] is None or c.has(4) and given[2] is None:
            return None
        bounds = [None if value is None else value.reshape(-1).tolist() for value in given]
    if sizes is None or bounds[0] is None or bounds[1] is None:
        return None
    start, end, step = int(bounds[0][0]), int(bounds[1][0]), int((bounds[2] or (1,))[0])
    return sizes[start:end:step] if step > 0 else None


def _concat(c: InferenceContext) -> Elements | None:
    parts = [c.sizes(index) for index in range(len(c.node.inputs))]
    return None if any(part is None for part in parts) else tuple(size for part in parts if part is not None for size in part)


def _quotient(a: int, b: int) -> int:
    """Return a / b truncated towards zero, as ONNX divides integers."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _elementwise(function: Callable[[int, int], int], neutral: int, right_only: bool) -> Callable[[InferenceContext], Elements | None]:
    """Return the rule of a binary operator.

    neutral: the operand that leaves the other one unchanged, so that a symbol beside it stays the same symbol; any other pair with a symbol gives a new
    symbol. right_only: only the second operand can be neutral, as in a - 0."""

    def element(c: InferenceContext, index: int, a: Dim, b: Dim) -> Dim:
        if isinstance(a, int) and isinstance(b, int):
            return function(a, b) if b or function is not _quotient else c.new_symbol(f"size{index}")
        if b == neutral:
            return a
        if a == neutral and not right_only:
            return b
        return c.new_symbol(f"size{index}")

    def rule(c: InferenceContext) -> Elements | None:
        a, b = c.sizes(0), c.sizes(1)
        if a is None or b is None or len(a) != len(b) and 1 not in (len(a), len(b)) or neutral == 1 and 0 in b:
            return None
        count = max(len(a), len(b))
        pairs = zip(_repeated(a, count), _repeated(b, count), strict=True)
        return tuple(element(c, index, x, y) for index, (x, y) in enumerate(pairs))

    return rule


def _repeated(sizes: Elements, count: int) -> Sequence[Dim]:
    return sizes * count if len(sizes) == 1 else sizes


RULES: dict[str, Callable[[InferenceContext], Elements | None]] = {
    "Shape": _shape, "Size": _size,
    "Identity": _same, "Cast": _same, "Squeeze": _same, "Unsqueeze": _same, "Reshape": _same, "Gather": _gather, "Slice": _slice,
    "Concat": _concat, "Add": _elementwise(lambda a, b: a + b, 0, False), "Sub": _elementwise(lambda a, b: a - b, 0, True),
    "Mul": _elementwise(lambda a, b: a * b, 1, False), "Div": _elementwise(_quotient, 1, True),
}
"""op_type -> rule; the operators that keep their input's elements change only its type or rank."""
