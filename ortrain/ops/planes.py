"""Convolution of planes [n, c, h, w], which plans substitute for ONNX's Conv in regions that gain nothing by channels-last data.

No model file contains these operators: ortrain.plan.layout creates them. Such a convolution is a product of its weight and each image, or depthwise."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ortrain.ir import TensorType
from ortrain.ops.channels_last import limits
from ortrain.ops.conv import ITEM_SIZE, conv_windows
from ortrain.ops.registry.constants import surely_equal, symbolic_min
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_gradient, check_inputs, operator
from ortrain.ops.shared.conv_algorithms import MIN_CHANNELS, ROOM, is_pointwise
from ortrain.ops.shared.conv_geometry import UNIT, Geometry, geometry_of

SMALL_PLANE_PRODUCT, PLANE_PRODUCT_SUMS, PLANE_TAPS, BAND_ELEMENTS = 1 << 21, 16, 1024, 1 << 14
"""Equal to the constants in planes/products.h and planes/depthwise.h."""
MIN_PIXELS = 64
"""Pixels of an image from which its product by itself is as fast as one of all images channels-last, with the transposes that takes: from 8 x 8 on it took
0.3 to 1.04 of the time, on 7 x 7 1.1 to 1.2, and on 3 x 3 1.5."""
MIN_DEPTHWISE_PIXELS = 14 * 14
"""The same of the outputs of a depthwise convolution: planes of 14 x 14 took 0.92 to 1.04 of the time, larger ones 0.14 to 1.02, 100 outputs of 9 taps 1.1, and
those of 7 x 7 1.2 to 2.3."""


def plane_geometry(c: InferenceContext, x: int, w: int) -> tuple[Geometry, bool] | None:
    """Return the geometry of a convolution of planes, and whether it is depthwise; None where it is neither depthwise nor a product of its weight and images.

    x, w: the indices of the inputs data [n, c, ...] and weight [k, c / group, ...]. The planes of a product are one row, whatever axes they have."""
    images, channels, *spatial = c.type(x).sizes
    filters, group = c.type(w).sizes[0], int(c.attribute("group", 1))
    v = geometry_of((images, *spatial, channels), filters, group, conv_windows(c, x, w))
    if v.empty:
        return None
    if is_pointwise(v) and v.strides == UNIT:
        pixels = prod(spatial)
        return replace(v, images=images, planes=1, rows=1, columns=pixels, out_planes=1, out_rows=1, out_columns=pixels), False
    each = v.flat and v.group == v.channels == v.filters and surely_equal(v.images, images) and v.taps <= PLANE_TAPS
    return (v, True) if each and copied_elements(v) <= ROOM else None


def suits_planes(c: InferenceContext, x: int, w: int) -> bool:
    """Return whether a convolution works on planes, and they are so large that it is as fast. x, w: as for plane_geometry."""
    found = plane_geometry(c, x, w)
    return found is not None and found[0].out_rows * found[0].out_columns >= (MIN_DEPTHWISE_PIXELS if found[1] else MIN_PIXELS)


def copied_elements(v: Geometry) -> int:
    """Return the elements of a worker's workspace that a depthwise convolution and its gradients need: the copies of one row of outputs, or of a band."""
    reach_y, reach_x = ((v.kernel[axis] - 1) * v.dilations[axis] // v.strides[axis] for axis in (1, 2))
    phases = v.strides[1] * v.strides[2]
    pitch = max(v.out_columns, (v.columns - 1 + v.pads[2]) // v.strides[2] + 1) + reach_x
    return (phases * (2 + reach_y) + 1) * pitch + BAND_ELEMENTS + (phases + 2) * (MIN_CHANNELS + reach_x)


def call_ints(c: LoweringContext, x: int, w: int) -> tuple[Geometry, tuple[int, ...]]:
    """Return the geometry and the integers of a kernel's call that describe it."""
    found = plane_geometry(c, x, w)
    assert found is not None
    return found[0], (*found[0].ints(), int(found[1]))


def lower_conv(c: LoweringContext) -> KernelCall:
    limited, low, high = limits(c)
    return KernelCall("planes_conv", (*call_ints(c, 0, 1)[1], limited), (low, high))


def lower_conv_grad(c: LoweringContext) -> KernelCall:
    v, ints = call_ints(c, 1, 2)
    weights = v.filters * v.channels
    sums = symbolic_min(v.images, PLANE_PRODUCT_SUMS) * weights if c.has_output(1) and v.group == 1 and weights * v.out_columns < SMALL_PLANE_PRODUCT else 0
    shape_only = () if c.has_output(1) else (1,)
    return KernelCall("planes_conv_grad", (*ints, 0), (0.0, 0.0), scratch=sums * ITEM_SIZE[c.dtype(0)],
                      shape_only_inputs=shape_only if c.has_output(0) else (*shape_only, 2))


@operator("PlanesConv", domain=ORTRAIN, lower=lower_conv, takes_bfloat16=True)
def conv(c: InferenceContext) -> list[TensorType]:
    """y [n, k, oh, ow] = clip(Conv(x [n, c, h, w], w) + bias, low, high) of a 1 x 1 kernel without groups, strides and pads, or of one filter per channel"""
    windows, filters = conv_windows(c, 0, 1), c.shape(1)[0]
    check_inputs(c, (filters,), *((2,) if c.has(2) else ()))
    if plane_geometry(c, 0, 1) is None:
        raise c.error(f"expected a 1 x 1 kernel without groups, strides and pads, or one filter for each channel, got {list(c.shape(0))} and "
                      f"{list(c.shape(1))}")
    return [TensorType(c.dtype(0), (c.shape(0)[0], filters, *windows.output))]


@operator("PlanesConvGrad", domain=ORTRAIN, lower=lower_conv_grad, takes_bfloat16=True)
def conv_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dw, db) of (dy, x, w)"""
    check_gradient(c, conv)
    return [c.type(1), c.type(2), TensorType(c.dtype(2), (c.shape(2)[0],))][: len(c.node.outputs)]
