"""How convolutions on channels-last data are computed: their sizes, which way is the fastest for them, and the memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any

from ortrain.ops.registry.constants import at_least, select_if, symbolic_max, symbolic_min
from ortrain.ops.shared.windows import Windows

MIN_CHANNELS = 16
"""The widest vector in elements: kernels that compute the last vector of channels twice need a whole one."""
MAX_TAPS = 128
ROOM = 1 << 19
"""Elements of float64 in the memory that each worker has of its own, of which engine.pyx has the size."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one convolution or pool."""

    images: int
    rows: int
    columns: int
    channels: int
    filters: int
    group: int
    out_rows: int
    out_columns: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    @property
    def pixels(self) -> int:
        """Of the output."""
        return self.images * self.out_rows * self.out_columns

    @property
    def depth(self) -> int:
        """Products in one output."""
        return self.taps * self.channels // self.group

    @property
    def group_filters(self) -> int:
        return self.filters // self.group

    def ints(self) -> tuple[int, ...]:
        """As the struct Geometry of channels_last/geometry.h has them."""
        return (self.images, self.rows, self.columns, self.channels, self.filters, self.group, self.out_rows, self.out_columns,
                *self.kernel, *self.strides, *self.pads, *self.dilations)


def two(values: tuple[Any, ...]) -> tuple[int, int]:
    return int(values[0] or 0), int(values[1] or 0)


def geometry_of(data: tuple[int, ...], filters: int, group: int, windows: Windows) -> Geometry:
    """The geometry over data [n, h, w, c]."""
    out = two(windows.output)
    return Geometry(data[0], data[1], data[2], data[3], filters, group, *out, two(windows.kernel), two(windows.strides), two(windows.begins),
                    two(windows.dilations))


class Method(IntEnum):
    """The algorithms of convolutions and their gradients. Same names and values as in channels_last/conv.h."""

    POINTWISE_GEMM = 1
    """1 x 1 convolution as one GEMM over all pixels, with strides over a gathered copy of those that are used."""
    WINOGRAD = 2
    """Winograd's F(4 x 4, 3 x 3), with stride 2 by phases."""
    IM2COL = 3
    """A GEMM over blocks of the im2col matrix."""
    DEPTHWISE = 4
    TAP_GEMM = 5
    """Only for weight gradients: one GEMM per tap, in blocks of filters and channels."""
    DIRECT = 6
    """A GEMM that reads windows in place, without im2col."""
    WINOGRAD_1D = 7
    """Winograd's F(4, 5) along the width, for kernels 5 wide."""
    IMPLICIT_GEMM = 8
    """A GEMM on AMX tiles whose im2col operand is never stored. float32 only."""


PLANES, STRIDED_PLANES, PLANE_PAD, FEW_TILES, FILTER_BLOCK, DEPTH_BLOCK, WHOLE_PANEL = 36, 81, 16, 128, 64, 128, 32
"""As in channels_last/winograd.h."""
GRADIENT_ROWS, PACKED_COLUMNS, TAP_CHANNELS, DEPTHWISE_SLICES = 96, 32, 128, 16
"""As in channels_last/im2col.h and channels_last/depthwise.h."""
WEIGHT_FILTERS, WEIGHT_CHANNELS, WEIGHT_PIXELS = 256, 256, 128
"""As in channels_last/weight_gradient.h."""
MAX_SEGMENTS, PADDED_COPY_BYTES = 64, 1 << 17
"""As in channels_last/direct.h."""
WINOGRAD_1D_PLANES, WINOGRAD_1D_TAPS = 8, 5
"""As in channels_last/winograd_1d.h."""
PANEL_SIZE, MIN_TILED_SIDE, MIN_TILED_DEPTH, MIN_TILED_PRODUCTS, MIN_FILLED = 32, 48, 64, 1 << 20, 70
"""As in matmul/amx_eligibility.h."""
MAX_WINDOW_TAPS = 64
"""As in matmul/implicit_gemm.h."""
POINTWISE_PIXELS = 8192
"""As in channels_last/pointwise.h."""
BLOCK_PIXELS = 1024
"""From so many pixels the weights' gradient of a 1 x 1 convolution is summed in blocks …"""
PRODUCT_WEIGHTS = 1 << 16
"""… but where weights are so many: 512 to 128 on 28 x 28 3.3 ms in blocks, 2.7 as a product; 256 to 64 on 56 x 56 4.0 and 4.3."""
SPREAD = 16
"""Items aimed at: enough for eight threads, and a constant, so that results do not depend on their number."""
MAX_SUMS = 1 << 20
"""Elements of all partial sums: four megabytes."""
MIN_ROWS = 48
"""Pixels for which it pays to go through all filters."""
GATHERED = 1 << 17
"""Elements of the rows that are gathered at a time: half a megabyte, the second cache."""


def up(n: int, to: int) -> int:
    return -(-n // to) * to


def suits_amx(m: int, n: int, k: int) -> bool:
    """Whether tiles take a product of these sizes in float32, where the processor has them."""
    filled = 100 * m * n >= MIN_FILLED * up(m, PANEL_SIZE) * up(n, PANEL_SIZE)
    return min(m, n) >= MIN_TILED_SIDE and k >= MIN_TILED_DEPTH and m * n * k >= MIN_TILED_PRODUCTS and filled


def suits_tiles(v: Geometry) -> bool:
    """Whether products of windows suit tiles, that of the least class of pixels of the data's gradient too."""
    least_class = v.images * (v.rows // v.strides[0]) * (v.columns // v.strides[1])
    whole = v.group == 1 and v.channels % PANEL_SIZE == v.filters % PANEL_SIZE == 0
    return whole and 1 < v.taps <= MAX_WINDOW_TAPS and suits_amx(v.pixels, v.filters, v.depth) and suits_amx(least_class, v.channels, v.filters)


def method_of(v: Geometry, direct: bool, tiles: bool = False) -> Method:
    """The fastest way; direct excludes Winograd's, whose rounding errors are larger (docs/performance.md), tiles says whether there are any.

    Winograd's is faster than tiles but with strides (512 channels on 7 x 7: 3.7 against 5.9 ms)."""
    method = method_in_vectors(v, direct)
    others = method in (Method.IM2COL, Method.DIRECT) or (method == Method.WINOGRAD and v.strides != (1, 1))
    return Method.IMPLICIT_GEMM if tiles and others and suits_tiles(v) else method


def method_in_vectors(v: Geometry, direct: bool) -> Method:
    """The fastest way without tiles."""
    if v.taps == 1 and v.group == 1 and v.pads == (0, 0) and all(
            (out - 1) * stride < size for out, stride, size in zip((v.out_rows, v.out_columns), v.strides, (v.rows, v.columns), strict=True)):
        return Method.POINTWISE_GEMM
    three = v.kernel == (3, 3) and v.dilations == (1, 1) and v.group == 1
    whole = v.channels % 16 == v.filters % 16 == 0 and max(v.channels, v.filters) <= 4096
    if not direct and three and whole and (phases_pay(v) or (v.strides == (1, 1) and max(v.pads) <= 2)):
        return Method.WINOGRAD
    if v.group == v.channels == v.filters and v.channels >= MIN_CHANNELS and v.taps <= MAX_TAPS:
        return Method.DEPTHWISE
    plain = v.strides == v.dilations == (1, 1) and v.group == 1 and min(v.channels, v.filters) >= MIN_CHANNELS
    if not direct and plain and v.kernel[1] == WINOGRAD_1D_TAPS and max(v.channels, v.filters) <= 4096 and fits_rows(v):
        return Method.WINOGRAD_1D
    in_place = v.group == 1 and v.dilations[1] == 1 and v.filters >= MIN_CHANNELS
    return Method.DIRECT if in_place and wide_rows(v) <= ROOM and not reads_filters_often(v) else Method.IM2COL


def phases_pay(v: Geometry) -> bool:
    """Whether Winograd's way pays for 3 x 3 with stride 2, by phases: a quarter to a third where its tiles are filled, nothing for 256 channels on 14 x 14.

    Filters of many channels would else be packed for few pixels (512 on 14 x 14: 8.5 to 6.8 ms forward)."""
    filled = 7 * 16 * tiles_of(v) <= 8 * v.pixels
    return v.strides == (2, 2) and v.pads == (1, 1) and (filled or (min(v.channels, v.filters) >= 512 and tiles_of(v) <= FEW_TILES))


def reads_filters_often(v: Geometry) -> bool:
    """Whether windows would go through filters that the second cache cannot hold for few pixels at a time: 512 of 512 channels, 3 x 3, for each row of 7."""
    row = ((v.out_columns - 1) * v.strides[1] + v.kernel[1]) * v.channels
    rows = (PADDED_COPY_BYTES // 4 // row - (v.kernel[0] - 1) * v.dilations[0] - 1) // v.strides[0] + 1
    return v.filters * v.depth > GATHERED and min(max(rows, 1), v.out_rows) * v.out_columns < MIN_ROWS


def wide_rows(v: Geometry) -> int:
    """Elements of the input, between zeros, that one row of outputs sees: what a worker copies at least, or for the weights a few rows of outputs' worth."""
    row = ((v.out_columns - 1) * v.strides[1] + v.kernel[1]) * v.channels
    return row * max((v.kernel[0] - 1) * v.dilations[0] + 1, MAX_SEGMENTS)


def fits(v: Geometry) -> bool:
    """Whether a worker's own memory holds what gathering needs, whichever way is taken, and groups are wide enough to be worth it."""
    if v.pixels == 0 or v.channels == 0 or v.filters == 0:
        return False
    if v.group > 1 and method_of(v, True) != Method.DEPTHWISE and min(v.channels, v.filters) < 8 * v.group:
        return False
    spare = up(v.group_filters, PACKED_COLUMNS) if v.group_filters % PACKED_COLUMNS else 0
    gathered = weight_method_of(v, Method.IM2COL, False, True) == Method.IM2COL
    return 6 * (v.depth + up(v.group_filters, PACKED_COLUMNS)) <= ROOM and GRADIENT_ROWS * (v.depth + spare) * gathered <= ROOM


def rows_at_a_time(v: Geometry) -> int:
    """Pixels whose windows are gathered at once: as many as fill GATHERED, at least MIN_ROWS where they fit, and enough items to share."""
    width = v.depth + up(v.group_filters, PACKED_COLUMNS)
    rows = min(480, max(6, GATHERED // v.depth))
    if rows < MIN_ROWS and MIN_ROWS * width <= ROOM // 2:
        rows = MIN_ROWS
    rows = min(rows, ROOM // width)
    return symbolic_max(min(rows, MIN_ROWS), symbolic_min(rows, up(-(-v.pixels // SPREAD), 6)))


def data_rows(v: Geometry) -> int:
    """The same of the gradient of the data by rows: where taps are taken one by one, all pixels of an image whose gradient the second cache holds."""
    channels, inside = v.channels // v.group, v.out_rows * v.out_columns
    if channels < TAP_CHANNELS or channels % PACKED_COLUMNS:
        return rows_at_a_time(v)
    blocks = max(1, -(-inside // min(max(MIN_ROWS, GATHERED // v.group_filters), ROOM // channels)))
    return -(-inside // blocks)


def weight_way(v: Geometry, method: Method, tiles: bool) -> tuple[int, int, int]:
    """(method, partial sums, elements of scratch) of the weights' gradient, where the way of the convolution is known."""
    ways = [weight_method_of(v, method, tiles, many) for many in (True, False)]
    many = at_least(v.pixels, BLOCK_PIXELS)
    return select_if(many, *ways), select_if(many, *(slices_of(v, way) for way in ways)), select_if(many, *(weight_scratch(v, way) for way in ways))


def weight_method_of(v: Geometry, method: Method, tiles: bool, many: bool) -> Method:
    """The same for `many` pixels, BLOCK_PIXELS at least, or for fewer."""
    if method == Method.POINTWISE_GEMM and many and v.filters * v.channels < PRODUCT_WEIGHTS:
        return method if tiles and v.strides == (1, 1) and suits_amx(v.filters, v.channels, v.pixels) else Method.TAP_GEMM
    wide = v.taps > 1 and v.depth > 384 and v.channels // v.group >= 32
    return Method.TAP_GEMM if method in (Method.IM2COL, Method.DIRECT) and wide else method


def slices_of(v: Geometry, method: Method) -> int:
    """Partial sums of the weights' gradient."""
    if method == Method.WINOGRAD:
        return winograd_slices(v)
    if method == Method.TAP_GEMM:
        items = v.group * v.taps * -(-v.group_filters // WEIGHT_FILTERS) * -(-v.channels // v.group // WEIGHT_CHANNELS)
        return symbolic_max(1, symbolic_min(-(-SPREAD // items), -(-v.pixels // WEIGHT_PIXELS)))
    if method == Method.DIRECT:
        return symbolic_max(1, symbolic_min(min(SPREAD, MAX_SUMS // (v.depth * v.filters)), v.images * v.out_rows))
    return symbolic_max(1, symbolic_min(-(-SPREAD // v.group), -(-v.pixels // GRADIENT_ROWS)))


def row_planes(v: Geometry, images: int) -> int:
    """Elements of the planes of so many images and of what comes of them."""
    tiles = -(-v.out_columns // 4)
    return WINOGRAD_1D_PLANES * (images * tiles * (v.rows * v.channels + v.out_rows * v.filters) + 2 * PLANE_PAD)


def fits_rows(v: Geometry) -> bool:
    """Whether Winograd's way along rows pays and a worker's own memory holds the planes of an image, forward and backward."""
    data_tiles, most_pads = -(-v.columns // 4), all(pad < size for pad, size in zip(v.pads, v.kernel, strict=True))
    data = WINOGRAD_1D_PLANES * (data_tiles * (v.rows * v.channels + v.out_rows * v.filters) + 2 * PLANE_PAD)
    return v.out_columns >= 4 and most_pads and max(row_planes(v, 1), data) <= ROOM


def row_images(v: Geometry) -> int:
    """Images transformed at a time for the weights' gradient: four megabytes of planes."""
    return symbolic_max(1, symbolic_min(v.images, (1 << 20) // row_planes(v, 1)))


def row_filters(v: Geometry, depth: int, outputs: int) -> int:
    """Elements of the transformed filters."""
    return WINOGRAD_1D_PLANES * (v.kernel[0] * depth * up(outputs, MIN_CHANNELS) + PLANE_PAD)


def tiles_of(v: Geometry, data: bool = False) -> int:
    """Of outputs, or of the data whose gradient is taken: 4 x 4 pixels, and with stride 2 8 x 8 of the data."""
    rows, columns, size = (v.rows, v.columns, 4 * v.strides[0]) if data else (v.out_rows, v.out_columns, 4)
    return v.images * -(-rows // size) * -(-columns // size)


def tile_planes(v: Geometry) -> int:
    return PLANES if v.strides == (1, 1) else STRIDED_PLANES


def winograd_scratch(tiles: int, planes: int, depth: int, outputs: int) -> int:
    if tiles <= FEW_TILES:
        return planes * (tiles * depth + PLANE_PAD)
    block = min(DEPTH_BLOCK, depth) * up(min(FILTER_BLOCK, outputs), WHOLE_PANEL) + PLANE_PAD
    return PLANES * block * -(-depth // DEPTH_BLOCK) * -(-outputs // FILTER_BLOCK)


def winograd_slices(v: Geometry) -> int:
    """Partial sums of the weights' gradient, each over tiles that one worker transforms and multiplies; 0 where tiles are few or sums too large."""
    sums, tiles = PLANES * v.channels * v.filters, tiles_of(v)
    return min(SPREAD, max(4, MAX_SUMS // sums), tiles // 32) if tiles > FEW_TILES and sums <= MAX_SUMS else 0


def winograd_block(v: Geometry) -> int:
    """Tiles transformed at a time for the weights' gradient: four megabytes of them, where they are many; of a slice, so many that a worker's memory and half
    of the second cache hold them (64 channels: 3.6 to 2.3 ms)."""
    tiles, planes, width = tiles_of(v), tile_planes(v), v.channels + v.filters
    if winograd_slices(v):
        return max(1, min(tiles, max(48, (1 << 18) // (planes * width)), (ROOM // planes - 2 * PLANE_PAD) // (width + 2 * PLANE_PAD)))
    return tiles if tiles <= FEW_TILES else min(tiles, max(64, (1 << 20) // (planes * width)))


def winograd_weight_scratch(v: Geometry) -> int:
    sums = PLANES * (v.channels * v.filters + PLANE_PAD)
    if slices := winograd_slices(v):
        return slices * sums
    transformed = tile_planes(v) * (winograd_block(v) * (v.channels + v.filters + 2 * PLANE_PAD) + 2 * PLANE_PAD)
    return transformed + (sums if tiles_of(v) > FEW_TILES else 0)


def seen(v: Geometry) -> int:
    """Elements of the pixels that a product with strides sees."""
    return 0 if v.strides == (1, 1) else v.pixels * v.channels


def packed_points(v: Geometry) -> int:
    """Elements of the weights of a 1 x 1 convolution in panels (channels_last/pointwise.h)."""
    return v.channels * v.filters * at_least(v.pixels, POINTWISE_PIXELS)


def forward_scratch(v: Geometry, method: Method) -> int:
    if method == Method.IMPLICIT_GEMM:
        return v.filters * v.depth                   # the filters, turned
    if method == Method.WINOGRAD:
        return winograd_scratch(tiles_of(v), tile_planes(v), v.channels, v.filters)
    if method == Method.WINOGRAD_1D:
        return row_filters(v, v.channels, v.filters)
    return {Method.IM2COL: v.group * up(v.group_filters, PACKED_COLUMNS) * v.depth, Method.DEPTHWISE: v.taps * v.channels,
            Method.DIRECT: up(v.filters, MIN_CHANNELS) * v.depth}.get(method, seen(v) + packed_points(v))


def data_scratch(v: Geometry, method: Method) -> int:
    if method == Method.IMPLICIT_GEMM:
        return v.filters * v.depth                   # the filters, turned
    if method == Method.WINOGRAD:
        return winograd_scratch(tiles_of(v, data=True), tile_planes(v), v.filters, v.channels)
    if method == Method.WINOGRAD_1D:
        return row_filters(v, v.filters, v.channels)
    return {Method.IM2COL: v.filters * up(v.depth, PACKED_COLUMNS), Method.DEPTHWISE: v.taps * v.channels}.get(method, seen(v) + packed_points(v))


def weight_scratch(v: Geometry, method: Method) -> int:
    if method == Method.IMPLICIT_GEMM:
        return v.filters * v.depth                   # the filters, turned
    if method == Method.WINOGRAD:
        return winograd_weight_scratch(v)
    if method == Method.WINOGRAD_1D:
        return row_planes(v, row_images(v)) + row_filters(v, v.channels, v.filters)
    if method == Method.DIRECT:
        return slices_of(v, method) * v.depth * up(v.filters, MIN_CHANNELS)
    if method == Method.IM2COL:
        return slices_of(v, method) * v.group * v.depth * up(v.group_filters, PACKED_COLUMNS)
    if method == Method.TAP_GEMM:
        return slices_of(v, method) * v.filters * v.taps * up(v.channels // v.group, MIN_CHANNELS)
    return DEPTHWISE_SLICES * v.taps * up(v.channels, MIN_CHANNELS) if method == Method.DEPTHWISE else seen(v)
