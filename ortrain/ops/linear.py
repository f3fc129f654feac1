"""Matrix multiplication: MatMul, Gemm, com.microsoft's FusedMatMul and FusedGemm, and Dense."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim, Shape, TensorType
from ortrain.ops.activation import fused_activation
from ortrain.ops.registry.constants import surely_equal
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, KernelCall, LoweringContext, broadcast_shapes, check_broadcasts, operator
from ortrain.ops.registry.sample_gradients import ProductGradient, SampleGradient, SampleGradientBuilder
from ortrain.ops.shared.broadcasting import broadcast_dims, broadcast_strides, contiguous_strides

Gradients = Sequence[str | None]


def check_sizes_agree(c: InferenceContext, a: Dim, b: Dim, what: str) -> None:
    """Raise if two sizes are known and differ. what: the sizes' name in the message."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise c.error(f"expected {what} to agree, got {list(c.shape(0))} and {list(c.shape(1))}")


def common_dtype(c: InferenceContext) -> str:
    """Return the dtype of both operands. Raises if they differ."""
    if c.dtype(0) != c.dtype(1):
        raise c.error(f"expected operands of one dtype, got {c.dtype(0)} and {c.dtype(1)}")
    return c.dtype(0)


def matmul_shape(c: InferenceContext, a: Shape, b: Shape) -> Shape:
    """Return the shape of a @ b with the broadcasting rules of numpy.matmul, 1-D operands included.

    a, b: the shapes after transA and transB."""
    if not a or not b:
        raise c.error("expected operands with at least one dimension, got a scalar")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    check_sizes_agree(c, left[-1], right[-2], "the inner sizes")
    batch = broadcast_shapes(c, left[:-2], right[:-2]) if len(left) > 2 or len(right) > 2 else ()
    rows = () if len(a) == 1 else (left[-2],)
    columns = () if len(b) == 1 else (right[-1],)
    return (*batch, *rows, *columns)


def transposed_shape(shape: Shape) -> Shape:
    """Return a shape with its last two dimensions swapped; a 1-D shape is unchanged."""
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 else shape


def lower_matmul(c: LoweringContext) -> KernelCall:
    """Pack as matmul_call does, with contiguous operands and a contiguous result."""
    ta = int(c.attribute("transA", 0)) if len(c.dims(0)) > 1 else 0
    tb = int(c.attribute("transB", 0)) if len(c.dims(1)) > 1 else 0
    a, b = c.dims(0), c.dims(1)
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    m, k = (left[-1], left[-2]) if ta else (left[-2], left[-1])
    n = right[-2] if tb else right[-1]
    batch_a, batch_b = left[:-2], right[:-2]
    if not ta and all(surely_equal(d, 1) for d in batch_b):
        # one GEMM suffices: the batch of a becomes additional rows
        m *= prod(batch_a)
        batch_a, batch_b = (), ()
    batch = broadcast_dims(batch_a, batch_b)
    strides_a = [s * left[-1] * left[-2] for s in broadcast_strides(batch_a, batch)] if batch else []
    strides_b = [s * right[-1] * right[-2] for s in broadcast_strides(batch_b, batch)] if batch else []
    strides_y = [s * m * n for s in contiguous_strides(batch)] if batch else []
    return matmul_call((m, n, k), (ta, tb), (m if ta else k, k if tb else n, n), (0, 0), batch, (strides_a, strides_b, strides_y),
                       float(c.attribute("alpha", 1.0)))


def matmul_call(sizes: Sequence[int], transposed: Sequence[int], leading: Sequence[int], offsets: Sequence[int], batch: Sequence[int],
                strides: Sequence[Sequence[int]], alpha: float) -> KernelCall:
    """Return a call of the kernel `matmul`.

    sizes: m, n and k. transposed: whether a and b are read transposed. leading: the distances between rows of a, b and y in memory. offsets: the first
    elements of a and b. batch: sizes of the batch's axes. strides: for a, b and y those of the batch's axes. All distances are in elements."""
    return KernelCall("matmul", (*sizes, *transposed, prod(batch), len(batch), *leading, *offsets, *batch, *(s for of_tensor in strides for s in of_tensor)),
                      (alpha,))


def matmul_gradient(g: GradientBuilder) -> Gradients:
    return batched_gradient(g, 0, 0, 1.0)


def batched_gradient(g: GradientBuilder, ta: int, tb: int, alpha: float) -> Gradients:
    """Return dA and dB of alpha op(A) @ op(B), where ta and tb select the transposed operands.

    gradient.py sums them over broadcast batch axes."""
    a, b = g.inputs
    rank_a, rank_b = (g.rank(v) for v in (a, b))
    if rank_a == 1 or rank_b == 1:
        return vector_gradient(g, alpha, tb if rank_a == 1 else ta)
    dy = g.dy
    if rank_a == rank_b == 2:
        return matrix_gradient(g, ta, tb, alpha)
    da = db = None
    if g.needs(0):
        da = fused_matmul_node(g, b, dy, tb, 1, alpha) if ta else fused_matmul_node(g, dy, b, 0, 1 - tb, alpha)
    if g.needs(1):
        if rank_b == 2 and not ta:
            flat_a, flat_dy = (flatten_to_matrix(g, v) for v in (a, dy))
            db = gemm_node(g, flat_dy, flat_a, 1, 0, alpha) if tb else gemm_node(g, flat_a, flat_dy, 1, 0, alpha)
        else:
            db = fused_matmul_node(g, dy, a, 1, ta, alpha) if tb else fused_matmul_node(g, a, dy, 1 - ta, 0, alpha)
    return [da, db]


def matrix_gradient(g: GradientBuilder, ta: int, tb: int, alpha: float) -> Gradients:
    """Return dA and dB of alpha op(A) @ op(B) for matrices A and B, as Gemm nodes."""
    a, b = g.inputs[:2]
    dy = g.dy
    da = (gemm_node(g, b, dy, tb, 1, alpha) if ta else gemm_node(g, dy, b, 0, 1 - tb, alpha)) if g.needs(0) else None
    db = (gemm_node(g, dy, a, 1, ta, alpha) if tb else gemm_node(g, a, dy, 1 - ta, 0, alpha)) if g.needs(1) else None
    return [da, db]


def vector_gradient(g: GradientBuilder, alpha: float, transposed: int) -> Gradients:
    """Return dA and dB where an operand is 1-D, as element-wise products and sums.

    ONNX Runtime training 1.19 computes wrong gradients here. transposed: transA or transB of the operand that is not 1-D."""
    a, b = g.inputs
    dy = g.dy if alpha == 1.0 else g.op("Mul", g.dy, g.scalar(alpha, g.dy))
    rank_a, rank_b = (g.rank(v) for v in (a, b))
    if rank_a == rank_b == 1:
        return [g.op("Mul", dy, b) if g.needs(0) else None, g.op("Mul", dy, a) if g.needs(1) else None]
    vector, matrix, vector_first = (a, b, True) if rank_a == 1 else (b, a, False)
    rank = g.rank(matrix)
    # y = v M: y [.., n], M [.., k, n]; y = M v: y [.., m], M [.., m, k]. Of M's last two axes y keeps `kept` and sums over `summed`.
    kept = rank - 1 if vector_first != bool(transposed) else rank - 2
    summed = 2 * rank - 3 - kept
    column = g.unsqueeze(vector, [1] if summed == rank - 2 else [0])
    dy = g.unsqueeze(dy, [summed])
    d_vector = None
    if g.needs(0 if vector_first else 1):
        axes = [axis for axis in range(rank) if axis != summed]
        d_vector = g.reduce_sum(g.op("Mul", dy, matrix), axes, False)
    d_matrix = g.op("Mul", dy, column) if g.needs(1 if vector_first else 0) else None
    return [d_vector, d_matrix] if vector_first else [d_matrix, d_vector]


def flatten_to_matrix(g: GradientBuilder, value: str) -> str:
    """Return a value flattened to a matrix whose columns are its last axis."""
    shape = g.shape(value)
    if len(shape) == 2:
        return value
    return str(g.op("Flatten", value, axis=len(shape) - 1))


def gemm_node(g: GradientBuilder, a: str, b: str, ta: int, tb: int, alpha: float) -> str:
    return str(g.op("Gemm", a, b, alpha=alpha, beta=0.0, transA=ta, transB=tb))


def fused_matmul_node(g: NodeBuilder, a: str, b: str, ta: int, tb: int, alpha: float) -> str:
    return str(g.op("FusedMatMul", a, b, domain=MICROSOFT, alpha=alpha, transA=ta, transB=tb))


def product_sample_gradients(g: SampleGradientBuilder) -> list[SampleGradient | None]:
    """The gradients of a matrix on the right of the samples' rows, x^T dy, or dy^T x if it is transposed, and of a Gemm's addend."""
    ta, tb, alpha = int(g.attribute("transA", 0)), int(g.attribute("transB", 0)), float(g.attribute("alpha", 1.0))
    found: list[SampleGradient | None] = [None] * len(g.inputs)
    if g.needs(0) or g.needs(1) and (ta or g.rank(g.inputs[1]) != 2 or not g.has_samples(0)):
        raise g.refusal("multiplies samples by weights other than by one matrix on their right")
    if g.needs(1):
        dy = g.dy if alpha == 1.0 else g.op("Mul", g.dy, g.scalar(alpha, g.dy))
        x, rows = g.rows(g.inputs[0]), g.rows(dy, g.outputs[0])
        found[1] = ProductGradient(rows, x) if tb else ProductGradient(x, rows)
    if len(found) > 2 and g.needs(2):
        beta = float(g.attribute("beta", 1.0))
        found[2] = g.whole(g.dy if beta == 1.0 else g.op("Mul", g.dy, g.scalar(beta, g.dy)), g.inputs[2])
    return found


@operator("MatMul", lower=lower_matmul, gradient=matmul_gradient, takes_bfloat16=True, sample_gradients=product_sample_gradients)
def matmul(c: InferenceContext) -> list[TensorType]:
    """y = a @ b, as numpy.matmul"""
    return [TensorType(common_dtype(c), matmul_shape(c, c.shape(0), c.shape(1)))]


def operand_shape(c: InferenceContext, index: int, side: str) -> Shape:
    """Return the shape of an operand of FusedMatMul after transBatchA/B (leading axis moved to the row axis) and transA/B.

    side: "A" or "B"."""
    shape = c.shape(index)
    if c.attribute(f"transBatch{side}", 0):
        if len(shape) < 3:
            raise c.error(f"expected at least 3 dimensions with transBatch{side}, got {list(shape)}")
        shape = (*shape[1:-1], shape[0], shape[-1])
    return transposed_shape(shape) if c.attribute(f"trans{side}", 0) else shape


def fused_matmul_decomposition(g: NodeBuilder) -> Sequence[str] | None:
    """Apply transBatchA and transBatchB by a Transpose of the operand, which moves the leading axis to the row axis."""
    if not g.attribute("transBatchA", 0) and not g.attribute("transBatchB", 0):
        return None
    operands = []
    for name, side in zip(g.inputs, "AB", strict=True):
        rank = g.rank(name)
        operands.append(g.op("Transpose", name, perm=(*range(1, rank - 1), 0, rank - 1)) if g.attribute(f"transBatch{side}", 0) else name)
    attributes = {key: g.attribute(key, default) for key, default in (("alpha", 1.0), ("transA", 0), ("transB", 0))}
    return [g.op("FusedMatMul", *operands, domain=MICROSOFT, **attributes)]


def fused_matmul_gradient(g: GradientBuilder) -> Gradients:
    return batched_gradient(g, int(g.attribute("transA", 0)), int(g.attribute("transB", 0)), float(g.attribute("alpha", 1.0)))


@operator("FusedMatMul", domain=MICROSOFT, lower=lower_matmul, gradient=fused_matmul_gradient, decompose=fused_matmul_decomposition, decompose_first=True,
          takes_bfloat16=True, sample_gradients=product_sample_gradients)
def fused_matmul(c: InferenceContext) -> list[TensorType]:
    """y = alpha op(a) @ op(b); op moves the first axis to the row axis if transBatchA/B is set, then transposes the last two if transA/B is set"""
    return [TensorType(common_dtype(c), matmul_shape(c, operand_shape(c, 0, "A"), operand_shape(c, 1, "B")))]


def gemm_gradient(g: GradientBuilder) -> Gradients:
    ta, tb = int(g.attribute("transA", 0)), int(g.attribute("transB", 0))
    alpha, beta = float(g.attribute("alpha", 1.0)), float(g.attribute("beta", 1.0))
    gradients = list(matrix_gradient(g, ta, tb, alpha))
    if len(g.inputs) > 2:
        dc = None
        if g.needs(2):
            dc = g.dy if beta == 1.0 else g.op("Mul", g.dy, g.scalar(beta, g.dy))
        gradients.append(dc)
    return gradients


def lower_gemm(c: LoweringContext) -> KernelCall:
    """Pack m, n, k, transA, transB, row and column stride of C (0: broadcast), 1 if C is used, 1 for a ReLU; floats: alpha, beta."""
    m, n = c.output_dims(0)
    ta, tb = int(c.attribute("transA", 0)), int(c.attribute("transB", 0))
    k = c.dims(0)[0 if ta else 1]
    row = column = 0
    beta = float(c.attribute("beta", 1.0))
    present = c.has(2) and beta != 0.0
    if present:
        row, column = broadcast_strides(c.dims(2), (m, n))
    return KernelCall("gemm", (m, n, k, ta, tb, row, column, int(present), 0), (float(c.attribute("alpha", 1.0)), beta))


@operator("Gemm", lower=lower_gemm, gradient=gemm_gradient, takes_bfloat16=True, sample_gradients=product_sample_gradients)
def gemm(c: InferenceContext) -> list[TensorType]:
    """y [m, n] = alpha op(a) @ op(b) + beta c, c broadcast"""
    if len(c.shape(0)) != 2 or len(c.shape(1)) != 2:
        raise c.error(f"expected two matrices, got {list(c.shape(0))} and {list(c.shape(1))}")
    a = transposed_shape(c.shape(0)) if c.attribute("transA", 0) else c.shape(0)
    b = transposed_shape(c.shape(1)) if c.attribute("transB", 0) else c.shape(1)
    check_sizes_agree(c, a[1], b[0], "the inner sizes")
    if c.has(2):
        check_broadcasts(c, 2, (a[0], b[1]))
    return [TensorType(common_dtype(c), (a[0], b[1]))]


def lower_dense(c: LoweringContext) -> KernelCall:
    """Pack as lower_gemm does, with all leading axes of x as rows."""
    *rows, n = c.output_dims(0)
    return KernelCall("gemm", (prod(rows), n, c.dims(0)[-1], 0, int(c.attribute("transB", 0)), 0, 1, int(c.has(2)), int(c.attribute("relu", 0))), (1.0, 1.0))


@operator("Dense", domain=ORTRAIN, lower=lower_dense, differentiable=False, takes_bfloat16=True)
def dense(c: InferenceContext) -> list[TensorType]:
    """y [.., n] = x @ op(w) + b of x [.., k], op(w) [k, n] and an optional b [n]; max(y, 0) if `relu` is set. Created by epilogue fusion only"""
    weights = transposed_shape(c.shape(1)) if c.attribute("transB", 0) else c.shape(1)
    if len(c.shape(0)) < 2 or len(weights) != 2 or c.has(2) and c.shape(2) != weights[1:]:
        raise c.error(f"expected x [.., k], weights [k, n] and a bias [n], got {[list(c.shape(i)) for i in range(3) if c.has(i)]}")
    return [TensorType(common_dtype(c), matmul_shape(c, c.shape(0), weights))]


STORED_BLOCK, STORED_COLUMNS = 1 << 18, 96
"""Elements of the block of weights that is converted at a time, and the columns that it has at least: fewer take longer to multiply than whole matrices."""


def lower_dequantized_dense(c: LoweringContext) -> KernelCall:
    """Pack m, n, k, transB, steps of the scales along rows and columns of w, relu, columns of a block; floats: alpha."""
    *rows, n = c.output_dims(0)
    k, transposed, relu = c.dims(0)[-1], int(bool(c.attribute("transB", 0))), int(bool(c.attribute("relu", 0)))
    columns = min(n, max(STORED_COLUMNS, STORED_BLOCK // max(k, 1) // STORED_COLUMNS * STORED_COLUMNS))
    steps = [int(c.attribute("axis", -1) == axis) for axis in (0, 1)]
    return KernelCall("dequantized_gemm", (prod(rows), n, k, transposed, *steps, relu, columns), (float(c.attribute("alpha", 1.0)),),
                      scratch=k * columns * numpy_dtype(c.dtype(0)).itemsize)


@operator("DequantizedDense", domain=ORTRAIN, lower=lower_dequantized_dense, differentiable=False, takes_bfloat16=True)
def dequantized_dense(c: InferenceContext) -> list[TensorType]:
    """y [.., n] = alpha x @ op(w) + b, max(y, 0) if `relu` is set, of weights w stored as int8 with an optional scale, along `axis` if it is a vector, float16
    or bfloat16, in blocks of which one has the type of x at a time. Created by epilogue fusion only"""
    weights = transposed_shape(c.shape(1)) if c.attribute("transB", 0) else c.shape(1)
    if len(c.shape(0)) < 2 or len(weights) != 2 or c.has(3) and c.shape(3) != weights[1:]:
        raise c.error(f"expected x [.., k], weights [k, n] and a bias [n], got {[list(c.shape(i)) for i in (0, 1, 3) if c.has(i)]}")
    axis = c.attribute("axis")
    if axis not in (None, 0, 1) or c.has(2) and (prod(c.shape(2)) != (1 if axis is None else c.shape(1)[axis]) or c.dtype(1) != "int8"):
        raise c.error(f"expected scales of the integers along one axis, got {list(c.shape(2))} for {c.dtype(1)} {list(c.shape(1))}")
    return [TensorType(c.dtype(0), matmul_shape(c, c.shape(0), weights))]


def fused_gemm_decomposition(g: NodeBuilder) -> list[str]:
    attributes = {name: g.attribute(name, default) for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))}
    parameters = [float(g.attribute(name)) for name in ("activation_alpha", "activation_beta") if g.attribute(name) is not None]
    return [fused_activation(g, g.op("Gemm", *g.inputs, **attributes), *parameters)]


@operator("FusedGemm", domain=MICROSOFT, decompose=fused_gemm_decomposition)
def fused_gemm(c: InferenceContext) -> Sequence[TensorType]:
    """y = activation(alpha op(a) @ op(b) + beta c), found in models that ONNX Runtime optimized"""
    return gemm(c)
