"""Propagation of shape arithmetic: the values of small integer tensors when some of their elements are symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortrain.ir import Dim
from ortrain.ops.registry.record import InferenceContext

Sizes = tuple[Dim, ...]
"""The elements of an integer tensor with at most one axis."""


def follow(c: InferenceContext) -> Sizes | None:
    """Return the elements of a node's first output, if its operator computes with sizes and enough is known; else None."""
    rule = RULES.get(c.node.op_type) if not c.node.domain else None
    return None if rule is None else rule(c)


def _shape(c: InferenceContext) -> Sizes | None:
    kind = c.types[0]
    if kind is None or kind.shape is None:
        return None
    return tuple(kind.shape[int(c.attribute("start", 0)) : c.attribute("end")])


def _size(c: InferenceContext) -> Sizes | None:
    kind = c.types[0]
    return (kind.count,) if kind is not None and kind.is_static else None


def _same(c: InferenceContext) -> Sizes | None:
    return c.sizes(0)


def _gather(c: InferenceContext) -> Sizes | None:
    sizes, places = c.sizes(0), c.value(1)
    if sizes is None or places is None or places.ndim > 1 or c.types[0] is None or c.types[0].shape is None or len(c.types[0].shape) != 1:
        return None
    chosen = [int(place) for place in places.reshape(-1)]
    return tuple(sizes[place] for place in chosen) if all(-len(sizes) <= place < len(sizes) for place in chosen) else None


def _slice(c: InferenceContext) -> Sizes | None:
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


def _concat(c: InferenceContext) -> Sizes | None:
    parts = [c.sizes(index) for index in range(len(c.node.inputs))]
    return None if any(part is None for part in parts) else tuple(size for part in parts if part is not None for size in part)


def _quotient(a: int, b: int) -> int:
    """Return a / b truncated towards zero, as ONNX divides integers."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _computed(number: Callable[[int, int], int], neutral: int | None, right_only: bool) -> Callable[[InferenceContext], Sizes | None]:
    """Return a rule for elementwise arithmetic: a symbol is kept beside a neutral number, and becomes a new symbol otherwise."""

    def one(c: InferenceContext, index: int, a: Dim, b: Dim) -> Dim:
        if isinstance(a, int) and isinstance(b, int):
            return number(a, b) if b or number is not _quotient else c.fresh(f"size{index}")
        if b == neutral:
            return a
        if a == neutral and not right_only:
            return b
        return c.fresh(f"size{index}")

    def rule(c: InferenceContext) -> Sizes | None:
        a, b = c.sizes(0), c.sizes(1)
        if a is None or b is None or len(a) != len(b) and 1 not in (len(a), len(b)) or neutral == 1 and 0 in b:
            return None
        count = max(len(a), len(b))
        pairs = zip(_repeated(a, count), _repeated(b, count), strict=True)
        return tuple(one(c, index, x, y) for index, (x, y) in enumerate(pairs))

    return rule


def _repeated(sizes: Sizes, count: int) -> Sequence[Dim]:
    return sizes * count if len(sizes) == 1 else sizes


RULES: dict[str, Callable[[InferenceContext], Sizes | None]] = {
    "Shape": _shape, "Size": _size,
    "Identity": _same, "Cast": _same, "Squeeze": _same, "Unsqueeze": _same, "Reshape": _same, "Gather": _gather, "Slice": _slice,
    "Concat": _concat, "Add": _computed(lambda a, b: a + b, 0, False), "Sub": _computed(lambda a, b: a - b, 0, True),
    "Mul": _computed(lambda a, b: a * b, 1, False), "Div": _computed(_quotient, 1, True),
}
