"""Pooling and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.errors import MissingGradientError
from ortrain.ir import Dim, TensorType
from ortrain.ops.reduce import reduction_call
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, Alias, InferenceContext, KernelCall, LoweringContext, check_inputs, operator
from ortrain.ops.shared.windows import Windows, explicit, integers, packed, windows_of

FLOATS = ("float32", "float64")
SMALL_INTEGERS = ("int8", "uint8")


# ---- inference


def float_dtype(c: InferenceContext) -> str:
    """Return the dtype of input 0. Raises ShapeInferenceError unless it is float32 or float64."""
    if c.dtype(0) not in FLOATS:
        raise c.error(f"expected float32 or float64, got {c.dtype(0)}")
    return c.dtype(0)


def kernel_of(c: InferenceContext, rank: int) -> tuple[int, ...]:
    """Return the attribute kernel_shape for data of `rank` axes."""
    if not 3 <= rank <= 5:
        raise c.error(f"expected data of rank from 3 to 5, got rank {rank}")
    if not c.attribute("kernel_shape"):
        raise c.error("expected kernel_shape, got none")
    return integers(c, "kernel_shape", rank - 2, 1)


def pool_windows(c: InferenceContext) -> Windows:
    """Return the windows of a pooling node over input 0."""
    shape = c.shape(0)
    return windows_of(c, shape[2:], kernel_of(c, len(shape)))


def pooled_type(c: InferenceContext) -> TensorType:
    """Return the type of the pooled data."""
    dtype = float_dtype(c)
    return TensorType(dtype, (*c.shape(0)[:2], *pool_windows(c).output))


def gradient_type(c: InferenceContext) -> TensorType:
    """Return the type of dx: the declared type of output 0, else the smallest shape with as many windows as dy has elements."""
    dtype, dy = float_dtype(c), c.shape(0)
    kernel = kernel_of(c, len(dy))
    declared = c.declared[0] if c.declared else None
    if declared is not None and declared.shape is not None:
        if len(declared.shape) != len(dy):
            raise c.error(f"expected a declared gradient of rank {len(dy)}, got shape {list(declared.shape)}")
        spatial: tuple[Dim, ...] = declared.shape[2:]
        fits = windows_of(c, spatial, kernel).output
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(fits, dy[2:], strict=True)):
            raise c.error(f"expected the declared shape {list(declared.shape)} to have windows {list(dy[2:])}, got {list(fits)}")
    else:
        spatial = smallest_input(c, dy[2:], kernel)
    return TensorType(dtype, (*dy[:2], *spatial))


def smallest_input(c: InferenceContext, output: tuple[Dim, ...], kernel: tuple[int, ...]) -> tuple[Dim, ...]:
    """Return the smallest spatial sizes with `output` windows per axis, for gradients without a declared shape; a symbol where their number is a symbol."""
    rank = len(output)
    strides, dilations, pads = integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1), integers(c, "pads", 2 * rank, 0)
    sizes: list[Dim] = []
    for i, count in enumerate(output):
        if isinstance(count, int):
            sizes.append(max(1, (count - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - pads[i] - pads[rank + i]))
        else:
            sizes.append(c.new_symbol(f"spatial{i}"))
    fits = windows_of(c, sizes, kernel).output
    if any(isinstance(b, int) and a != b for a, b in zip(fits, output, strict=True)):
        raise c.error(f"expected a declared shape of the gradient, got none, and {sizes} has windows {list(fits)}, not {list(output)}")
    return tuple(sizes)


# ---- gradient rules


def pool_attributes(g: GradientBuilder) -> dict[str, Any]:
    """Return the attributes of the forward node, with SAME_* as explicit pads where the sizes are known."""
    kind = g.type(g.inputs[0])
    c = InferenceContext(g.node, [kind], [None], g.opset)
    return explicit(g.node.attributes, pool_windows(c) if kind.shape is not None else None)


def pool_gradient(g: GradientBuilder, op_type: str, *inputs: str) -> list[str | None]:
    """Add a gradient node and declare its output type, which cannot be inferred from its inputs."""
    dx = g.op(op_type, *inputs, domain="", **pool_attributes(g))
    g.declare(dx, g.declared_type(g.inputs[0]))
    return [dx]


def max_pool_gradient(g: GradientBuilder) -> list[str | None]:
    if int(g.attribute("storage_order", 0)):
        raise MissingGradientError(f"expected storage_order 0 in a MaxPool with a gradient, got 1 (node {g.node.name!r})")
    return pool_gradient(g, "MaxPoolGrad", g.dy, g.output(1))


def average_pool_gradient(g: GradientBuilder) -> list[str | None]:
    return pool_gradient(g, "AveragePoolGrad", g.dy)


def global_average_pool_gradient(g: GradientBuilder) -> list[str | None]:
    x, dy = g.inputs[0], g.dy
    shape = g.shape(x)
    if all(isinstance(d, int) for d in shape[2:]):
        size = g.scalar(float(prod(int(d) for d in shape[2:])), dy)
    else:
        size = g.op("Div", g.op("Size", x), g.op("Size", dy))
    scaled = g.op("Scale", dy, size, domain=MICROSOFT, scale_down=1)
    if all(isinstance(d, int) for d in shape):
        return [g.op("Expand", scaled, g.constant(np.array(shape, np.int64)))]
    return [g.op("Expand", scaled, g.op("Shape", x))]


def global_max_pool_gradient(g: GradientBuilder) -> list[str | None]:
    """Return dy in equal shares for all elements that equal the maximum."""
    x, y = g.inputs[0], g.outputs[0]
    mask = g.op("Cast", g.op("Equal", x, y), to=NUMBERS[g.type(x).dtype])
    count = g.reduce_sum(mask, list(range(2, g.rank(x))), True)
    return [g.op("Mul", mask, g.op("Div", g.dy, count))]


# ---- lowering


def plane_ints(c: LoweringContext, data: tuple[int, ...], windows: Windows) -> tuple[int, ...]:
    """Pack number of planes, 18 integers of the windows, count_include_pad, and the end pads, which the divisor of an average includes."""
    ends = [int(e or 0) for e in windows.ends]
    padding = (0,) * (3 - len(ends)) + tuple(ends)
    return (data[0] * data[1], *packed(windows, data[2:]), int(c.attribute("count_include_pad", 0)), *padding)


def lower_pool(kernel: str) -> Any:
    """Return the lowering of a forward pooling kernel."""

    def lower(c: LoweringContext) -> KernelCall:
        if c.has_output(1) and int(c.attribute("storage_order", 0)):
            raise c.error("expected storage_order 0 for indices, got 1")          # the reference implementation runs it
        return KernelCall(kernel, plane_ints(c, c.dims(0), pool_windows(c)))

    return lower


def lower_max_pool_grad(c: LoweringContext) -> KernelCall:
    data, pooled = c.output_dims(0), c.dims(0)
    return KernelCall("max_pool_grad", (data[0] * data[1], prod(data[2:]), prod(pooled[2:])))


def lower_average_pool_grad(c: LoweringContext) -> KernelCall:
    data = c.output_dims(0)
    return KernelCall("average_pool_grad", plane_ints(c, data, windows_of(c, data[2:], kernel_of(c, len(data)))))


def lower_global_pool(kernel: str) -> Callable[[LoweringContext], KernelCall | Alias]:
    """Return the lowering to a reduction over all axes after the channels."""
    return lambda c: reduction_call(kernel, c.dims(0), range(2, len(c.dims(0))))


# ---- records


def small_integers_decomposition(g: NodeBuilder) -> list[str] | None:
    """Pool 8-bit integers as float32, which represents them exactly."""
    x = g.inputs[0]
    if g.type(x).dtype not in SMALL_INTEGERS:
        return None
    found = g.ops("MaxPool", g.op("Cast", x, to=NUMBERS["float32"]), outputs=[True, g.has_output(1)], **g.node.attributes)
    return [g.op("Cast", found[0], to=NUMBERS[g.type(x).dtype]), found[1]]


@operator("MaxPool", lower=lower_pool("max_pool"), gradient=max_pool_gradient, decompose=small_integers_decomposition, required_outputs=1)
def max_pool(c: InferenceContext) -> list[TensorType]:
    """y[n, c, o] = max over taps t of x[n, c, o * stride + t * dilation - pad]; indices: its flat position in x (first of equals)"""
    dtype = c.dtype(0) if c.dtype(0) in SMALL_INTEGERS else float_dtype(c)
    shape = (*c.shape(0)[:2], *pool_windows(c).output)
    return [TensorType(dtype, shape), TensorType("int64", shape)][: len(c.node.outputs)]


@operator("AveragePool", lower=lower_pool("average_pool"), gradient=average_pool_gradient)
def average_pool(c: InferenceContext) -> list[TensorType]:
    """y[n, c, o] = sum over taps inside x / number of taps inside x (with count_include_pad: inside x and its pads)"""
    return [pooled_type(c)]


def global_pool_type(c: InferenceContext) -> list[TensorType]:
    """Return the type [n, c, 1, …] of a global pooling operator."""
    dtype, shape = float_dtype(c), c.shape(0)
    if len(shape) < 2:
        raise c.error(f"expected data of rank 2 or more, got shape {list(shape)}")
    return [TensorType(dtype, (*shape[:2], *(1,) * (len(shape) - 2)))]


@operator("GlobalAveragePool", lower=lower_global_pool("reduce_mean"), gradient=global_average_pool_gradient)
def global_average_pool(c: InferenceContext) -> list[TensorType]:
    """y[n, c] = mean of x[n, c, ...]"""
    return global_pool_type(c)


@operator("GlobalMaxPool", lower=lower_global_pool("reduce_max"), gradient=global_max_pool_gradient)
def global_max_pool(c: InferenceContext) -> list[TensorType]:
    """y[n, c] = max of x[n, c, ...]"""
    return global_pool_type(c)


@operator("MaxPoolGrad", lower=lower_max_pool_grad, stop_gradient=(1,))
def max_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx = zeros, dx[indices] += dy, of (dy, indices); indices are flat positions in dx"""
    if c.dtype(1) != "int64":
        raise c.error(f"expected int64 indices, got {c.dtype(1)}")
    check_inputs(c, c.shape(0), 1)
    return [gradient_type(c)]


@operator("AveragePoolGrad", lower=lower_average_pool_grad)
def average_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dy spread evenly over each window, the gradient of AveragePool"""
    return [gradient_type(c)]


# ---- p-norms, as decompositions


def root(g: NodeBuilder, powers: str, p: float) -> str:
    """Return the p-th root of `powers`."""
    return g.op("Sqrt", powers) if p == 2 else powers if p == 1 else g.op("Pow", powers, g.scalar(1 / p, powers))


def power(g: NodeBuilder, x: str, p: float) -> str:
    """Return |x| ** p."""
    return g.op("Mul", x, x) if p == 2 else g.op("Abs", x) if p == 1 else g.op("Pow", g.op("Abs", x), g.scalar(p, x))


def lp_pool_decomposition(g: NodeBuilder) -> list[str]:
    """Return the p-th root of the mean of |x| ** p over each window, pads included, times the size of the window."""
    p, kernel = float(g.attribute("p", 2)), tuple(g.attribute("kernel_shape"))
    if g.attribute("ceil_mode", 0):
        raise g.error("expected ceil_mode 0, got 1")
    attributes = {name: value for name, value in g.node.attributes.items() if name not in ("p", "ceil_mode")}
    mean = g.op("AveragePool", power(g, g.inputs[0], p), count_include_pad=1, **attributes)
    return [root(g, g.op("Mul", mean, g.scalar(float(prod(kernel)), mean)), p)]


@operator("LpPool", decompose=lp_pool_decomposition)
def lp_pool(c: InferenceContext) -> list[TensorType]:
    """y = the p-norm of each window"""
    return [pooled_type(c)]


def global_lp_pool_decomposition(g: NodeBuilder) -> list[str]:
    x, p = g.inputs[0], float(g.attribute("p", 2))
    return [root(g, g.reduce_sum(power(g, x, p), list(range(2, g.rank(x))), keepdims=True), p)]


@operator("GlobalLpPool", decompose=global_lp_pool_decomposition)
def global_lp_pool(c: InferenceContext) -> list[TensorType]:
    """y = the p-norm of each image and channel"""
    return global_pool_type(c)
