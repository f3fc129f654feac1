"""Samples of Concat, Split, Slice, the Gather and Scatter operators and OneHot."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(2)
X = rng.standard_normal((3, 4, 5))
Y = rng.standard_normal((3, 2, 5))
TABLE = rng.standard_normal((50, 64))
TOKENS = rng.integers(-50, 50, (40, 30))
MS = "com.microsoft"
END = np.iinfo(np.int64).max


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def concatenated_slices(label, arrays, axis, *cuts):
    """Return a sample of ConcatSlices of arrays; cuts: (input, axis, start, end, step) of the axes that are sliced."""
    def oracle(*values):
        parts = list(values)
        for index, cut_axis, start, end, step in cuts:
            parts[index] = parts[index].take(range(*slice(start, end, step).indices(values[index].shape[cut_axis])), cut_axis)
        return np.concatenate(parts, axis)

    bounds = tuple(number for cut in cuts for number in cut)
    return Sample("ConcatSlices", arrays, oracle, {"axis": axis, "bounds": bounds}, domain="ortrain", gradient=False, label=label)


def joined_slices(label, shape, cuts):
    """Return a sample of JoinSlices: the slices of an array. cuts: for each slice, its (axis, start, end, step)."""
    whole, parts = rng.standard_normal(shape), []
    for cut in cuts:
        where = [slice(None)] * whole.ndim
        for axis, start, end, step in cut:
            where[axis] = slice(start, end, step)
        parts.append(whole[tuple(where)].copy())
    axes = tuple(sorted({axis for cut in cuts for axis, *_ in cut}))
    bounds = tuple(number for index, cut in enumerate(cuts) for bound in cut for number in (index, *bound))
    attributes = {"axes": axes, "shape": tuple(shape[axis] for axis in axes), "bounds": bounds}
    return Sample("JoinSlices", parts, lambda *_: whole, attributes, domain="ortrain", gradient=False, label=label)


def take_gradient(shape, indices, dy, axis):
    """Return the gradient of numpy.take by its definition."""
    dx = np.zeros(tuple(shape), dy.dtype)
    np.add.at(dx, (slice(None),) * (axis % len(shape)) + (indices,), dy)
    return dx


def element_index(indices, axis):
    """Return the index that take_along_axis uses, also for an index tensor smaller than the data."""
    grid = list(np.indices(indices.shape))
    grid[axis] = indices
    return tuple(grid)


def scatter_add(shape, where, dy):
    dx = np.zeros(tuple(shape), dy.dtype)
    np.add.at(dx, where, dy)
    return dx


def with_values_at(x, where, values):
    y = x.copy()
    y[where] = values
    return y


def gathered(x, indices, axis=0, gradient=True) -> list[Sample]:
    dy = rng.standard_normal(np.take(x, indices, axis).shape)
    return [Sample("Gather", [x, indices], lambda x, i: np.take(x, i, axis), {"axis": axis}, gradient=gradient),
            Sample("GatherGrad", [ints(*x.shape), indices, dy], lambda s, i, dy: take_gradient(s, i, dy, axis), {"axis": axis}, domain=MS,
                   constants=[0], gradient=False)]


def elements(x, indices, axis=0) -> list[Sample]:
    dy = rng.standard_normal(indices.shape)
    return [Sample("GatherElements", [x, indices], lambda x, i: x[element_index(i, axis)], {"axis": axis}),
            Sample("GatherElementsGrad", [dy, ints(*x.shape), indices],
                   lambda dy, s, i: scatter_add(s, element_index(i, axis), dy), {"axis": axis},
                   domain=MS, constants=[1], gradient=False),
            Sample("ScatterElements", [x, indices, dy], lambda x, i, u: x + scatter_add(x.shape, element_index(i, axis), u),
                   {"axis": axis, "reduction": "add"}, opset=16)]


def tuple_index(indices, batch):
    """Return the index of GatherND: the batch position followed by the index tuples."""
    return (*np.indices(indices.shape[:-1])[:batch], *np.moveaxis(indices, -1, 0))


def tuples(x, indices, batch=0) -> list[Sample]:
    dy = rng.standard_normal(x[tuple_index(indices, batch)].shape)
    return [Sample("GatherND", [x, indices], lambda x, i: x[tuple_index(i, batch)], {"batch_dims": batch}),
            Sample("GatherNDGrad", [ints(*x.shape), indices, dy],
                   lambda s, i, dy: scatter_add(s, tuple_index(i, batch), dy), {"batch_dims": batch},
                   domain=MS, constants=[0], gradient=False)]


def sliced(cut, *limits, opset=17, x=X) -> Sample:
    return Sample("Slice", [x, *limits], lambda x, *_: x[cut], constants=range(1, 1 + len(limits)), opset=opset)


def slice_gradient(cut, *limits) -> Sample:
    return Sample("SliceGrad", [X[cut].copy(), ints(3, 4, 5), *limits],
                  lambda dy, s, *_: with_values_at(np.zeros(tuple(s), dy.dtype), cut, dy), domain=MS,
                  constants=range(1, 2 + len(limits)), gradient=False)


UNIQUE = np.array([[0, 2, 1], [3, 1, 0]])
SAMPLES = [
    Sample("Concat", [X, Y], lambda *x: np.concatenate(x, 1), {"axis": 1}),
    Sample("Concat", [X, X[:1]], lambda *x: np.concatenate(x, 0), {"axis": 0}),
    Sample("Concat", [X, X, X], lambda *x: np.concatenate(x, -1), {"axis": -1}),
    Sample("Concat", [X, np.zeros((3, 0, 5)), Y], lambda *x: np.concatenate(x, 1), {"axis": 1}),
    Sample("Concat", [rng.standard_normal((300, 70)), rng.standard_normal((300, 131))], lambda *x: np.concatenate(x, 1), {"axis": 1}),
    Sample("Concat", [rng.standard_normal((9000, n)) for n in (3, 0, 4, 17)], lambda *x: np.concatenate(x, 1), {"axis": 1}),
    *[Sample("Concat", [rng.standard_normal((rows, n)) for n in widths], lambda *x: np.concatenate(x, 1), {"axis": 1}, label=f"parts {widths} wide")
      for rows, widths in ((70, (16, 33)), (40, (65, 23, 29)), (6, (1025, 511)))],
    Sample("Concat", [ints(3), ints(4, 5)], lambda *x: ints(3, 4, 5), {"axis": 0}, gradient=False),
    Sample("ConcatTraining", [X, Y], lambda *x: (np.concatenate(x, 1), ints(4, 2)), {"axis": 1}, domain=MS, outputs=2),
    Sample("Split", [X], lambda x: tuple(np.split(x, 2, 1)), {"axis": 1}, outputs=2),
    Sample("Split", [X, ints(1, 3)], lambda x, s: (x[:, :1], x[:, 1:]), {"axis": 1}, outputs=2, constants=[1]),
    Sample("Split", [X], lambda x: (x[..., :2], x[..., 2:]), {"axis": -1, "split": (2, 3)}, outputs=2, opset=11),
    Sample("Split", [X], lambda x: (x[..., :3], x[..., 3:]), {"axis": -1, "num_outputs": 2}, outputs=2, opset=18),
    Sample("Split", [rng.standard_normal((300, 201))], lambda x: tuple(np.split(x, 3, 1)), {"axis": 1}, outputs=3),
    *[Sample("Split", [rng.standard_normal((rows, sum(widths))), ints(*widths)], lambda x, s: tuple(np.split(x, np.cumsum(s)[:-1], 1)), {"axis": 1},
             outputs=len(widths), constants=[1], label=f"parts {widths} wide") for rows, widths in ((70, (16, 33)), (40, (65, 23, 29)), (6, (1025, 511)))],
    Sample("Split", [rng.standard_normal((9000, 14)), ints(1, 0, 13)], lambda x, s: (x[:, :1], x[:, 1:1], x[:, 1:]), {"axis": 1}, outputs=3, constants=[1]),
    Sample("SplitTraining", [X, ints(1, 0, 3)], lambda x, s: (x[:, :1], x[:, 1:1], x[:, 1:]), {"axis": 1}, domain=MS, outputs=3,
           constants=[1]),
    sliced(np.s_[1:, :2], ints(1, 0), ints(END, 2)),
    sliced(np.s_[:, 1:3], ints(1), ints(3), ints(1)),
    sliced(np.s_[:, 1:3], ints(1), ints(3), ints(1), opset=10),
    sliced(np.s_[..., ::-1], ints(-1), ints(-END), ints(-1), ints(-1)),
    sliced(np.s_[:, 3:0:-2, 1:-1:2], ints(3, 1), ints(0, -1), ints(1, 2), ints(-2, 2)),
    sliced(np.s_[2:1], ints(2), ints(1), ints(0)),
    sliced(np.s_[:, 5:200], ints(5), ints(200), ints(1), x=rng.standard_normal((400, 300))),
    sliced(np.s_[:, 1:6, 3:80], ints(1, 3), ints(6, 80), ints(1, 2), x=rng.standard_normal((3, 7, 90))),
    Sample("Slice", [X], lambda x: x[:, 1:-1], {"starts": (1,), "ends": (-1,), "axes": (1,)}, opset=9),
    slice_gradient(np.s_[:, 1:3], ints(1), ints(3), ints(1)),
    slice_gradient(np.s_[1:, :2], ints(1, 0), ints(END, 2)),
    slice_gradient(np.s_[2:1], ints(2), ints(1), ints(0)),
    slice_gradient(np.s_[..., ::-2], ints(-1), ints(-END), ints(-1), ints(-2)),
    concatenated_slices("rolled rows", [X, X], 1, (0, 1, 1, END, 1), (1, 1, 0, 1, 1)),
    concatenated_slices("rolled columns", [X, X], -1, (0, 2, -2, END, 1), (1, 2, 0, -2, 1)),
    concatenated_slices("every second row and column", [TABLE, TABLE], 1, (0, 0, 0, END, 2), (0, 1, 1, END, 2), (1, 0, 1, END, 2), (1, 1, 0, END, 2)),
    concatenated_slices("backwards, beside whole and empty ones", [X, Y, X], 1, (0, 1, -1, -END, -2), (2, 1, 3, 2, 1)),
    concatenated_slices("rows of one element", [X[:, :, :1], X], 2, (1, 2, 4, 5, 1)),
    joined_slices("every third element", (4, 7), [[(1, start, END, 3)] for start in range(3)]),
    joined_slices("quarters", (3, 6, 8, 5), [[(1, row, END, 2), (2, column, END, 2)] for row in (0, 1) for column in (0, 1)]),
    joined_slices("backwards", (5, 3, 2), [[(0, -1, -END, -2)], [(0, -2, -END, -2)]]),
    joined_slices("nothing", (0, 4), [[(1, 0, 2, 1)], [(1, 2, 4, 1)]]),
    concatenated_slices("integers", [ints(1, 2, 3), ints(4, 5, 6)], 0, (0, 0, 1, 2, 1), (1, 0, 0, END, 2)),
    concatenated_slices("nothing", [X[:0], X[:0]], 1, (0, 1, 1, 3, 1)),
    *gathered(TABLE, TOKENS),
    *gathered(X, ints(-1, 0, 0, 2)),
    *gathered(X, np.array(1), 1),
    *gathered(X, np.array([[0, -1], [2, 2]], np.int32), 2),
    *gathered(X, np.zeros((0,), np.int64), -2),
    *gathered(rng.standard_normal((2000, 40)), rng.integers(0, 2000, 3000)),
    *gathered(rng.standard_normal((64, 30, 50)), rng.integers(-30, 30, 9), 1),
    *elements(X, rng.integers(-3, 3, (2, 4, 5)), 0),
    *elements(X, rng.integers(-4, 4, (3, 7, 2)), 1),
    *elements(X, rng.integers(0, 5, (3, 4, 6)).astype(np.int32), 2),
    *elements(rng.standard_normal((4, 100, 90)), rng.integers(0, 100, (4, 30, 90)), 1),
    *elements(rng.standard_normal((6, 5000)), rng.integers(0, 6, (6, 5000)), 0),
    *tuples(X, np.array([[0, 1], [2, -1], [0, 1]])),
    *tuples(X, rng.integers(-3, 3, (2, 3, 1))),
    *tuples(X, rng.integers(0, 3, (6, 3))),
    *tuples(X, rng.integers(0, 4, (3, 2, 1)), 1),
    *tuples(X, rng.integers(0, 5, (3, 4, 2, 1)), 2),
    Sample("ScatterND", [X, ints(2, 0).reshape(2, 1), rng.standard_normal((2, 4, 5))],
           lambda x, i, u: with_values_at(x, tuple_index(i, 0), u), opset=16),
    Sample("ScatterND", [X, np.array([[0, 1], [0, 1]]), rng.standard_normal((2, 5))],
           lambda x, i, u: x + scatter_add(x.shape, tuple_index(i, 0), u),
           {"reduction": "add"}, opset=16),
    Sample("Scatter", [np.zeros((3, 4)), np.array([[0, 2, 1, 0]]), np.arange(4.0)[None]], lambda x, i, u: np.array([[0, 0, 0, 3], [0, 0, 2, 0], [0, 1, 0, 0]], x.dtype),
           opset=10, gradient=False),
    Sample("ScatterElements", [X, UNIQUE[:, :, None], rng.standard_normal((2, 3, 1))],
           lambda x, i, u: with_values_at(x, element_index(i, 1), u), {"axis": 1}),
    Sample("OneHot", [np.array([[0, 2], [-1, 7]]), np.array(3), np.array([0.0, 1.0])],
           lambda i, d, v: np.where(np.where(i < 0, i + 3, i)[..., None] == np.arange(3), v[1], v[0]), constants=[1]),
    Sample("OneHot", [np.array([[0, 2], [-1, 7]]), np.array(3), np.array([0.5, 2.0])],
           lambda i, d, v: np.where(np.where(i < 0, i + 3, i)[:, None] == np.arange(3)[:, None], v[1], v[0]), {"axis": 1}, constants=[1]),
    Sample("OneHot", [np.array([0, 1]), np.array(2), np.array([3, 4])], lambda i, d, v: np.array([[4, 3], [3, 4]]), constants=[1]),
]
REFUSALS = [
    Refusal("Concat", [X, Y], {"axis": 0}),
    Refusal("Concat", [X, Y]),
    Refusal("Concat", [X, ints(1, 2)], {"axis": 0}),
    Refusal("ConcatSlices", [X, X], {"axis": 0, "bounds": (0, 1, 1, 2, 1)}, domain="ortrain"),
    *(Refusal("ConcatSlices", [X, X], {"axis": 1, "bounds": bounds}, domain="ortrain", match="steps that are not 0")
      for bounds in ((0, 1, 1, 2), (0, 1, 1, 2, 0), (2, 1, 1, 2, 1), (0, 3, 1, 2, 1), (-1, 1, 1, 2, 1))),
    Refusal("ConcatSlices", [X], {"axis": 1, "bounds": (0, 1, 3, 4, 1, 0, 1, 3, 4, 1)}, domain="ortrain", match="one slice of each axis"),
    *(Refusal("JoinSlices", parts, {"axes": axes, "shape": shape, "bounds": bounds}, domain="ortrain", match=match)
      for parts, axes, shape, bounds, match in (
          ([X, X], (1,), (4,), (0, 1, 0, 4, 1, 1, 1, 0, 4, 1), "each element of y once"), ([X, X], (1,), (9,), (0, 1, 0, 4, 1, 1, 1, 5, 9, 1), "each element"),
          ([X, X], (1,), (8,), (0, 1, 0, 4, 1, 1, 1, 4, 9, 2), "input 1"), ([X, X], (1, 1), (8, 8), (), "different axes"), ([X], (3,), (8,), (), "different axes"),
          ([X], (1,), (-4,), (), "different axes"), ([X, X], (0,), (6,), (0, 1, 0, 4, 1, 1, 1, 0, 4, 1), "input 0"), ([X], (1,), (1 << 40,), (), "input 0"),
          ([X, X.astype(int)], (1,), (8,), (0, 1, 0, 4, 1, 1, 1, 4, 8, 1), "input 1"))),
    Refusal("Split", [X, ints(1, 1)], {"axis": 1}, constants=[1]),
    Refusal("Slice", [X, ints(0, 0), ints(1)], constants=[1, 2]),
    Refusal("Slice", [X, ints(0), ints(1), ints(5)], constants=[1, 2, 3]),
    Refusal("Slice", [X, ints(0), ints(1), ints(0), ints(0)], constants=[1, 2, 3, 4]),
    Refusal("Slice", [X, ints(0, 0), ints(1, 1), ints(1, -2)], constants=[1, 2, 3]),
    Refusal("Gather", [X, ints(0)], {"axis": 3}),
    Refusal("Gather", [X, np.array([0.0])]),
    Refusal("GatherElements", [X, ints(0)]),
    Refusal("GatherND", [X, np.zeros((2, 4), np.int64)]),
    Refusal("ScatterND", [X, np.zeros((2, 1), np.int64), Y]),
]
