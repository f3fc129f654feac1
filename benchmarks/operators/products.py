"""Cases of operators that multiply matrices: dense layers, convolutions, recurrent layers, attention; and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from benchmarks.operators.case import Case, integers

MICROSOFT = "com.microsoft"
Convolution = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]
"""Shapes of data and weight, and the stride, pad and dilation (of each axis, or of all), and group."""


def dense_cases() -> Iterator[Case]:
    """Yield products of matrices."""
    for m, k, n in ((512, 512, 512), (64, 784, 500), (1, 784, 500), (255, 257, 253), (4096, 64, 3)):
        yield Case("MatMul", [(m, k), (k, n)], lambda torch, a, b: a @ b, {}, f"{m}x{k}x{n}", products=m * k * n)
        yield Case("Gemm", [(m, k), (n, k), (n,)], lambda torch, x, w, b: torch.nn.functional.linear(x, w, b), {"transB": 1}, f"{m}x{k}x{n}",
                   products=m * k * n)
    yield Case("MatMul", [(32, 8, 128, 64), (32, 8, 64, 128)], lambda torch, a, b: a @ b, {}, "batches", products=256 * 128 * 128 * 64)


CONVOLUTIONS: dict[str, Convolution] = {
    "3x3": ((16, 64, 32, 32), (64, 64, 3, 3), {"pad": 1}), "1x1": ((16, 64, 32, 32), (128, 64, 1, 1), {}),
    "stride 2": ((16, 64, 32, 32), (64, 64, 3, 3), {"stride": 2, "pad": 1}), "first layer": ((8, 3, 112, 112), (32, 3, 3, 3), {"stride": 2, "pad": 1}),
    "depthwise": ((16, 64, 32, 32), (64, 1, 3, 3), {"pad": 1, "group": 64}), "grouped": ((16, 64, 32, 32), (64, 16, 3, 3), {"pad": 1, "group": 4}),
    "8 groups": ((16, 128, 28, 28), (128, 16, 3, 3), {"pad": 1, "group": 8}), "depthwise 7x7": ((8, 96, 28, 28), (96, 1, 7, 7), {"pad": 3, "group": 96}),
    "depthwise stride 2": ((16, 96, 56, 56), (96, 1, 3, 3), {"stride": 2, "pad": 1, "group": 96}),
    "1x7": ((8, 128, 17, 17), (128, 128, 1, 7), {"pad": (0, 3)}), "7x1": ((8, 128, 17, 17), (128, 128, 7, 1), {"pad": (3, 0)}),
    "dilated": ((8, 64, 32, 32), (64, 64, 3, 3), {"pad": 2, "dilation": 2}), "5x5": ((16, 32, 28, 28), (32, 32, 5, 5), {"pad": 2}),
    "1x1 stride 2": ((16, 64, 56, 56), (128, 64, 1, 1), {"stride": 2}), "12 channels": ((16, 12, 32, 32), (12, 12, 3, 3), {"pad": 1}),
    "58 channels": ((8, 58, 28, 28), (58, 58, 3, 3), {"pad": 1}), "one image": ((1, 64, 56, 56), (64, 64, 3, 3), {"pad": 1}),
    "1x1, one image": ((1, 256, 14, 14), (512, 256, 1, 1), {}), "wide": ((8, 256, 14, 14), (256, 256, 3, 3), {"pad": 1}),
    "7x7 stride 2": ((4, 3, 112, 112), (64, 3, 7, 7), {"stride": 2, "pad": 3}), "patches": ((4, 3, 224, 224), (192, 3, 16, 16), {"stride": 16}),
    "1-D": ((16, 64, 1024), (64, 64, 3), {"pad": 1}), "1-D, 9 taps": ((16, 32, 1024), (64, 32, 9), {"pad": 4}),
    "1-D, one channel": ((8, 1, 4096), (32, 1, 64), {"stride": 4}), "1-D depthwise": ((16, 128, 512), (128, 1, 31), {"pad": 15, "group": 128}),
    "1-D dilated": ((8, 64, 1024), (64, 64, 3), {"pad": 8, "dilation": 8}),
    "3-D": ((4, 16, 8, 16, 16), (16, 16, 3, 3, 3), {"pad": 1}), "3-D depthwise": ((4, 3, 8, 16, 16), (3, 1, 3, 3, 3), {"pad": 1, "group": 3}),
    "3-D, 64 channels": ((2, 64, 8, 28, 28), (64, 64, 3, 3, 3), {"pad": 1}), "3-D stride 2": ((2, 64, 8, 28, 28), (128, 64, 3, 3, 3), {"stride": 2, "pad": 1}),
    "3-D first layer": ((1, 3, 16, 112, 112), (64, 3, 3, 7, 7), {"stride": (1, 2, 2), "pad": (1, 3, 3)}),
    "3-D, 32 depthwise": ((2, 32, 8, 28, 28), (32, 1, 3, 3, 3), {"pad": 1, "group": 32}),
    "3-D grouped": ((2, 32, 8, 28, 28), (32, 8, 3, 3, 3), {"pad": 1, "group": 4}), "3-D 1x3x3": ((2, 64, 8, 28, 28), (64, 64, 1, 3, 3), {"pad": (0, 1, 1)}),
    "3-D 3x1x1": ((2, 64, 8, 28, 28), (64, 64, 3, 1, 1), {"pad": (1, 0, 0)}), "3-D 1x1x1": ((2, 64, 8, 28, 28), (128, 64, 1, 1, 1), {}),
    "3-D dilated": ((2, 32, 8, 28, 28), (32, 32, 3, 3, 3), {"pad": 2, "dilation": 2})}
TRANSPOSED: dict[str, Convolution] = {
    "4x4 stride 2": ((8, 64, 16, 16), (64, 32, 4, 4), {"stride": 2, "pad": 1}), "2x2 stride 2": ((8, 64, 28, 28), (64, 32, 2, 2), {"stride": 2}),
    "3x3 stride 2": ((8, 64, 16, 16), (64, 32, 3, 3), {"stride": 2, "pad": 1}), "3x3": ((8, 64, 32, 32), (64, 64, 3, 3), {"pad": 1}),
    "grouped": ((8, 64, 16, 16), (64, 8, 4, 4), {"stride": 2, "pad": 1, "group": 8}),
    "depthwise": ((8, 64, 16, 16), (64, 1, 4, 4), {"stride": 2, "pad": 1, "group": 64}), "1-D": ((8, 64, 256), (64, 32, 16), {"stride": 8, "pad": 4}),
    "3-D": ((2, 32, 8, 14, 14), (32, 16, 4, 4, 4), {"stride": 2, "pad": 1}), "3-D 2x2x2": ((2, 64, 8, 14, 14), (64, 32, 2, 2, 2), {"stride": 2})}


def convolution_cases() -> Iterator[Case]:
    """Yield convolutions and transposed convolutions."""
    for operator, table in (("Conv", CONVOLUTIONS), ("ConvTranspose", TRANSPOSED)):
        for label, (x, w, settings) in table.items():
            rank = len(x) - 2
            pads, strides, dilations = (one if isinstance(one := settings.get(name, default), tuple) else (one,) * rank
                                        for name, default in (("pad", 0), ("stride", 1), ("dilation", 1)))
            attributes = {"kernel_shape": list(w[2:]), "strides": list(strides), "pads": [*pads, *pads], "dilations": list(dilations),
                          "group": settings.get("group", 1)}
            yield convolution_case(operator, label, x, w, attributes)


def convolution_case(operator: str, label: str, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> Case:
    """Return the case of a convolution, which has a bias, or of a transposed convolution, which has none. A position of the output, or of x if the
    convolution is transposed, needs as many products as the weight has elements."""
    rank = len(x) - 2
    pads, strides, dilations, group = attributes["pads"][:rank], attributes["strides"], attributes["dilations"], attributes["group"]

    def peer(torch: Any, x: Any, w: Any, *bias: Any) -> Any:
        if operator == "Conv":
            return getattr(torch.nn.functional, f"conv{rank}d")(x, w, *bias, stride=strides, padding=pads, dilation=dilations, groups=group)
        return getattr(torch.nn.functional, f"conv_transpose{rank}d")(x, w, None, strides, pads, 0, group, dilations)

    axes = zip(x[2:], w[2:], pads, strides, dilations, strict=True)
    sides = [(size + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel, pad, stride, dilation in axes]
    positions = x[0] * prod(sides if operator == "Conv" else x[2:])
    return Case(operator, [x, w, (w[0],)] if operator == "Conv" else [x, w], peer, attributes, label, products=positions * prod(w))


def recurrent_cases() -> Iterator[Case]:
    """Yield recurrent layers of 128 units over 32 steps of a batch of 32."""
    for name, gates in {"LSTM": 4, "GRU": 3, "RNN": 1}.items():
        rows = gates * 128
        counts = 32 * 32 * rows
        yield Case(name, [(32, 32, 128), (1, rows, 128), (1, rows, 128), (1, 2 * rows)], None, {"hidden_size": 128}, "128 units",
                   transcendentals=(counts, 0), products=32 * 32 * rows * 256)


def attention_cases() -> Iterator[Case]:
    """Yield attention and the loss of a classifier."""
    q = (8, 128, 256)
    yield Case("MultiHeadAttention", [q, q, q], lambda torch, *t: torch.nn.functional.scaled_dot_product_attention(
        *(x.reshape(8, 128, 8, 32).transpose(1, 2) for x in t)).transpose(1, 2).reshape(q), {"num_heads": 8}, "8 heads", domain=MICROSOFT,
        transcendentals=(64 * 128 * 128, 0), products=2 * 64 * 128 * 128 * 32)
    yield Case("Attention", [(2, 8, 256, 64), (2, 2, 256, 64), (2, 2, 256, 64)], lambda torch, *t: torch.nn.functional.scaled_dot_product_attention(
        *t, is_causal=True, enable_gqa=True), {"is_causal": 1}, "causal, shared heads", opset=23, transcendentals=(8 * 256 * 256, 0),
        products=16 * 256 * 256 * 64)
    for rows, classes in ((1024, 1000), (65536, 10)):
        yield Case("SoftmaxCrossEntropyLoss", [(rows, classes), integers(classes, rows)], lambda torch, x, y: torch.nn.functional.cross_entropy(x, y), {},
                   f"{rows}x{classes}", transcendentals=(rows * classes, 0))
    yield Case("Det", [(1024, 4, 4)], None, {}, "4x4")
    yield Case("Einsum", [(64, 128, 64), (64, 64, 128)], lambda torch, a, b: torch.einsum("bij,bjk->bik", a, b), {"equation": "bij,bjk->bik"}, "batches",
               products=64 * 128 * 64 * 128)
