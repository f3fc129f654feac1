"""The sizes of channels-last convolutions and pools, in the order in which kernels take them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ortrain.ops.shared.windows import Windows, three

Triple = tuple[int, int, int]
UNIT: Triple = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one convolution or pooling operation over images of `planes` of `rows`; a two-dimensional image has one plane.

    kernel, strides, pads (at the beginning) and dilations are those of planes, rows and columns."""

    images: int
    planes: int
    rows: int
    columns: int
    channels: int
    filters: int
    group: int
    out_planes: int
    out_rows: int
    out_columns: int
    kernel: Triple
    strides: Triple
    pads: Triple
    dilations: Triple

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    @property
    def pixels(self) -> int:
        """The number of output pixels of all images."""
        return self.images * self.out_planes * self.out_rows * self.out_columns

    @property
    def flat(self) -> bool:
        """Whether images have one plane, over which the kernel moves."""
        return self.planes == self.out_planes == self.kernel[0] == self.strides[0] == 1

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply."""
        return self.pixels == 0 or self.channels == 0 or self.filters == 0

    @property
    def depth(self) -> int:
        """The number of products that are summed for one output element."""
        return self.taps * self.channels // self.group

    @property
    def group_filters(self) -> int:
        return self.filters // self.group

    def ints(self) -> tuple[int, ...]:
        """Return the sizes in the order of the struct Geometry in channels_last/geometry.h."""
        return (self.images, self.planes, self.rows, self.columns, self.channels, self.filters, self.group, self.out_planes, self.out_rows, self.out_columns,
                *self.kernel, *self.strides, *self.pads, *self.dilations)


def geometry_of(data: tuple[int, ...], filters: int, group: int, windows: Windows) -> Geometry:
    """Return the geometry of windows over data [n, h, w, c] or [n, d, h, w, c].

    Where a kernel has one plane, the planes are images of their own. Where it has one row and one column, and these axes are neither strided nor padded, each
    plane becomes one row: both are two-dimensional convolutions, which have more algorithms."""
    pads = tuple(int(pad or 0) for pad in windows.begins)
    v = Geometry(data[0], *three(data[1:-1], 1), data[-1], filters, group, *three([int(size) for size in windows.output], 1), three(windows.kernel, 1),
                 three(windows.strides, 1), three(pads, 0), three(windows.dilations, 1))
    if v.planes == 1 and v.flat:
        return v
    if v.kernel[0] == v.strides[0] == 1 and v.planes == v.out_planes:
        return replace(v, images=v.images * v.planes, planes=1, out_planes=1)
    if v.kernel[1:] == v.strides[1:] == (1, 1) and (v.rows, v.columns) == (v.out_rows, v.out_columns):
        rows = replace(v, planes=1, rows=v.planes, columns=v.rows * v.columns, out_planes=1, out_rows=v.out_planes, out_columns=v.rows * v.columns)
        return replace(rows, kernel=(1, v.kernel[0], 1), strides=(1, v.strides[0], 1), pads=(0, v.pads[0], 0), dilations=(1, v.dilations[0], 1))
    return v
