"""Operators that consume gradients: accumulation, and updates of one parameter for the optimizer in backward.

The operators of optimizer models, which update sequences of all parameters, are in ortrain.ops.contrib.optimizers."""

from __future__ import annotations

from ortrain.dtypes import BFLOAT16, numpy_dtype
from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.optimizers import UPDATES, OptimizerAlgorithm
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_inputs, operator

ACCUMULATOR = "InPlaceAccumulatorV2"
RESET_FLAG = "lazy_reset_grad"
BUFFER_SUFFIX = "_grad.accumulation.buffer"
UPDATED_SUFFIX = "_grad.accumulation.out"
"""Names that training models use for gradient accumulation: the operator, the graph input that is its overwrite flag, and the suffixes that follow a
parameter's name in the names of its buffer and of the operator's output."""


@operator(ACCUMULATOR, domain=MICROSOFT, lower="accumulate", differentiable=False)
def in_place_accumulator(c: InferenceContext) -> list[TensorType]:
    """buffer = value if the overwrite flag is set, else buffer + value, in place, of (buffer, value, flag); output: updated, bool [1]"""
    if c.shape(0) != c.shape(1) and all(isinstance(d, int) for d in (*c.shape(0), *c.shape(1))):
        raise c.error(f"expected a value of the buffer's shape {list(c.shape(0))}, got {list(c.shape(1))}")
    return [TensorType("bool", (1,))]


def check_moments(c: InferenceContext, algorithm: OptimizerAlgorithm, weights: int, first: int) -> None:
    """Raise ShapeInferenceError when moments that the attributes ask for are absent or do not fit the weights. weights, first: indices of inputs."""
    sizes = tuple(size for size in c.shape(weights) if isinstance(size, int))
    for index, moment in enumerate(algorithm.present_moments(c.node.attributes)[: algorithm.used_moments], first):
        if moment is not None:
            check_inputs(c, moment.shape(sizes) if len(sizes) == len(c.shape(weights)) else None, index)


def _check_dtypes(c: InferenceContext, weights: int, factor: int, first: int) -> None:
    """Raise ShapeInferenceError when a gradient, or a factor of it, and moments do not have the dtypes that the weights ask for. All are indices of inputs."""
    kept = c.dtype(weights)
    if c.dtype(factor) != gradient_dtype(kept):
        raise c.error(f"expected a gradient of {gradient_dtype(kept)} for weights of {kept}, got {c.dtype(factor)}")
    for index in range(first, len(c.types)):
        if c.has(index) and c.dtype(index) != kept:
            raise c.error(f"expected moments of {kept} as the weights, got {c.dtype(index)}")


def gradient_dtype(weights: str) -> str:
    """Return the dtype of the gradients of weights that are kept in a dtype."""
    return "float32" if weights == BFLOAT16 else weights


def kernel_ints(c: LoweringContext, algorithm: OptimizerAlgorithm, weights: int) -> tuple[int, ...]:
    """Return the ints of an update's kernel: by what weights of bfloat16 are rounded, then the algorithm's. weights: the index of the input."""
    rounding = [int(c.node.attributes[name]) for name in ROUNDING] if c.dtype(weights) == BFLOAT16 else []
    return (*rounding, *algorithm.int_values(c.node.attributes))


def _register_update(algorithm: OptimizerAlgorithm) -> None:
    """Register the operator that updates one parameter by an algorithm.

    Its inputs are weights, gradient, progress [2] (learning rate and step number), mask (bool [1] or absent; if true, the weights are frozen), moments."""
    def lower(c: LoweringContext) -> KernelCall:
        elements = 0 if algorithm.scratch is None else algorithm.scratch(tuple(c.dims(0)))
        return KernelCall(algorithm.kernel, kernel_ints(c, algorithm, 0), algorithm.float_values(c.node.attributes),
                          elements * numpy_dtype(c.dtype(0)).itemsize)

    def infer(c: InferenceContext) -> list[TensorType]:
        _check_dtypes(c, 0, 1, FIRST_MOMENT)
        check_inputs(c, c.shape(0), 1)
        check_inputs(c, (2,), 2)
        check_moments(c, algorithm, 0, FIRST_MOMENT)
        return [TensorType("bool", (1,))]

    infer.__doc__ = f"{algorithm.operator} for one parameter, in place; output: updated, bool [1]"
    operator(algorithm.update, domain=ORTRAIN, lower=lower, differentiable=False)(infer)


ROUNDING = "rounding_seed", "first_element"
"""Attributes of the update of a parameter that is kept in bfloat16: by what it is rounded, as kernels/training/stochastic_rounding.h describes."""
FIRST_MOMENT = 4
"""The index of the first moment among the inputs of an update."""
for _algorithm in UPDATES.values():
    _register_update(_algorithm)


MAX_UNCHUNKED_BYTES, MIN_CHUNKS, CHUNK_BYTES, MIN_CHUNK_ROWS = 1 << 20, 3, 1 << 23, 256
"""Limits on how GemmUpdate splits a gradient into chunks of rows: the size up to which it is not split, and the number, size and rows of chunks.

Cost of chunks per train step on one and on two threads: for weights of 16 and 64 MiB (mlp-wide), chunks of 4 MiB 1 % and 5 %, chunks of 8 MiB 0.5 % and
3 %; for mlp-mnist, three chunks of 0.5 MiB 1 % and 3 %, for 40 % less memory beyond that of the loaded session."""


def rows_per_chunk(kind: TensorType) -> int:
    """Return the number of rows per chunk of the gradient of a weight matrix. kind: of the weights."""
    rows, columns = kind.sizes
    row = numpy_dtype(gradient_dtype(kind.dtype)).itemsize * columns
    if rows * row <= MAX_UNCHUNKED_BYTES:
        return rows
    return min(-(-rows // MIN_CHUNKS), max(MIN_CHUNK_ROWS, CHUNK_BYTES // row))


GEMM_UPDATE_INTS = max(len(algorithm.ints) for algorithm in UPDATES.values() if algorithm.gemm_update is not None)
"""The most ints of an optimizer whose update can be fused into a product."""


def lower_gemm_update(c: LoweringContext) -> KernelCall:
    """Pack the attributes that kernels/training/gemm_update.h documents."""
    (m, n), ta, tb = c.dims(2), int(c.attribute("transA", 0)), int(c.attribute("transB", 0))
    algorithm = UPDATES[str(c.attribute("update"))]
    rows = rows_per_chunk(c.type(2))
    scratch = rows * n * numpy_dtype(c.dtype(0)).itemsize
    padding = (0,) * (GEMM_UPDATE_INTS - len(algorithm.ints))
    return KernelCall("gemm_update", (m, n, c.dims(0)[0 if ta else 1], ta, tb, algorithm.gemm_update or 0, rows, *kernel_ints(c, algorithm, 2), *padding),
                      algorithm.float_values(c.node.attributes), scratch)


@operator("GemmUpdate", domain=ORTRAIN, lower=lower_gemm_update, differentiable=False, takes_bfloat16=True)
def gemm_update(c: InferenceContext) -> list[TensorType]:
    """The update named by the attribute `update`, of weights [m, n] with the gradient op(a) @ op(b), of (a, b, the update's inputs without the gradient).
    Created by plans only"""
    a, b = (c.shape(i)[::-1] if c.attribute(name, 0) else c.shape(i) for i, name in enumerate(("transA", "transB")))
    if len(a) != 2 or len(b) != 2 or a[1] != b[0] or c.shape(2) != (a[0], b[1]):
        raise c.error(f"expected matrices whose product has the weights' shape, got {[list(c.shape(i)) for i in range(3)]}")
    _check_dtypes(c, 2, 0, FIRST_FUSED_MOMENT)
    check_inputs(c, (2,), 4)
    check_moments(c, UPDATES[str(c.attribute("update"))], 2, FIRST_FUSED_MOMENT)
    return [TensorType("bool", (1,))]


FIRST_FUSED_MOMENT = FIRST_MOMENT + 2
"""The index of the first moment among the inputs of a GemmUpdate."""
WRITTEN = {ACCUMULATOR: (0,), "GemmUpdate": (2, *range(FIRST_FUSED_MOMENT, FIRST_FUSED_MOMENT + max(a.used_moments for a in UPDATES.values()))),
           **{name: (0, *range(FIRST_MOMENT, FIRST_MOMENT + algorithm.used_moments)) for name, algorithm in UPDATES.items()}}
"""Operators that overwrite inputs -> the indices of these inputs."""
UPDATED = {name: places[0] for name, places in WRITTEN.items() if name != ACCUMULATOR}
"""Operators that update a parameter -> the index of the input that is the parameter."""


def accumulator_decomposition(g: NodeBuilder) -> list[str]:
    total = g.op("Add", g.inputs[0], g.inputs[1])
    return [g.op("Where", g.inputs[2], total, g.inputs[0]) if g.has(2) else total]


@operator("InPlaceAccumulator", domain=MICROSOFT, differentiable=False, decompose=accumulator_decomposition)
def accumulator(c: InferenceContext) -> list[TensorType]:
    """y = buffer + value, or buffer if the update signal is false, of (buffer, value, update signal)"""
    return [c.type(0)]


@operator("ZeroGradient", domain=MICROSOFT, differentiable=False,
          decompose=lambda g: [g.op("Expand", g.scalar(0.0, g.inputs[0]), g.shape_of(g.inputs[0]))])
def zero_gradient(c: InferenceContext) -> list[TensorType]:
    """y = zeros with the shape of the first input"""
    return [c.type(0)]
