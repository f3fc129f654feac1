"""Samples of StridedMatMul: products of views."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(61)


def view(x, axes, starts, lengths):
    """Return what the attributes of an operand say about x. An axis of x that is not in axes is read at its start."""
    cut = x[tuple(slice(start, None if length < 0 else start + length) if axis in axes else start
                  for axis, (start, length) in enumerate(zip(starts, lengths, strict=True)))]
    remaining = [axis for axis in range(x.ndim) if axis in axes]
    ordered = cut.transpose([remaining.index(axis) for axis in axes if axis >= 0])
    return np.expand_dims(ordered, tuple(position for position, axis in enumerate(axes) if axis < 0))


def sample(label, a, b, perm=(0, 1, 2, 3), alpha=1.0):
    """a, b: (shape, axes, starts, lengths)"""
    attributes = {f"{side}_{part}": value for side, operand in zip("ab", (a, b), strict=True)
                  for part, value in zip(("axes", "starts", "lengths"), operand[1:], strict=True)}

    def oracle(x, y):
        return alpha * (view(x, *a[1:]) @ view(y, *b[1:])).transpose(perm)

    return Sample("StridedMatMul", [rng.standard_normal(a[0]), rng.standard_normal(b[0])], oracle, attributes | {"perm": perm, "alpha": alpha}, "ortrain",
                  gradient=False, label=label)


def whole(*shape, axes=None):
    """Return an operand that is read whole, with its axes in another order."""
    return shape, tuple(range(len(shape))) if axes is None else axes, (0,) * len(shape), (-1,) * len(shape)


def of_packed(index, axes, rows=5, heads=3, size=4):
    """Return one of three operands [2, rows, heads, size] that are packed in one tensor, the second axis of which is divided further."""
    return (2, rows, 3, heads, size), axes, (0, 0, index, 0, 0), (-1, -1, 1, -1, -1)


HEADS, KEYS = (0, 2, 1, 3), (0, 2, 3, 1)
SAMPLES = [
    sample("queries by keys", whole(2, 5, 3, 4, axes=HEADS), whole(2, 6, 3, 4, axes=KEYS), alpha=0.5),
    sample("weights by values, written by row", whole(2, 3, 5, 6), whole(2, 6, 3, 4, axes=HEADS), HEADS),
    sample("gradient of keys, written by row", whole(2, 3, 5, 6, axes=(0, 1, 3, 2)), whole(2, 5, 3, 4, axes=HEADS), HEADS),
    sample("packed operands", of_packed(0, (0, 3, 1, 4)), of_packed(1, (0, 3, 4, 1))),
    sample("part of each row", ((2, 5, 3, 9), HEADS, (0, 0, 0, 2), (-1, -1, -1, 4)), ((2, 6, 3, 7), KEYS, (0, 1, 0, 3), (-1, 4, -1, 4))),
    sample("a batch axis that is broadcast", ((2, 5, 4), (0, -1, 1, 2), (0, 0, 0), (-1, -1, -1)), whole(2, 6, 3, 4, axes=KEYS)),
    sample("a batch axis of size 1", whole(1, 5, 3, 4, axes=HEADS), whole(2, 6, 3, 4, axes=KEYS)),
    sample("one row and one column", whole(2, 1, 3, 40, axes=HEADS), whole(2, 1, 3, 40, axes=KEYS), HEADS),
    sample("one row", whole(2, 1, 3, 40, axes=HEADS), whole(2, 60, 3, 40, axes=KEYS), HEADS),
    sample("one column", whole(2, 60, 3, 40, axes=HEADS), whole(2, 1, 3, 40, axes=KEYS), HEADS),
    sample("depth 1", whole(2, 20, 3, 1, axes=HEADS), whole(2, 30, 3, 1, axes=KEYS), HEADS),
    sample("rows that share a cache set", whole(1, 70, 2, 512, axes=HEADS), whole(1, 90, 2, 512, axes=KEYS), HEADS),
    sample("large matrices", whole(1, 150, 2, 130, axes=HEADS), whole(1, 140, 2, 130, axes=KEYS), HEADS),
    sample("nothing", whole(0, 5, 3, 4, axes=HEADS), whole(0, 6, 3, 4, axes=KEYS)),
]
ATTRIBUTES = SAMPLES[0].attributes
REFUSALS = [
    Refusal("StridedMatMul", [np.zeros((2, 5, 3, 4)), np.zeros((2, 6, 3, 5))], ATTRIBUTES, "ortrain"),
    Refusal("StridedMatMul", [np.zeros((2, 5, 3, 4)), np.zeros((2, 6, 3, 4))], ATTRIBUTES | {"perm": (0, 1, 3, 2)}, "ortrain"),
    Refusal("StridedMatMul", [np.zeros((2, 5, 3, 4)), np.zeros((2, 6, 3, 4))], ATTRIBUTES | {"a_axes": (0, 3, 2, 1)}, "ortrain"),
]
