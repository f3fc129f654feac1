"""Choice of algorithms for channels-last convolutions: which one is the fastest for given sizes, its block sizes and its scratch memory."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

from ortrain.ops.registry.constants import at_least, select_if, surely_equal, symbolic_max, symbolic_min
from ortrain.ops.shared.conv_geometry import UNIT, Geometry
from ortrain.ops.shared.windows import three

MIN_CHANNELS = 16
"""Elements of the widest vector. Kernels let the last vector of channels overlap the one before it, so they need at least one whole vector."""
MAX_TAPS, GROUPED_TAPS = 128, 1024
"""Equal to the constants in channels_last/geometry.h and grouped.h."""
ROOM = 1 << 19
"""Elements of float64 in the workspace of a worker, whose size is MIN_WORKSPACE in engine.pyx."""


class Method(IntEnum):
    """The algorithms, with the names and numbers of channels_last/conv.h."""

    POINTWISE_GEMM = 1
    """1 x 1 kernels: one GEMM on the data; with strides, on a copy of the pixels that the windows cover."""
    WINOGRAD = 2
    """3 x 3 kernels: Winograd's F(4 x 4, 3 x 3) (Lavin and Gray, arXiv 1509.09308); with stride 2 by phases."""
    IM2COL = 3
    """im2col: windows are copied into the rows of a matrix, which a GEMM multiplies by the filters."""
    GROUPED = 4
    """Narrow groups, depthwise convolution of more than 3 columns included: lanes of a vector are filters of one or several groups."""
    TAP_GEMM = 5
    """Weight gradient only: one GEMM per tap, in blocks of filters and channels."""
    DIRECT = 6
    """Direct convolution: windows are read in place."""
    WINOGRAD_1D = 7
    """Kernels with 3, 5 or 7 columns, or one column and as many rows: one-dimensional Winograd along the rows, or along the columns."""
    IMPLICIT_GEMM = 8
    """Implicit GEMM on AMX tiles or bfloat16 pairs, whose rows are windows, forward and backward; float32 only."""
    DEPTHWISE = 9
    """Depthwise convolution of at most 3 x 3 taps, whose pixels are read in place."""


PLANES, STRIDED_PLANES, PLANE_PAD, FEW_TILES, FILTER_BLOCK, DEPTH_BLOCK, WHOLE_PANEL = 36, 81, 16, 128, 64, 128, 32
"""Equal to the constants in channels_last/winograd.h."""
GRADIENT_ROWS, PACKED_COLUMNS, TAP_CHANNELS = 96, 32, 128
"""Equal to the constants in channels_last/im2col.h."""
DEPTHWISE_COLUMNS, DEPTHWISE_TAPS = 3, 9
"""Largest kernels of DEPTHWISE, whose taps stay in registers. Forward, in the data gradient and in the weight gradient of 3 x 3 with stride 2 it reaches 60, 30
and 51 GFLOP/s; GROUPED, which copies pixels first, reaches 27, 40 and 25, but is three to four times as fast for 5 x 5 and 7 x 7."""
DEPTHWISE_SLICES = 16
"""Equal to the constant in channels_last/depthwise.h."""
GROUPED_COLUMNS = 12
"""Equal to the constant in channels_last/grouped.h."""
GROUPED_PIXELS = 512
"""Minimum number of pixels of a partial sum of the weight gradient in GROUPED."""
WEIGHT_FILTERS, WEIGHT_CHANNELS, WEIGHT_PIXELS = 256, 256, 128
"""Equal to the constants in channels_last/weight_gradient.h."""
MAX_SEGMENTS, PADDED_COPY_BYTES, MAX_COPIED_PLANES, SUMMED_PIXELS = 64, 1 << 17, 4, 96
"""Equal to the constants in channels_last/direct.h."""
WINOGRAD_1D_PLANES, WINOGRAD_1D_PART, WINOGRAD_1D_TILES = 8, 1 << 16, 8
"""Equal to the constants in channels_last/winograd_1d.h."""
WINOGRAD_1D_TAPS, ROW_WINOGRAD_SAVING = (3, 5, 7), 140
"""Widths of kernels, and the least number of products of direct convolution, in percent of those of Winograd's tiles, which may be partly empty."""
TILED_POINTS, TILED_PRODUCTS = 128, 1 << 18
"""Points and products from which a convolution is faster on tiles of bfloat16 numbers than any algorithm on vectors of float32. On a Xeon (Granite Rapids)
16 to 32 channels on one image of 8 x 8 take 1.08 of the time with all gradients, 16 to 16 on 12 x 12 0.88, 8 to 8 on 16 images of 32 x 32 0.32."""
PANEL_SIZE, MIN_TILED_SIDE, MIN_TILED_DEPTH, MIN_TILED_PRODUCTS, MIN_FILLED = 32, 48, 64, 1 << 20, 70
"""Equal to the constants in matmul/amx_eligibility.h."""
MAX_WINDOW_TAPS = 64
"""Equal to the constant in matmul/implicit_gemm.h."""
MIN_PAIR_SIDE, MIN_PAIR_PRODUCTS, MAX_PAIR_DEPTH = 8, 256, 3 << 12
"""Limits of implicit GEMM on bfloat16 pairs. Fewer channels or filters, or fewer products of them, gain less by bfloat16 than rounding takes: from 8 to 32
channels take 0.67 of float32's time on 32 x 32 and 0.91 on 7 x 7, from 3 to 24 twice of it. Filters of the greatest depth fit into a worker's workspace."""
POINTWISE_PIXELS, POINTWISE_DOT_FILTERS = 8192, 8
"""Equal to the constants of channels_last/pointwise.h and direct.h."""
BLOCK_PIXELS = 1024
"""Minimum number of pixels for computing the weight gradient of a 1 x 1 convolution in BLOCKS."""
PRODUCT_WEIGHTS = 1 << 16
"""Number of weights from which one GEMM is faster than BLOCKS: 512 to 128 channels on 28 x 28 take 2.7 instead of 3.3 ms, 256 to 64 on 56 x 56 4.3 instead
of 4.0 ms."""
FEW_SIDE = 8
"""Filters or channels below which one GEMM is faster whatever the number of weights: 16 to 4 channels on 16 images of 32 x 32 take 0.02 instead of 0.08 ms, 4
to 32 take 0.06 instead of 0.27, with AVX2 0.12 instead of 0.26."""
DIRECT_WEIGHTS = 1 << 18
"""Number of weights of a group up to which the sums of direct convolution stay in the L2 cache: dilated 3 x 3 kernels of 64 and 128 channels take 18 and 14 %
less time than with one GEMM per tap, those of 256 channels 10 % more."""
FEW_FILTERS = 40
"""Number of filters up to which direct convolution sums the weight gradient faster than one GEMM per tap, which copies the pixels of each tap: with AVX2, 48
to 12 filters of 3 x 3 on 32 x 32 take 0.5 of the time, 32 to 32 of 7 x 7 with strides 0.6, 64 to 32 of 5 x 5 0.9, 64 to 64 1.2."""
SPREAD = 16
"""Number of work items to aim at: enough for eight threads. It is constant, so that results do not depend on the number of threads."""
MAX_SUMS = 1 << 20
"""Maximum number of elements of all partial sums: 4 MiB in float32."""
MIN_ROWS = 48
"""Minimum number of pixels per pass over all filters, so that reading the filters is worth it."""
GATHERED = 1 << 17
"""Elements of the im2col rows of one block: 512 KiB in float32, which fit into the L2 cache."""


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def suits_amx(m: int, n: int, k: int) -> bool:
    """Return whether a GEMM of these sizes runs on AMX tiles if the processor has them."""
    filled = 100 * m * n >= MIN_FILLED * round_up(m, PANEL_SIZE) * round_up(n, PANEL_SIZE)
    return min(m, n) >= MIN_TILED_SIDE and k >= MIN_TILED_DEPTH and m * n * k >= MIN_TILED_PRODUCTS and filled


def suits_tiles(v: Geometry) -> bool:
    """Return whether implicit GEMM on AMX tiles suits a convolution and its gradients.

    With strides, the data gradient is one GEMM per class of pixels that the same taps reach; the smallest class decides."""
    least_class = v.images * (v.rows // v.strides[1]) * (v.columns // v.strides[2])
    whole = v.flat and v.group == 1 and v.channels % PANEL_SIZE == v.filters % PANEL_SIZE == 0
    return whole and 1 < v.taps <= MAX_WINDOW_TAPS and suits_amx(v.pixels, v.filters, v.depth) and suits_amx(least_class, v.channels, v.filters)


def supports_pairs(v: Geometry) -> bool:
    """Return whether implicit GEMM on bfloat16 pairs supports a convolution and its gradients."""
    return v.flat and v.group == 1 and 1 < v.taps <= MAX_WINDOW_TAPS and v.depth <= MAX_PAIR_DEPTH and v.filters * v.taps <= MAX_PAIR_DEPTH


def suits_pairs(v: Geometry) -> bool:
    """Return whether implicit GEMM on bfloat16 pairs supports a convolution and its gradients, and has enough products for each element that it rounds."""
    return supports_pairs(v) and min(v.channels, v.filters) >= MIN_PAIR_SIDE and v.channels * v.filters >= MIN_PAIR_PRODUCTS


def method_of(v: Geometry, direct: bool, tiles: bool = False, pairs: bool = False) -> Method:
    """Return the fastest algorithm of the forward pass and the data gradient.

    direct: exclude Winograd's algorithms, whose rounding errors are larger (docs/performance.md). tiles: whether AMX tiles may be used. Without strides,
    Winograd is faster than tiles of float32, along rows only with 5 taps; with strides it is slower (512 channels on 7 x 7: 5.9 instead of 3.7 ms). pairs:
    whether operands may be rounded to bfloat16: on tiles to one part, elsewhere to pairs."""
    method = vector_method(v, direct)
    slower = method in (Method.IM2COL, Method.DIRECT) or (method == Method.WINOGRAD and v.strides != UNIT)
    if tiles and pairs:
        tiled = suits_rounded_tiles(v)
    elif tiles:
        tiled = suits_tiles(v) and (slower or (method == Method.WINOGRAD_1D and along_rows(v).kernel[2] != 5))
    else:
        tiled = slower and pairs and suits_pairs(v)
    return Method.IMPLICIT_GEMM if tiled else method


def suits_rounded_tiles(v: Geometry) -> bool:
    """Return whether implicit GEMM on AMX tiles of operands rounded to bfloat16 suits a convolution and its gradients."""
    return supports_pairs(v) and v.pixels >= TILED_POINTS and v.pixels * v.filters * v.depth >= TILED_PRODUCTS


def vector_method(v: Geometry, direct: bool) -> Method:
    """Return the fastest algorithm on vector units."""
    if v.empty or is_pointwise(v):
        return Method.POINTWISE_GEMM
    square = v.kernel[1:] == (3, 3) and v.dilations[1:] == (1, 1) and v.group == 1
    whole = v.channels % 16 == v.filters % 16 == 0 and v.kernel[0] * max(v.channels, v.filters) <= 4096 * min(v.kernel[0], 3)
    if not direct and square and whole and (is_strided_winograd_faster(v) or (v.strides == UNIT and max(v.pads[1:]) <= 2)):
        return Method.WINOGRAD
    if is_small_depthwise(v):
        return Method.DEPTHWISE
    if has_narrow_groups(v):
        return Method.GROUPED
    plain = v.flat and v.strides[1:] == v.dilations[1:] == (1, 1) and v.group == 1 and min(v.channels, v.filters) >= MIN_CHANNELS
    if not direct and plain and max(v.channels, v.filters) <= 4096 and suits_row_winograd(along_rows(v)):
        return Method.WINOGRAD_1D
    return Method.DIRECT if suits_direct(v) else Method.IM2COL


def is_pointwise(v: Geometry) -> bool:
    """Return whether a convolution is a matrix multiplication of the pixels that its strides reach, all of which exist."""
    if v.taps > 1 or v.group > 1 or any(v.pads):
        return False
    axes = zip((v.out_planes, v.out_rows, v.out_columns), v.strides, (v.planes, v.rows, v.columns), strict=True)
    return all(out == size if stride == 1 else (out - 1) * stride < size for out, stride, size in axes)


def suits_direct(v: Geometry) -> bool:
    """Return whether direct convolution supports the sizes, and is faster than im2col."""
    segments, elements = v.kernel[2] if v.dilations[2] > 1 else 1, direct_row_elements(v)
    if v.group_filters < MIN_CHANNELS:                       # padded to one vector, with a copy of dy in the weight gradient, and all kernel rows at once
        elements += (SUMMED_PIXELS + v.out_columns) * MIN_CHANNELS
        segments *= v.kernel[0] * v.kernel[1]
    return (v.group == 1 or v.group_filters >= MIN_CHANNELS) and segments <= MAX_SEGMENTS and elements <= ROOM and not rereads_filters(v)


def can_use_planes(v: Geometry, images: int, direct: bool) -> bool:
    """Return whether the forward pass can read and write [n, c, d, h, w], with n = `images`: by DIRECT, where planes are not images of their own, and a worker
    has room for a row of outputs beside the copied rows of inputs. IMPLICIT_GEMM, which is faster on some processors or in bfloat16, cannot."""
    implicit = v.flat and v.group == 1 and min(v.channels, v.filters) >= MIN_PAIR_SIDE
    fits = direct_row_elements(v) + v.out_columns * round_up(v.group_filters, MIN_CHANNELS) <= ROOM
    return not v.empty and not implicit and vector_method(v, direct) == Method.DIRECT and surely_equal(v.images, images) and fits


def data_gradient_method(v: Geometry, method: Method) -> Method:
    """Return the algorithm of the data gradient. method: the algorithm of the forward pass."""
    if method not in (Method.DIRECT, Method.IM2COL):
        return method
    pads = tuple((size - 1) * dilation - pad for size, dilation, pad in zip(v.kernel, v.dilations, v.pads, strict=True))
    rotated = replace(v, planes=v.out_planes, rows=v.out_rows, columns=v.out_columns, channels=v.filters, filters=v.channels, out_planes=v.planes,
                      out_rows=v.rows, out_columns=v.columns, pads=three(pads, 0))
    return Method.DIRECT if v.strides == UNIT and min(pads) >= 0 and suits_direct(rotated) else Method.IM2COL


def is_small_depthwise(v: Geometry) -> bool:
    """Return whether a convolution has one filter per channel, and few enough taps that their weights stay in registers."""
    each = v.group == v.channels == v.filters and v.channels >= MIN_CHANNELS
    return v.flat and each and v.kernel[2] == DEPTHWISE_COLUMNS and v.taps <= DEPTHWISE_TAPS


def has_narrow_groups(v: Geometry) -> bool:
    """Return whether the lanes of a vector are filters of several groups, forward or backward, and the inputs of a tile fit into a worker's workspace."""
    channels, filters = v.channels // v.group, v.group_filters
    if v.group == 1 or min(channels, filters) >= MIN_CHANNELS or v.taps > GROUPED_TAPS:
        return False
    planes, rows, columns = ((size - 1) * dilation + 1 for size, dilation in zip(v.kernel, v.dilations, strict=True))
    return 2 * planes * (rows + v.strides[1]) * (columns + GROUPED_COLUMNS * v.strides[2]) * max(channels, filters) * MIN_CHANNELS <= ROOM


def is_strided_winograd_faster(v: Geometry) -> bool:
    """Return whether Winograd by phases is the fastest algorithm for a 3 x 3 kernel with stride 2.

    It saves 25 to 33 % of the time if its tiles are mostly full, and nothing for 256 channels on 14 x 14. With many channels and few pixels it saves
    packing the filters (512 channels on 14 x 14: 6.8 instead of 8.5 ms forward)."""
    filled = 7 * 16 * winograd_tiles(v) <= 8 * v.pixels
    return v.flat and v.strides[1:] == (2, 2) and v.pads[1:] == (1, 1) and (filled or (min(v.channels, v.filters) >= 512 and winograd_tiles(v) <= FEW_TILES))


def rereads_filters(v: Geometry) -> bool:
    """Return whether direct convolution would read filters that exceed the L2 cache once per few pixels, as for 512 to 512 channels on rows of 7 pixels."""
    row = direct_row(v)
    copied = PADDED_COPY_BYTES * min(v.kernel[0], MAX_COPIED_PLANES)
    rows = (copied // 4 // row // v.kernel[0] - (v.kernel[1] - 1) * v.dilations[1] - 1) // v.strides[1] + 1
    return v.group_filters * v.depth > GATHERED and min(max(rows, 1), v.out_rows) * v.out_columns < MIN_ROWS


def direct_row(v: Geometry) -> int:
    """Return the elements of a padded input row in one group."""
    return ((v.out_columns - 1) * v.strides[2] + (v.kernel[2] - 1) * v.dilations[2] + 1) * (v.channels // v.group)


def direct_row_elements(v: Geometry) -> int:
    """Return the elements of the padded input rows that direct convolution copies for a row of outputs; for the weight gradient at least MAX_SEGMENTS rows."""
    return direct_row(v) * max(v.kernel[0] * ((v.kernel[1] - 1) * v.dilations[1] + 1), MAX_SEGMENTS)


def is_supported(v: Geometry) -> bool:
    """Return whether the kernels support a convolution: an im2col row and its results fit into a worker's workspace."""
    return v.depth + round_up(v.group_filters, PACKED_COLUMNS) <= ROOM


def im2col_rows(v: Geometry) -> int:
    """Return the number of im2col rows per block: as many as fill GATHERED, at least MIN_ROWS where they fit, and few enough for SPREAD work items."""
    width = v.depth + round_up(v.group_filters, PACKED_COLUMNS)
    rows = min(480, max(6, GATHERED // max(v.depth, 1)))
    if rows < MIN_ROWS and MIN_ROWS * width <= ROOM // 2:
        rows = MIN_ROWS
    rows = min(rows, ROOM // width)
    return symbolic_max(min(rows, MIN_ROWS), symbolic_min(rows, round_up(-(-v.pixels // SPREAD), 6)))


def data_gradient_rows(v: Geometry) -> int:
    """Return the number of im2col rows per block of the data gradient; with wide taps, as many pixels of one image as fit into the L2 cache."""
    channels, inside = v.channels // v.group, v.out_planes * v.out_rows * v.out_columns
    if channels < TAP_CHANNELS or channels % PACKED_COLUMNS:
        return im2col_rows(v)
    blocks = max(1, -(-inside // min(max(MIN_ROWS, GATHERED // max(v.group_filters, 1)), ROOM // channels)))
    return -(-inside // blocks)


def weight_gradient_algorithm(v: Geometry, method: Method, tiles: bool, pairs: bool = False) -> tuple[int, int, int]:
    """Return (algorithm, number of partial sums, scratch elements) of the weight gradient. method: the algorithm of the forward pass. tiles, pairs: see
    method_of."""
    methods = [weight_gradient_method(v, method, tiles, pairs, many) for many in (True, False)]
    many = at_least(v.pixels, BLOCK_PIXELS)
    slices = select_if(many, *(weight_gradient_slices(v, each) for each in methods))
    return select_if(many, *methods), slices, select_if(many, *(weight_scratch(v, each) for each in methods))


def weight_gradient_method(v: Geometry, method: Method, tiles: bool, pairs: bool, many: bool) -> Method:
    """Return the algorithm of the weight gradient. many: whether there are at least BLOCK_PIXELS pixels."""
    if method == Method.POINTWISE_GEMM and ((tiles and pairs) or min(v.filters, v.channels) < FEW_SIDE):
        return method
    if method == Method.POINTWISE_GEMM and many and v.filters * v.channels < PRODUCT_WEIGHTS:
        return method if tiles and v.strides == UNIT and suits_amx(v.filters, v.channels, v.pixels) else Method.TAP_GEMM
    wide = v.taps > 1 and v.depth > 384 and v.channels // v.group >= 32
    if method == Method.DIRECT:
        by_taps = v.depth * v.group_filters > DIRECT_WEIGHTS or (v.dilations == UNIT and v.group_filters > FEW_FILTERS)
        return Method.TAP_GEMM if wide and by_taps else method
    spare = round_up(v.group_filters, PACKED_COLUMNS) if v.group_filters % PACKED_COLUMNS else 0
    return Method.TAP_GEMM if method == Method.IM2COL and (wide or GRADIENT_ROWS * (v.depth + spare) > ROOM) else method


def weight_gradient_slices(v: Geometry, method: Method) -> int:
    """Return the number of partial sums of the weight gradient."""
    if method == Method.WINOGRAD:
        return winograd_slices(v)
    if method == Method.TAP_GEMM:
        items = max(1, v.group * v.taps * -(-v.group_filters // WEIGHT_FILTERS) * -(-v.channels // v.group // WEIGHT_CHANNELS))
        return symbolic_max(1, symbolic_min(-(-SPREAD // items), -(-v.pixels // WEIGHT_PIXELS)))
    if method == Method.GROUPED:
        return symbolic_max(1, symbolic_min(min(SPREAD, max(1, MAX_SUMS // (v.depth * round_up(v.filters, MIN_CHANNELS)))), v.pixels // GROUPED_PIXELS))
    if method == Method.DIRECT:
        return symbolic_max(1, symbolic_min(min(SPREAD, MAX_SUMS // (v.depth * v.filters)), v.images * v.out_planes * v.out_rows))
    return symbolic_max(1, symbolic_min(-(-SPREAD // v.group), -(-v.pixels // GRADIENT_ROWS)))


def along_rows(v: Geometry) -> Geometry:
    """Return the convolution along whose rows one-dimensional Winograd runs: with rows and columns exchanged if the kernel has one column."""
    if v.kernel[2] > 1:
        return v
    return replace(v, rows=v.columns, columns=v.rows, out_rows=v.out_columns, out_columns=v.out_rows, kernel=(v.kernel[0], v.kernel[2], v.kernel[1]),
                   pads=(v.pads[0], v.pads[2], v.pads[1]))


def row_winograd_parts(v: Geometry, data: bool = False) -> tuple[int, int]:
    """Return (parts, tiles of a row of a part) of the transformed image, or of the transformed gradient if `data`, in one-dimensional Winograd."""
    tiles = -(-(v.columns if data else v.out_columns) // (WINOGRAD_1D_PLANES + 1 - v.kernel[2]))
    size = WINOGRAD_1D_PLANES * tiles * (v.rows * v.channels + v.out_rows * v.filters)
    each = -(-tiles // max(1, min(tiles // WINOGRAD_1D_TILES, -(-size // WINOGRAD_1D_PART))))
    return -(-tiles // each), each


def row_winograd_elements(v: Geometry, count: int, data: bool = False) -> int:
    """Return the elements of the transformed inputs and outputs of `count` parts of images, or of gradients if `data`, in one-dimensional Winograd."""
    _, tiles = row_winograd_parts(v, data)
    return WINOGRAD_1D_PLANES * (count * tiles * (v.rows * v.channels + v.out_rows * v.filters) + 2 * PLANE_PAD)


def suits_row_winograd(v: Geometry) -> bool:
    """Return whether one-dimensional Winograd saves products, and a part of the transformed image fits into a worker's workspace, forward and backward."""
    if v.kernel[2] not in WINOGRAD_1D_TAPS or any(pad >= size for pad, size in zip(v.pads, v.kernel, strict=True)):
        return False
    multiplied = WINOGRAD_1D_PLANES * -(-v.out_columns // (WINOGRAD_1D_PLANES + 1 - v.kernel[2]))
    saves = 100 * v.out_columns * v.kernel[2] >= ROW_WINOGRAD_SAVING * multiplied
    return saves and max(row_winograd_elements(v, 1), row_winograd_elements(v, 1, data=True)) <= ROOM


def row_winograd_block(v: Geometry) -> int:
    """Return the number of parts of images to transform at a time for the weight gradient: 1 MiB of transformed values."""
    rows = along_rows(v)
    return symbolic_max(1, symbolic_min(v.images * row_winograd_parts(rows)[0], (1 << 18) // row_winograd_elements(rows, 1)))


def row_winograd_filters(v: Geometry, depth: int, outputs: int) -> int:
    """Return the elements of the transformed filters in one-dimensional Winograd."""
    return WINOGRAD_1D_PLANES * (along_rows(v).kernel[1] * depth * round_up(outputs, MIN_CHANNELS) + PLANE_PAD)


def winograd_tiles(v: Geometry, data: bool = False) -> int:
    """Return the number of Winograd tiles of the outputs (4 x 4 pixels), or of the data for the data gradient (8 x 8 pixels with stride 2)."""
    rows, columns, size = (v.rows, v.columns, 4 * v.strides[1]) if data else (v.out_rows, v.out_columns, 4)
    return v.images * (v.planes if data else v.out_planes) * -(-rows // size) * -(-columns // size)


def winograd_planes(v: Geometry) -> int:
    return PLANES if v.strides == UNIT else STRIDED_PLANES


def has_many_tiles(tiles: int) -> int:
    """Return 1 if the tiles are too many to be transformed all at once, else 0."""
    return at_least(tiles, FEW_TILES + 1)


def winograd_scratch(tiles: int, planes: int, depth: int, outputs: int) -> int:
    block = min(DEPTH_BLOCK, depth) * round_up(min(FILTER_BLOCK, outputs), WHOLE_PANEL) + PLANE_PAD
    transformed_filters = PLANES * block * -(-depth // DEPTH_BLOCK) * -(-outputs // FILTER_BLOCK)
    return select_if(has_many_tiles(tiles), transformed_filters, planes * (tiles * depth + PLANE_PAD))


def winograd_slices(v: Geometry) -> int:
    """Return the number of partial sums of the weight gradient, each over tiles that one worker transforms and multiplies.

    0 if there are too few tiles or the sums would be too large; the tiles are then transformed by all workers before the GEMMs."""
    sums, tiles = PLANES * v.kernel[0] * v.channels * v.filters, winograd_tiles(v)
    return has_many_tiles(tiles) * symbolic_min(min(SPREAD, max(4, MAX_SUMS // sums)), tiles // 32) if sums <= MAX_SUMS else 0


def winograd_block(v: Geometry) -> int:
    """Return the number of tiles to transform at a time for the weight gradient.

    In a partial sum, as many as fit into the workspace and half of the L2 cache (64 channels: 2.3 instead of 3.6 ms); otherwise 4 MiB of transformed
    values, or all tiles if they are few."""
    tiles, planes, width = winograd_tiles(v), winograd_planes(v), v.kernel[0] * v.channels + v.filters
    most = min(max(48, (1 << 18) // (planes * width)), (ROOM // planes - 2 * PLANE_PAD) // (width + 2 * PLANE_PAD))
    of_all = select_if(has_many_tiles(tiles), symbolic_min(tiles, max(64, (1 << 20) // (planes * width))), tiles)
    return select_if(at_least(winograd_slices(v), 1), symbolic_min(tiles, max(1, most)), of_all)


def winograd_weight_scratch(v: Geometry) -> int:
    depth, split = v.kernel[0] * v.channels, split_weights(v)
    sums = PLANES * (depth * v.filters + PLANE_PAD)
    transformed = winograd_planes(v) * (winograd_block(v) * (depth + v.filters + 2 * PLANE_PAD) + 2 * PLANE_PAD)
    slices, of_all = winograd_slices(v), transformed + has_many_tiles(winograd_tiles(v)) * sums
    return split + select_if(at_least(slices, 1), slices * sums, of_all)


def split_weights(v: Geometry) -> int:
    """Return the elements of the copy of the weights by planes of the kernel; 0 if it has one."""
    return v.filters * v.channels * v.taps if v.kernel[0] > 1 else 0


def strided_pixels(v: Geometry) -> int:
    """Return the elements of the copied pixels of a 1 x 1 convolution with strides; 0 without strides."""
    return 0 if v.strides == UNIT else v.pixels * v.channels


def packed_pointwise_weights(v: Geometry) -> int:
    """Return the elements of the packed weights of a 1 x 1 convolution (channels_last/pointwise.h, dot_tiles.h)."""
    dots = v.channels * MIN_CHANNELS if v.filters <= POINTWISE_DOT_FILTERS else 0
    return symbolic_max(dots, v.channels * v.filters * at_least(v.pixels, POINTWISE_PIXELS))


def forward_scratch(v: Geometry, method: Method) -> int:
    if method == Method.IMPLICIT_GEMM:
        return v.filters * v.depth                   # the transposed filters
    if method == Method.WINOGRAD:
        return split_weights(v) + winograd_scratch(winograd_tiles(v), winograd_planes(v), v.kernel[0] * v.channels, v.filters)
    if method == Method.WINOGRAD_1D:
        return row_winograd_filters(v, v.channels, v.filters)
    return {Method.IM2COL: v.group * round_up(v.group_filters, PACKED_COLUMNS) * v.depth, Method.GROUPED: v.depth * round_up(v.filters, MIN_CHANNELS),
            Method.DEPTHWISE: v.taps * v.channels,
            Method.DIRECT: v.group * round_up(v.group_filters, MIN_CHANNELS) * v.depth}.get(method, strided_pixels(v) + packed_pointwise_weights(v))


def data_scratch(v: Geometry, method: Method) -> int:
    if method == Method.IMPLICIT_GEMM:
        return v.filters * v.depth                   # the transposed filters
    if method == Method.WINOGRAD:
        return split_weights(v) + winograd_scratch(winograd_tiles(v, data=True), winograd_planes(v), v.kernel[0] * v.filters, v.channels)
    if method == Method.WINOGRAD_1D:
        return row_winograd_filters(v, v.filters, v.channels)
    return {Method.IM2COL: v.filters * round_up(v.depth, PACKED_COLUMNS), Method.GROUPED: v.taps * v.group_filters * round_up(v.channels, MIN_CHANNELS),
            Method.DEPTHWISE: v.taps * v.channels,
            Method.DIRECT: v.taps * v.filters * round_up(v.channels // v.group, MIN_CHANNELS)}.get(
        method, strided_pixels(v) + packed_pointwise_weights(v))


def weight_scratch(v: Geometry, method: Method) -> int:
    if method == Method.IMPLICIT_GEMM:
        return v.filters * v.depth                   # the transposed filters
    if method == Method.WINOGRAD:
        return winograd_weight_scratch(v)
    if method == Method.WINOGRAD_1D:
        return row_winograd_elements(along_rows(v), row_winograd_block(v)) + row_winograd_filters(v, v.channels, v.filters)
    if method == Method.DIRECT:
        return weight_gradient_slices(v, method) * v.depth * v.group * round_up(v.group_filters, MIN_CHANNELS)
    if method == Method.IM2COL:
        return weight_gradient_slices(v, method) * v.group * v.depth * round_up(v.group_filters, PACKED_COLUMNS)
    if method == Method.TAP_GEMM:
        return weight_gradient_slices(v, method) * v.filters * v.taps * round_up(v.channels // v.group, MIN_CHANNELS)
    if method == Method.DEPTHWISE:
        return DEPTHWISE_SLICES * v.taps * round_up(v.channels, MIN_CHANNELS)
    if method == Method.GROUPED:
        return weight_gradient_slices(v, method) * v.depth * round_up(v.filters, MIN_CHANNELS)
    return strided_pixels(v)
