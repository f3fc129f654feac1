"""What becomes of gradients: they are accumulated, or spent at once on their parameter (ortrain.optimizer_in_backward). The operators of optimizer models work
on sequences of all parameters; ortrain.training.optimizer runs them as sweeps over flat segments."""

from __future__ import annotations

from ortrain.dtypes import numpy_dtype
from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.optimizers import ADAMW, SGD, UPDATES, OptimizerAlgorithm
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_inputs, operator

ACCUMULATOR = "InPlaceAccumulatorV2"
RESET_FLAG = "lazy_reset_grad"
BUFFER_SUFFIX = "_grad.accumulation.buffer"
UPDATED_SUFFIX = "_grad.accumulation.out"
"""How training models accumulate gradients: the operator, the input that is its flag, and what follows a parameter's name in its buffer's and output's."""


@operator(ACCUMULATOR, domain=MICROSOFT, lower="accumulate", differentiable=False)
def in_place_accumulator(c: InferenceContext) -> list[TensorType]:
    """buffer = value where the overwrite flag is set, else buffer + value, in place; output: updated [1]"""
    if c.shape(0) != c.shape(1) and all(isinstance(d, int) for d in (*c.shape(0), *c.shape(1))):
        raise c.error(f"expected a value of the buffer's shape {list(c.shape(0))}, got {list(c.shape(1))}")
    return [TensorType("bool", (1,))]


def _register_update(algorithm: OptimizerAlgorithm) -> None:
    def lower(c: LoweringContext) -> KernelCall:
        return KernelCall(algorithm.kernel, algorithm.int_values(c.node.attributes), algorithm.float_values(c.node.attributes))

    def infer(c: InferenceContext) -> list[TensorType]:
        """Weights, gradient, progress ([2]: learning rate and step number), mask (bool [1] or absent: the weights are frozen), moments."""
        check_inputs(c, c.shape(0), 1, *range(FIRST_MOMENT, FIRST_MOMENT + algorithm.used_moments))
        check_inputs(c, (2,), 2)
        return [TensorType("bool", (1,))]

    infer.__doc__ = f"{algorithm.operator} on one parameter, in place; output: updated [1]"
    operator(algorithm.update, domain=ORTRAIN, lower=lower, differentiable=False)(infer)


FIRST_MOMENT = 4
"""The input of an update from which on it has its moments."""
for _algorithm in UPDATES.values():
    _register_update(_algorithm)


WHOLE_BYTES, MIN_PIECES, PIECE_BYTES, MIN_ROWS = 1 << 20, 3, 1 << 23, 256
"""Of a gradient that is there whole, and of the pieces of a larger one. Pieces of 4 MiB cost a step of layers of 16 and 64 MiB (mlp-wide) 1 % on one thread and
5 % on two, 8 MiB 0.5 and 3 %. Three pieces of 0.5 MiB cost a step of mlp-mnist 1 and 3 %, and save two fifths of what it needs beyond the loaded session."""


def rows_of_piece(kind: TensorType) -> int:
    """Rows of a piece of the gradient of a weight matrix."""
    rows, columns = kind.sizes
    row = numpy_dtype(kind.dtype).itemsize * columns
    if rows * row <= WHOLE_BYTES:
        return rows
    return min(-(-rows // MIN_PIECES), max(MIN_ROWS, PIECE_BYTES // row))


def gemm_update_call(c: LoweringContext) -> KernelCall:
    """Packs what kernels/training/gemm_update.h says."""
    (m, n), ta, tb = c.dims(2), int(c.attribute("transA", 0)), int(c.attribute("transB", 0))
    algorithm = ADAMW if c.has(6) else SGD
    rows = rows_of_piece(c.type(2))
    scratch = rows * n * numpy_dtype(c.dtype(2)).itemsize
    return KernelCall("gemm_update", (m, n, c.dims(0)[0 if ta else 1], ta, tb, algorithm.gemm_update or 0, rows,
                                      *algorithm.int_values(c.node.attributes)), algorithm.float_values(c.node.attributes), scratch)


@operator("GemmUpdate", domain=ORTRAIN, lower=gemm_update_call, differentiable=False)
def gemm_update(c: InferenceContext) -> list[TensorType]:
    """weights [m, n] updated from their gradient op(a) op(b); inputs a, b, then those of AdamWUpdate or SGDUpdate without the gradient; plans merge them"""
    a, b = (c.shape(i)[::-1] if c.attribute(name, 0) else c.shape(i) for i, name in enumerate(("transA", "transB")))
    if len(a) != 2 or len(b) != 2 or a[1] != b[0] or c.shape(2) != (a[0], b[1]):
        raise c.error(f"expected matrices whose product has the weights' shape, got {[list(c.shape(i)) for i in range(3)]}")
    check_inputs(c, (2,), 4)
    check_inputs(c, c.shape(2), *((6, 7) if len(c.node.inputs) > 6 else ()))
    return [TensorType("bool", (1,))]


WRITTEN = {ACCUMULATOR: (0,), "GemmUpdate": (2, 6, 7),
           **{name: (0, *range(FIRST_MOMENT, FIRST_MOMENT + algorithm.used_moments)) for name, algorithm in UPDATES.items()}}
"""Operators that write over inputs -> which."""
UPDATED = {name: places[0] for name, places in WRITTEN.items() if name != ACCUMULATOR}
"""Operators that update a parameter -> which input it is."""


def select_sum(g: NodeBuilder) -> list[str]:
    total = g.op("Add", g.inputs[0], g.inputs[1])
    return [g.op("Where", g.inputs[2], total, g.inputs[0]) if g.has(2) else total]


@operator("InPlaceAccumulator", domain=MICROSOFT, differentiable=False, decompose=select_sum)
def accumulator(c: InferenceContext) -> list[TensorType]:
    """new = old + value, or old where the update signal is false"""
    return [c.type(0)]


@operator("ZeroGradient", domain=MICROSOFT, differentiable=False,
          decompose=lambda g: [g.op("Expand", g.scalar(0.0, g.inputs[0]), g.shape_of(g.inputs[0]))])
def zero_gradient(c: InferenceContext) -> list[TensorType]:
    """Zeros of the shape of the first input"""
    return [c.type(0)]
