"""Sliding windows: the arithmetic of kernel, strides, pads and dilations that convolution and pooling share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortrain.ir import Dim
from ortrain.ops.registry.record import InferenceContext

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of one node, one entry per spatial axis, with auto_pad resolved to explicit pads.

    begins and ends are None for an axis whose SAME pads depend on a size that is unknown."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int | None, ...]
    ends: tuple[int | None, ...]
    output: tuple[Dim, ...]
    """Output sizes."""

    def padded(self) -> tuple[int, ...] | None:
        """ONNX's `pads` attribute; None while some pads are unknown."""
        pads = tuple(p for p in (*self.begins, *self.ends) if p is not None)
        return pads if len(pads) == 2 * len(self.kernel) else None


def auto_pad_of(attributes: Mapping[str, Any]) -> str:
    """Return the auto_pad attribute as text."""
    return str(attributes.get("auto_pad") or "NOTSET")


def axis_pads(auto_pad: str, size: Dim, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> tuple[int | None, int | None]:
    """Return (begin, end) of one axis; SAME_UPPER puts an odd element at the end, SAME_LOWER at the beginning."""
    if auto_pad == "NOTSET":
        return pads
    if auto_pad == "VALID":
        return 0, 0
    reach = dilation * (kernel - 1) + 1
    if isinstance(size, int):
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    elif stride == 1:
        total = reach - 1
    else:
        return None, None
    small = total // 2
    return (small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small)


def output_size(size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, ceil_mode: bool) -> int:
    """Return how many windows fit. With ceil_mode, one may extend beyond the end if it starts inside the data or the begin pad."""
    room = size + begin + end - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + begin else count


def integers(c: InferenceContext, name: str, count: int, default: int) -> tuple[int, ...]:
    """Return an attribute of `count` integers, which must be positive if their default is."""
    values = tuple(int(v) for v in c.attribute(name) or (default,) * count)
    if len(values) != count or min(values, default=1) < default == 1:
        raise c.error(f"expected {name} of {count}{' positive' if default == 1 else ''} integers, got {list(values)}")
    return values


def windows_of(c: InferenceContext, spatial: Sequence[Dim], kernel: Sequence[int]) -> Windows:
    """Return the windows of node c over `spatial` sizes, which may be symbols."""
    rank = len(spatial)
    strides, dilations = integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1)
    pads = integers(c, "pads", 2 * rank, 0)
    auto_pad = auto_pad_of(c.node.attributes)
    if auto_pad not in AUTO_PADS:
        raise c.error(f"expected auto_pad to be one of {', '.join(AUTO_PADS)}, got {auto_pad!r}")
    if min(kernel, default=1) < 1:
        raise c.error(f"expected a positive kernel_shape, got {list(kernel)}")
    if min(pads, default=0) < 0:
        raise c.error(f"expected pads that are not negative, got {list(pads)}")
    found = [
        axis_pads(auto_pad, size, kernel[i], strides[i], dilations[i], (pads[i], pads[rank + i])) for i, size in enumerate(spatial)
    ]
    ceil_mode = bool(c.attribute("ceil_mode", 0)) and not auto_pad.startswith("SAME")
    output: list[Dim] = []
    for i, (size, (begin, end)) in enumerate(zip(spatial, found, strict=True)):
        output.append(axis_output(c, i, size, kernel[i], strides[i], dilations[i], begin, end, ceil_mode))
    return Windows(tuple(kernel), strides, dilations, tuple(b for b, _ in found), tuple(e for _, e in found), tuple(output))


def axis_output(
    c: InferenceContext, axis: int, size: Dim, kernel: int, stride: int, dilation: int, begin: int | None, end: int | None, ceil_mode: bool
) -> Dim:
    """Return the output size of one axis: a number, the input's symbol where the size is kept, or a new symbol."""
    if isinstance(size, int):
        assert begin is not None and end is not None
        count = output_size(size, kernel, stride, dilation, begin, end, ceil_mode)
        if count < 1:
            raise c.error(f"expected windows that fit, got kernel {kernel}, dilation {dilation} over size {size} padded by {begin}, {end}")
        return count
    keeps = stride == 1 and begin is not None and end is not None and begin + end == dilation * (kernel - 1)
    return size if keeps else c.new_symbol(f"spatial{axis}")


def explicit(attributes: Mapping[str, Any], windows: Windows | None) -> dict[str, Any]:
    """Return the attributes with SAME_* replaced by explicit pads where they are known; onnxruntime-training's gradients compute SAME_* incorrectly."""
    pads = windows.padded() if windows else None
    if pads is None or not auto_pad_of(attributes).startswith("SAME"):
        return dict(attributes)
    kept = {k: v for k, v in attributes.items() if k not in ("auto_pad", "pads", "ceil_mode")}
    return kept | {"pads": pads}


def three(values: Sequence[int], fill: int) -> tuple[int, int, int]:
    """Pad spatial values on the left to three axes; kernels take depth, height and width."""
    a, b, c = (*(fill,) * (3 - len(values)), *values)
    return a, b, c


def packed(windows: Windows, spatial: Sequence[int]) -> tuple[int, ...]:
    """Return 18 integers for the kernels: input, output, kernel, strides, begin pads, dilations, three each."""
    begins = [int(b or 0) for b in windows.begins]
    return (
        *three([int(s) for s in spatial], 1), *three([int(s) for s in windows.output], 1), *three(windows.kernel, 1),
        *three(windows.strides, 1), *three(begins, 0), *three(windows.dilations, 1),
    )
