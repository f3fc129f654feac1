"""Pooling and its gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.errors import MissingGradientError
from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, KernelCall, LoweringContext, check_inputs, operator
from ortrain.ops.shared.windows import Windows, explicit, integers, packed, windows_of

FLOATS = ("float32", "float64")
SMALL_INTEGERS = ("int8", "uint8")


# Inference


def checked_float(c: InferenceContext) -> str:
    """The dtype of input 0, which must be a float one."""
    if c.dtype(0) not in FLOATS:
        raise c.error(f"expected float32 or float64, got {c.dtype(0)}")
    return c.dtype(0)


def kernel_of(c: InferenceContext, rank: int) -> tuple[int, ...]:
    """The kernel_shape attribute for data of `rank` axes."""
    if not 3 <= rank <= 5:
        raise c.error(f"expected data of rank from 3 to 5, got rank {rank}")
    if not c.attribute("kernel_shape"):
        raise c.error("expected kernel_shape, got none")
    return integers(c, "kernel_shape", rank - 2, 1)


def pool_windows(c: InferenceContext) -> Windows:
    """The windows of a pooling node over input 0."""
    shape = c.shape(0)
    return windows_of(c, shape[2:], kernel_of(c, len(shape)))


def pooled_type(c: InferenceContext) -> TensorType:
    dtype = checked_float(c)
    return TensorType(dtype, (*c.shape(0)[:2], *pool_windows(c).output))


def gradient_type(c: InferenceContext) -> TensorType:
    """The type of dx: the one recorded for output 0, else the smallest that has dy's windows."""
    dtype, dy = checked_float(c), c.shape(0)
    kernel = kernel_of(c, len(dy))
    declared = getattr(c, "declared", None)
    recorded = declared[0] if declared else None
    if recorded is not None and recorded.shape is not None:
        if len(recorded.shape) != len(dy):
            raise c.error(f"expected a gradient of rank {len(dy)} to be recorded, got shape {list(recorded.shape)}")
        spatial: tuple[Dim, ...] = recorded.shape[2:]
        fits = windows_of(c, spatial, kernel).output
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(fits, dy[2:], strict=True)):
            raise c.error(f"expected the recorded shape {list(recorded.shape)} to have windows {list(dy[2:])}, got {list(fits)}")
    else:
        spatial = smallest_input(c, dy[2:], kernel)
    return TensorType(dtype, (*dy[:2], *spatial))


def smallest_input(c: InferenceContext, output: tuple[Dim, ...], kernel: tuple[int, ...]) -> tuple[Dim, ...]:
    """Spatial sizes for which the last window just fits, where no shape was recorded; symbols where the number of windows is one."""
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
        raise c.error(f"expected a recorded shape of the gradient, got none, and {sizes} has windows {list(fits)}, not {list(output)}")
    return tuple(sizes)


# Gradient rules


def pool_attributes(g: GradientBuilder) -> dict[str, Any]:
    """The forward attributes, SAME_* as explicit pads where the sizes are known."""
    kind = g.type(g.inputs[0])
    c = InferenceContext(g.node, [kind], [None], g.opset)
    return explicit(g.node.attributes, pool_windows(c) if kind.shape is not None else None)


def pool_gradient(g: GradientBuilder, op_type: str, *inputs: str) -> list[str | None]:
    """A gradient node whose shape is recorded, as it cannot be inferred."""
    dx = g.op(op_type, *inputs, domain="", **pool_attributes(g))
    g.declare(dx, g.declared_type(g.inputs[0]))
    return [dx]


def max_pool_gradient(g: GradientBuilder) -> list[str | None]:
    assert g.dy is not None
    if int(g.attribute("storage_order", 0)):
        raise MissingGradientError(f"expected storage_order 0 in a MaxPool that is trained through, got 1 (node {g.node.name!r})")
    return pool_gradient(g, "MaxPoolGrad", g.dy, g.output(1))


def average_pool_gradient(g: GradientBuilder) -> list[str | None]:
    assert g.dy is not None
    return pool_gradient(g, "AveragePoolGrad", g.dy)


def global_average_pool_gradient(g: GradientBuilder) -> list[str | None]:
    x, dy = g.inputs[0], g.dy
    assert dy is not None
    shape = g.shape(x)
    if shape is not None and all(isinstance(d, int) for d in shape[2:]):
        size = g.scalar(float(prod(int(d) for d in shape[2:])), dy)
    else:
        size = g.op("Div", g.op("Size", x), g.op("Size", dy))
    scaled = g.op("Scale", dy, size, domain=MICROSOFT, scale_down=1)
    if shape is not None and all(isinstance(d, int) for d in shape):
        return [g.op("Expand", scaled, g.constant(np.array(shape, np.int64)))]
    return [g.op("Expand", scaled, g.op("Shape", x))]


def global_max_pool_gradient(g: GradientBuilder) -> list[str | None]:
    """In plain operators: dy shared evenly by the elements that equal the maximum."""
    x, y, dy = g.inputs[0], g.outputs[0], g.dy
    assert dy is not None
    kind = g.type(x)
    assert kind.shape is not None
    code = {"float32": 1, "float64": 11}[kind.dtype]
    mask = g.op("Cast", g.op("Equal", x, y), to=code)
    count = g.reduce_sum(mask, list(range(2, len(kind.shape))), True)
    return [g.op("Mul", mask, g.op("Div", dy, count))]


# Lowering


def plane_ints(c: LoweringContext, data: tuple[int, ...], windows: Windows) -> tuple[int, ...]:
    """What every windowed kernel reads: planes, geometry, divisor rule, padded ends (of which a divisor counts the elements)."""
    ends = [int(e or 0) for e in windows.ends]
    padding = (0,) * (3 - len(ends)) + tuple(ends)
    return (data[0] * data[1], *packed(windows, data[2:]), int(c.attribute("count_include_pad", 0)), *padding)


def windowed(kernel: str) -> Any:
    """Lowering of a forward pooling kernel."""

    def lower(c: LoweringContext) -> KernelCall:
        if c.has_output(1) and int(c.attribute("storage_order", 0)):
            raise c.error("expected storage_order 0 for indices, got 1")          # ONNX's reference runs it
        return KernelCall(kernel, plane_ints(c, c.dims(0), pool_windows(c)))

    return lower


def max_pool_grad_lower(c: LoweringContext) -> KernelCall:
    data, pooled = c.output_dims(0), c.dims(0)
    return KernelCall("max_pool_grad", (data[0] * data[1], prod(data[2:]), prod(pooled[2:])))


def average_pool_grad_lower(c: LoweringContext) -> KernelCall:
    data = c.output_dims(0)
    return KernelCall("average_pool_grad", plane_ints(c, data, windows_of(c, data[2:], kernel_of(c, len(data)))))


def global_lower(kernel: str) -> Any:
    def lower(c: LoweringContext) -> KernelCall:
        data = c.dims(0)
        return KernelCall(kernel, (data[0] * data[1], prod(data[2:])))

    return lower


# Records


def small_integers_decomposition(g: NodeBuilder) -> list[str] | None:
    """Quantized images, as floats, which hold them exactly."""
    x = g.inputs[0]
    if g.type(x).dtype not in SMALL_INTEGERS:
        return None
    found = g.ops("MaxPool", g.op("Cast", x, to=NUMBERS["float32"]), outputs=[True, g.has_output(1)], **g.node.attributes)
    return [g.op("Cast", found[0], to=NUMBERS[g.type(x).dtype]), found[1]]


@operator("MaxPool", lower=windowed("max_pool"), gradient=max_pool_gradient, decompose=small_integers_decomposition, required_outputs=1)
def max_pool(c: InferenceContext) -> list[TensorType]:
    """y[n, c, o] = max over taps t of x[n, c, o * stride + t * dilation - pad]; indices: its flat position in x (first of equals)"""
    dtype = c.dtype(0) if c.dtype(0) in SMALL_INTEGERS else checked_float(c)
    shape = (*c.shape(0)[:2], *pool_windows(c).output)
    return [TensorType(dtype, shape), TensorType("int64", shape)][: len(c.node.outputs)]


@operator("AveragePool", lower=windowed("average_pool"), gradient=average_pool_gradient)
def average_pool(c: InferenceContext) -> list[TensorType]:
    """y[n, c, o] = sum over taps inside x / number of taps inside x (with count_include_pad: inside x and its pads)"""
    return [pooled_type(c)]


def global_type(c: InferenceContext) -> list[TensorType]:
    dtype, shape = checked_float(c), c.shape(0)
    if len(shape) < 2:
        raise c.error(f"expected data of rank 2 or more, got shape {list(shape)}")
    return [TensorType(dtype, (*shape[:2], *(1,) * (len(shape) - 2)))]


@operator("GlobalAveragePool", lower=global_lower("global_average_pool"), gradient=global_average_pool_gradient)
def global_average_pool(c: InferenceContext) -> list[TensorType]:
    """y[n, c] = mean of x[n, c, ...]"""
    return global_type(c)


@operator("GlobalMaxPool", lower=global_lower("global_max_pool"), gradient=global_max_pool_gradient)
def global_max_pool(c: InferenceContext) -> list[TensorType]:
    """y[n, c] = max of x[n, c, ...]"""
    return global_type(c)


@operator("MaxPoolGrad", lower=max_pool_grad_lower, stop_gradient=(1,))
def max_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx = 0, then dx[indices] += dy, of (dy, indices); indices are flat positions in dx"""
    if c.dtype(1) != "int64":
        raise c.error(f"expected int64 indices, got {c.dtype(1)}")
    check_inputs(c, c.shape(0), 1)
    return [gradient_type(c)]


@operator("AveragePoolGrad", lower=average_pool_grad_lower)
def average_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx = each dy spread evenly over its window: the adjoint of AveragePool"""
    return [gradient_type(c)]


# ---- norms over windows, said in other operators


def root(g: NodeBuilder, powers: str, p: float) -> str:
    """The p-th root."""
    return g.op("Sqrt", powers) if p == 2 else powers if p == 1 else g.op("Pow", powers, g.scalar(1 / p, powers))


def power(g: NodeBuilder, x: str, p: float) -> str:
    """|x| ** p"""
    return g.op("Mul", x, x) if p == 2 else g.op("Abs", x) if p == 1 else g.op("Pow", g.op("Abs", x), g.scalar(p, x))


def lp_pool_decomposition(g: NodeBuilder) -> list[str]:
    """The mean over whole windows, pads included, times their size."""
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
    return global_type(c)
