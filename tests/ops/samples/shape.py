"""Samples of the shape operators."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(1)
X = rng.standard_normal((3, 4, 5))
ROW = rng.standard_normal((3, 1, 5))
BIG = rng.standard_normal((70, 90, 33))
EMPTY = np.zeros((0, 4))
MS = "com.microsoft"


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def view(op_type: str, x: np.ndarray, shape: tuple[int, ...], *more: np.ndarray, opset: int = 17, **attributes) -> Sample:
    return Sample(op_type, [x, *more], lambda x, *_: x.reshape(shape), attributes, opset=opset, constants=range(1, 1 + len(more)))


def transposed(x: np.ndarray, *perm: int) -> Sample:
    return Sample("Transpose", [x], lambda x: np.transpose(x, perm or None), {"perm": perm} if perm else {})


def expanded(x: np.ndarray, *shape: int) -> Sample:
    return Sample("Expand", [x, ints(*shape)], lambda x, s: np.broadcast_to(x, np.broadcast_shapes(x.shape, shape)), constants=[1])


SAMPLES = [
    view("Reshape", X, (3, 20), ints(0, -1)),
    view("Reshape", X, (3, 20), ints(-1, 20)),
    view("Reshape", X, (60,), ints(60)),
    Sample("Reshape", [EMPTY, ints(2, 0)], lambda x, s: x.reshape(2, 0), {"allowzero": 1}, constants=[1]),
    view("Flatten", X, (3, 20)),
    view("Flatten", X, (1, 60), axis=0),
    view("Flatten", X, (12, 5), axis=-1, opset=11),
    view("Squeeze", ROW, (3, 5)),
    view("Squeeze", ROW, (3, 5), ints(-2)),
    view("Squeeze", ROW, (3, 5), axes=(1,), opset=11),
    view("Unsqueeze", X, (1, 3, 4, 5, 1), ints(0, -1)),
    view("Unsqueeze", X, (3, 4, 1, 5), axes=(2,), opset=11),
    view("Identity", X, (3, 4, 5)),
    Sample("Shape", [X], lambda x: ints(*x.shape), gradient=False),
    Sample("Shape", [X], lambda x: ints(4), {"start": 1, "end": -1}, gradient=False),
    Sample("Size", [X], lambda x: np.array(60), gradient=False),
    Sample("Constant", [], lambda: X.astype(np.float32), {"value": X.astype(np.float32)}, gradient=False),
    Sample("Constant", [], lambda: ints(3, -4), {"value_ints": (3, -4)}, gradient=False),
    Sample("Constant", [], lambda: np.float32(1.5), {"value_float": 1.5}, gradient=False),
    Sample("ConstantOfShape", [ints(2, 3)], lambda s: np.zeros((2, 3), np.float32), constants=[0], gradient=False),
    Sample("ConstantOfShape", [ints(2, 3)], lambda s: np.full((2, 3), 7), {"value": ints(7)}, constants=[0], gradient=False),
    Sample("ConstantOfShape", [ints(2)], lambda s: np.ones(2, bool), {"value": np.array([True])}, constants=[0], gradient=False),
    Sample("Range", [np.int64(2), np.int64(11), np.int64(3)], lambda a, b, d: np.arange(a, b, d), constants=[0, 1, 2], gradient=False),
    Sample("Range", [np.float64(1), np.float64(-1), np.float64(-0.5)], lambda a, b, d: np.arange(a, b, d), constants=[0, 1, 2],
           gradient=False),
    expanded(ROW, 3, 4, 5), expanded(ROW, 2, 3, 4, 1), expanded(rng.standard_normal((4, 1)), 4, 6), expanded(X, 1, 1),
    expanded(np.array(2.5), 3, 4),
    *[expanded(rng.standard_normal((3, 5, 1)), 3, 5, n) for n in (2, 3, 4, 7, 8, 13, 16, 63, 64, 65)], expanded(rng.standard_normal((5, 1, 1)), 5, 9, 11),
    expanded(rng.standard_normal((1, 300)), 200, 300), expanded(np.zeros((0, 1)), 0, 3),
    expanded(rng.standard_normal((5, 1, 1, 1)), 5, 3, 70, 70),
    transposed(X), transposed(X, 0, 2, 1), transposed(X, 1, 0, 2), transposed(X, 2, 0, 1), transposed(EMPTY), transposed(BIG, 0, 2, 1),
    transposed(BIG, 2, 1, 0), transposed(BIG, 2, 0, 1), transposed(BIG, 1, 0, 2), transposed(ROW, 1, 0, 2), transposed(np.array(3.0)),
    transposed(rng.standard_normal((2, 3, 4, 5)), 0, 3, 1, 2), transposed(rng.standard_normal((2, 3, 4, 5)), 0, 2, 1, 3),
    *[transposed(rng.standard_normal((2, 9, 3, n)), 0, 2, 1, 3) for n in (32, 37, 65, 1030)],
    *[transposed(rng.standard_normal((3, 2, 9, n)), 1, 2, 0, 3) for n in (32, 65)],
    Sample("Transpose", [rng.integers(0, 2, (5, 9, 131)).astype(bool)], lambda x: x.swapaxes(0, 1), {"perm": (1, 0, 2)}, gradient=False),
    Sample("Transpose", [rng.integers(0, 9, (40, 50))], lambda x: x.T, gradient=False),
    Sample("Transpose", [rng.integers(0, 2, (40, 50)).astype(bool)], lambda x: x.T, gradient=False),
    Sample("Transpose", [rng.integers(0, 9, (40, 50)).astype(np.int32)], lambda x: x.T, gradient=False),
    *[Sample("Transpose", [rng.standard_normal(shape)], lambda x: x.T, gradient=False) for shape in ((300, 512), (1100, 530), (257, 1024), (300, 70))],
    *[Sample("Transpose", [rng.standard_normal(shape)], lambda x, perm=perm: x.transpose(perm), {"perm": perm}, gradient=False)      # rows with places of their own
      for shape, perm in (((2, 3, 4, 5, 2, 2), (0, 1, 4, 2, 5, 3)), ((2, 3, 4, 35, 3, 3), (0, 1, 4, 2, 5, 3)), ((2, 3, 8, 4, 2), (0, 3, 1, 4, 2)),
                          ((2, 3, 2, 4, 2, 7), (0, 1, 3, 5, 2, 4)), ((2, 3, 3, 3, 33), (0, 1, 4, 3, 2)), ((2, 3, 4, 8, 2, 9), (0, 3, 1, 5, 4, 2)),
                          ((16387, 2, 2), (2, 1, 0)), ((2, 2, 16387), (2, 1, 0)), ((16387, 5, 3), (2, 1, 0)), ((3, 5, 16387), (2, 1, 0)), ((40003, 3), (1, 0)),
                          ((2, 40003, 5), (0, 2, 1)))],
    Sample("Transpose", [rng.standard_normal((53, 71))], lambda x: x.T, gradient=False), Sample("Transpose", [rng.standard_normal((3, 70))], lambda x: x.T, gradient=False),
    Sample("Expand", [rng.standard_normal((3, 1, 7)), ints(3, 50, 7)], lambda x, s: np.broadcast_to(x, s), constants=[1]),
    Sample("Expand", [rng.standard_normal(3), ints(20000, 3)], lambda x, s: np.broadcast_to(x, s), constants=[1], gradient=False),
    Sample("Tile", [X, ints(2, 1, 3)], lambda x, r: np.tile(x, r), constants=[1]),
    Sample("Tile", [rng.standard_normal((2, 1, 2, 3, 2)), ints(2, 3, 1, 2, 2)], lambda x, r: np.tile(x, r), constants=[1]),
    Sample("Tile", [X[:, :0], ints(2, 3, 2)], lambda x, r: np.tile(x, r), constants=[1]),
    Sample("Tile", [X, ints(1, 1, 1)], lambda x, r: x, constants=[1]),
    Sample("Tile", [X, ints(1, 0, 1)], lambda x, r: np.tile(x, r), constants=[1], gradient=False),
    Sample("Tile", [rng.standard_normal(9000), ints(7)], lambda x, r: np.tile(x, r), constants=[1]),
    Sample("BroadcastGradientArgs", [ints(2, 3, 4), ints(3, 1)], lambda a, b: (ints(), ints(2, 0)), domain=MS, outputs=2,
           constants=[0, 1], gradient=False),
    Sample("BroadcastGradientArgs", [ints(1, 5), ints(4, 5)], lambda a, b: (ints(0), ints()), domain=MS, outputs=2,
           constants=[0, 1], gradient=False),
]
REFUSALS = [
    Refusal("Reshape", [X, ints(7, -1)], constants=[1]),
    Refusal("Reshape", [X, ints(3, 21)], constants=[1]),
    Refusal("Reshape", [X, ints(-1, -1)], constants=[1]),
    Refusal("Reshape", [X, ints(1, 1, 1, 0)], constants=[1]),
    Refusal("Flatten", [X], {"axis": 4}),
    *[Refusal("Range", [np.array(0.0), np.array(limit), np.array(1.0)], constants=[0, 1, 2], match="finite") for limit in (np.nan, np.inf)],
    Refusal("Squeeze", [X, ints(0)], constants=[1]),
    Refusal("Unsqueeze", [X, ints(1, 1)], constants=[1]),
    Refusal("Unsqueeze", [X, ints(4)], constants=[1]),
    Refusal("Transpose", [X], {"perm": (0, 0, 1)}),
    Refusal("Expand", [X, ints(2, 5)], constants=[1]),
    Refusal("Tile", [X, ints(2, 2)], constants=[1]),
    Refusal("Range", [np.int64(0), np.int64(1), np.int64(0)], constants=[0, 1, 2]),
    Refusal("Constant", []),
    Refusal("ConstantOfShape", [ints(-2)], constants=[0]),
]
