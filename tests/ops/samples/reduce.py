"""Samples of the reductions."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(3)
X = rng.uniform(0.2, 1.5, (3, 4, 5, 2)) * rng.choice([-1.0, 1.0], (3, 4, 5, 2))
LARGE = rng.standard_normal((40, 7, 133))
AXES = [None, (0,), (1,), (3,), (-1,), (0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3)]
FUNCTIONS = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceMin": np.min,
             "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k), "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
             "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)), "ReduceProd": np.prod, "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
             "ReduceLogSumExp": lambda x, **k: np.logaddexp.reduce(x, **k) if not isinstance(k.get("axis"), tuple) or len(k["axis"]) == 1 else np.log(np.sum(np.exp(x), **k))}


def sample(op_type, x, axes, keepdims, opset=17, domain=""):
    axes_are_input = domain or (opset >= 13 if op_type == "ReduceSum" else opset >= 18)
    function = FUNCTIONS.get(op_type, np.sum)
    attributes = {"keepdims": keepdims}
    inputs = [x]
    if axes is not None and axes_are_input:
        inputs.append(np.array(axes, np.int64))
    elif axes is not None:
        attributes["axes"] = axes

    def oracle(x, *_):
        return np.asarray(function(x, axis=axes, keepdims=bool(keepdims)), x.dtype)

    return Sample(op_type, inputs, oracle, attributes, domain, opset=opset, constants=(1,) if len(inputs) > 1 else ())




def extreme_grad(shape, axes):
    """Return a sample of ExtremeGrad with ties."""
    x, dy = rng.integers(0, 4, shape).astype(float), rng.standard_normal([1 if axis in axes else n for axis, n in enumerate(shape)])

    def oracle(dy, x, y):
        mask = x == y
        return np.where(mask, dy / np.maximum(mask.sum(axes, keepdims=True), 1), 0.0).astype(x.dtype)

    return Sample("ExtremeGrad", [dy, x, x.max(axes, keepdims=True)], oracle, {"axes": axes}, "ortrain", gradient=False)


SAMPLES = [
    *[sample("ReduceSum", X, axes, keep) for axes in AXES for keep in (0, 1)],
    *[sample("ReduceMean", X, axes, keep) for axes in AXES for keep in (0, 1)],
    *[sample(op, X, axes, keep, opset) for op in ("ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL1", "ReduceL2") for axes in (None, (1,), (0, 2)) for keep in (0, 1) for opset in (13, 18)],
    *[sample("ReduceSum", X, axes, 0, 11) for axes in (None, (0,), (1, 2))], *[sample("ReduceMean", X, axes, 0, 18) for axes in (None, (0,), (1, 2))],
    *[sample("ReduceSumTraining", X, axes, keep, 1, "com.microsoft") for axes in ((0,), (0, 2), (3,)) for keep in (0, 1)],
    *[sample(op, LARGE, axes, 0) for op in ("ReduceSum", "ReduceMean") for axes in (None, (0,), (2,), (0, 2), (1,))],
    *[sample(op, x, axes, 0) for op in ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare") for x, axes in
      ((rng.permutation(19 * 600).reshape(19, 600) / 7000.0 + 0.1, (0,)), (rng.permutation(3 * 21 * 530).reshape(3, 21, 530) / 2e4 + 0.5, (1,)))],
    *[sample(op, (10 * X).astype(np.int64), (1,), 0) for op in ("ReduceSum", "ReduceMax", "ReduceMin")],
    Sample("ReduceAllL2", [X, LARGE, X[0]], lambda *xs: np.sqrt(sum(np.sum(x * x) for x in xs)), domain="com.microsoft"),
    Sample("ReduceSum", [X, np.zeros(0, np.int64)], lambda x, a: x, {"noop_with_empty_axes": 1}, constants=(1,)),
    sample("ReduceSum", np.zeros((0, 3)), (0,), 0),
]
ZEROS = np.where(rng.random(X.shape) < 0.15, 0.0, X)
SAMPLES += [
    *[sample(op, x, axes, keep, opset) for op, x in (("ReduceProd", X), ("ReduceProd", ZEROS), ("ReduceLogSum", np.abs(X)), ("ReduceLogSumExp", X))
      for axes in (None, (1,), (0, 2)) for keep in (0, 1) for opset in (13, 18)],
    sample("ReduceLogSumExp", 1000 * X, (1,), 1), sample("ReduceProd", (3 * X).astype(np.int64), (1,), 0),
    *[Sample("ProductOfOthers", [x], lambda x, a=a: product_of_others(x, a), {"axes": a}, "ortrain") for x in (X, ZEROS) for a in ((1,), (0, 2))],
]


SAMPLES += [
    sample("ReduceProd", np.array(1.5), None, 0),
    Sample("ReduceProd", [X, np.zeros(0, np.int64)], lambda x, a: x, {"noop_with_empty_axes": 1}, opset=18, constants=(1,)),
]

LONG = rng.uniform(0.9, 1.1, (2, 40000))
SAMPLES += [
    *[sample(op, rng.standard_normal((70, n)), (1,), 0, 18) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin") for n in (7, 16, 33, 63, 64, 150, 999)],
    Sample("ProductOfOthers", [LONG], lambda x: np.exp(np.log(LONG).sum(1, keepdims=True) - np.log(LONG)), {"axes": (1,)}, "ortrain", label="long rows"),
    *[extreme_grad(shape, axes) for shape, axes in (((3, 4, 5, 2), (1,)), ((3, 4, 5, 2), (1, 2)), ((40, 6, 3), (1,)), ((7, 300), (1,)), ((300, 7), (0,)),
                                                    ((2, 1200, 3), (1,)), ((5, 1, 9), (0, 1, 2)))],
]


def product_of_others(x, axes):
    """Return for each element the product over the axes without it."""
    y = np.ones_like(x)
    for index in np.ndindex(x.shape):
        without_element = x.copy()
        without_element[index] = 1
        y[index] = without_element[tuple(slice(None) if a in axes else i for a, i in enumerate(index))].prod()
    return y


REFUSALS = [
    Refusal("ReduceSum", [X, np.array([4])], constants=(1,)), Refusal("ReduceMean", [X], {"axes": (-5,)}),
    Refusal("ReduceMax", [X], {"axes": (0, -X.ndim)}, match="distinct"),
]
