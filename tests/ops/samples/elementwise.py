"""Samples of the element-wise operators."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(0)
# no element near 0, where functions below are not differentiable
X = rng.uniform(0.2, 1.5, (3, 4, 5)) * rng.choice([-1.0, 1.0], (3, 4, 5))
POSITIVE = np.abs(X)
DY, Y = rng.standard_normal((2, 3, 4, 5))
LARGE = rng.uniform(0.2, 1.5, (3, 50, 331))                 # several work items; the size is no multiple of the vector width
SHORT_ROWS = rng.standard_normal((90, 70, 3))               # many rows shorter than a vector, in several work items
INTS = rng.integers(-5, 6, (3, 4))
BOOLS = rng.random((3, 4)) < 0.5
ERF = np.vectorize(__import__("math").erf)


def operand(*shape):
    return rng.uniform(0.3, 1.4, shape) * rng.choice([-1.0, 1.0], shape)


PAIRS = [(X, operand(3, 4, 5)), (X, operand(5)), (X, operand(4, 1)), (operand(1, 4, 1), X), (operand(3, 1, 5), operand(4, 1)), (X, operand()), (operand(2, 3, 1, 1), operand(3, 4, 5)),
         (LARGE, operand(331)), (LARGE, operand(50, 1)), (LARGE, LARGE), (np.zeros((0, 4)), operand(4))]


def short_row_operands():
    """Return operands that broadcast to SHORT_ROWS along its last axis, its middle one, its first two and the first and last."""
    return [operand(90, 70, 1), operand(90, 1, 3), operand(3), operand(70, 1)]


def unary(op_type, function, inputs, **options):
    return [Sample(op_type, [x], function, **options) for x in inputs]


def binary(op_type, function, pairs=PAIRS, **options):
    return [Sample(op_type, [a, b], function, **options) for a, b in pairs]


def divide(a, b):
    return a / b if a.dtype.kind == "f" else np.trunc(a / np.where(b == 0, 1, b)).astype(a.dtype) * (b != 0)


def div_grad(dy, a, b):
    """Return the two gradients of a / b, summed to the shapes of a and b."""
    def to(x, shape):
        x = x.sum(axis=tuple(range(x.ndim - len(shape))))
        return x.sum(axis=tuple(i for i, d in enumerate(shape) if d == 1 and x.shape[i] != 1), keepdims=True)

    return to(dy / b, a.shape), to(-dy * a / b**2, b.shape)


BLOCKS = {"small integers": np.arange(-50, 50), "large integers": np.arange(-50, 50) ** 7 * 3 + 1, "one large integer": np.append(np.arange(99), 2**31),
          "small numbers": np.linspace(-99.5, 99.5, 100), "large numbers": np.linspace(-5e9, 5e9, 100).round(-3)}
"""Casts of int64 take blocks of 32 elements by way of int32 where these fit."""
SAMPLES = [
    *[Sample("DivGrad", [operand(3, 4, 5), a, b], div_grad, {}, "com.microsoft", outputs=2) for a, b in ((X, X + 2), (X, operand(5)), (operand(4, 1), X))],
    *binary("Add", np.add), *binary("Sub", np.subtract), *binary("Mul", np.multiply), *binary("Div", divide),
    *binary("Add", np.add, [(INTS, INTS[:1]), (INTS.astype(np.int32), INTS.astype(np.int32))]), *binary("Div", divide, [(INTS, INTS + 7), (INTS, INTS[0] + 9)]),
    *binary("Sub", np.subtract, [pair for x in short_row_operands() for pair in ((SHORT_ROWS, x), (x, SHORT_ROWS))]),
    *binary("Less", np.less, [(SHORT_ROWS, x) for x in short_row_operands()]),
    *[Sample("Where", [condition > 0, a, SHORT_ROWS], np.where) for condition in short_row_operands() for a in short_row_operands()[1:3]],
    *[Sample("Where", [condition > 0, LARGE, b], np.where) for condition, b in ((operand(50, 1), LARGE + 1), (operand(331), operand(50, 1)), (LARGE, operand()))],
    *binary("Pow", np.power, [(POSITIVE, operand(5)), (POSITIVE, np.array(2.5)), (np.array(1.7), X)]),
    *binary("Pow", lambda x, e: np.power(x, e), [(X, np.array(2.0)), (X, np.array([3.0])), (X, np.array(-1.0)), (X, np.array(1.0))], indices=[0]),
    *binary("Pow", np.power, [(POSITIVE, np.array(0.5)), (POSITIVE, np.array(-0.5)), (LARGE, operand(331)), (LARGE, np.array(1.3))]),
    *[Sample("Sum", list(args), lambda *a: sum(a)) for args in ([X], [X, operand(5)], [operand(5), X, operand(4, 1), operand()], [LARGE, LARGE, LARGE])],
    *unary("Sqrt", np.sqrt, [POSITIVE, LARGE]), *unary("Neg", np.negative, [X, INTS, INTS.astype(np.int32)]), *unary("Abs", np.abs, [X, INTS]),
    *unary("Exp", np.exp, [X, 20 * X, LARGE]), *unary("Log", np.log, [POSITIVE, LARGE]), *unary("Log", np.log, [POSITIVE * 1e-8], gradient=False),
    *unary("Reciprocal", np.reciprocal, [X]), *unary("Erf", ERF, [X, 3 * X, X / 50]),
    *unary("Sign", np.sign, [X, INTS]), *unary("Floor", np.floor, [3 * X]), *unary("Ceil", np.ceil, [3 * X]), *unary("Round", np.round, [3 * X]),
    *[Sample(op, [a, b], f) for op, f in (("Equal", np.equal), ("Less", np.less), ("LessOrEqual", np.less_equal), ("Greater", np.greater),
                                          ("GreaterOrEqual", np.greater_equal)) for a, b in ((INTS, INTS[:, :1]), (X, X[0]))],
    *[Sample(op, [BOOLS, BOOLS[:1]], f) for op, f in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor))],
    Sample("Not", [BOOLS], np.logical_not),
    Sample("Where", [X > 0, X, operand(5)], np.where), Sample("Where", [X[0, :, :1] > 0, operand(), LARGE[:, :4, :5]], np.where),
    Sample("Where", [LARGE > 0.8, LARGE, operand(331)], np.where), Sample("Where", [BOOLS, INTS, INTS + 1], np.where), Sample("Where", [BOOLS, BOOLS, ~BOOLS], np.where),
    *[Sample("Cast", [x], lambda x, t=t: x.astype(t), {"to": n}, gradient=False)
      for x in (3 * X, INTS, INTS.astype(np.int32), BOOLS, np.abs(INTS).astype(np.uint8), INTS.astype(np.int8))
      for t, n in ((np.float32, 1), (np.float64, 11), (np.int64, 7), (np.int32, 6))],
    Sample("Cast", [X * INTS[0, 0]], lambda x: x.astype(bool), {"to": 9}, gradient=False),
    Sample("Cast", [X], lambda x: x.astype(np.float64), {"to": 11}, gradient=False),
    *[Sample("Cast", [x], lambda x, t=t: x.astype(t), {"to": n}, gradient=False, label=f"{label} to {t}")
      for label, x in BLOCKS.items() for n, t in ((7, "int64"),) * (x.dtype.kind == "f") + ((1, "float32"), (11, "float64")) * (x.dtype.kind == "i")],
    *[Sample("Scale", [X, s], lambda x, s: x * s.reshape(()), domain="com.microsoft") for s in (np.array([2.5]), np.array(3))],
    Sample("Scale", [X, np.array([4])], lambda x, s: x / 4, {"scale_down": 1}, "com.microsoft"),
]
SAMPLES += [
    *[sample for op, f in (("Max", np.maximum), ("Min", np.minimum)) for sample in (
        *binary(op, f), *binary(op, f, [(INTS, INTS[:1]), (INTS.astype(np.int32), INTS.astype(np.int32)[0])]),
        Sample(op, [X], lambda x: x), Sample(op, [X, operand(5), operand(4, 1)], lambda *a, f=f: f(f(a[0], a[1]), a[2])),
        Sample(op, [np.array([1.0, np.nan, 2.0]), np.array([np.nan, 1.0, 1.0])], f, gradient=False))],
    *[Sample(f"{op}Grad", [DY, X, np.where(rng.random(X.shape) < 0.3, X, Y)], lambda dy, a, b, s=s: np.where(a == b, dy / 2, np.where(s * a > s * b, dy, 0)),
             domain="ortrain") for op, s in (("Max", 1), ("Min", -1))],
    *[Sample("MaxGrad", [SHORT_ROWS, a, b], lambda dy, a, b: np.where(a == b, dy / 2, np.where(a > b, dy, 0)), domain="ortrain")
      for a, b in ((SHORT_ROWS, operand(70, 1)), (operand(3), SHORT_ROWS), (operand(90, 1, 3), operand()))],
    *[Sample("Mean", list(args), lambda *a: sum(a) / len(a)) for args in ([X], [X, operand(5)], [operand(5), X, operand(4, 1)])],
    Sample("Pow", [X, np.array(2)], lambda x, e: x**2), *binary("Mod", np.mod, [(5 * X, 0.83 * X + 0.1), (5 * X, operand(5))]),
    *binary("Mod", np.fmod, [(5 * X, 0.83 * POSITIVE + 0.1), (5 * X, operand(5))], attributes={"fmod": 1}),
    *binary("Mod", lambda a, b: np.mod(a, b), [(INTS, INTS + 11), (INTS, INTS - 11), (INTS.astype(np.int32), INTS.astype(np.int32)[0] + 6)]),
    Sample("Mod", [INTS, INTS - 11], np.fmod, {"fmod": 1}),
    *[Sample(op, [np.array([np.iinfo(kind).min, 7, -7], kind), np.array([-1, -1, -1], kind)], oracle, gradient=False, label=f"the least {kind.__name__}")
      for kind in (np.int64, np.int32) for op, oracle in (("Div", lambda a, b: np.negative(a)), ("Mod", lambda a, b: np.zeros_like(a)))],
    Sample("IsNaN", [np.array([1.0, np.nan, np.inf])], np.isnan), Sample("IsInf", [np.array([1.0, np.nan, np.inf, -np.inf])], np.isinf),
    Sample("IsInf", [np.array([1.0, np.inf, -np.inf])], lambda x: x == np.inf, {"detect_negative": 0}),
    Sample("IsInf", [np.array([1.0, np.inf, -np.inf])], lambda x: x == -np.inf, {"detect_positive": 0}),
]
REFUSALS = [
    Refusal("Add", [X, X[:, :3]]), Refusal("Add", [X, INTS]), Refusal("Where", [X, X, X]), Refusal("Where", [X > 0, X, INTS]),
    Refusal("Cast", [X], {"to": 99}),
]
