"""Cases of operators that multiply matrices: dense layers, convolutions, recurrent layers, attention; and the loss."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.operators.case import Case, integers

MICROSOFT = "com.microsoft"


def dense_cases() -> Iterator[Case]:
    """Yield products of matrices."""
    for m, k, n in ((512, 512, 512), (64, 784, 500), (1, 784, 500), (255, 257, 253), (4096, 64, 3)):
        yield Case("MatMul", [(m, k), (k, n)], lambda torch, a, b: a @ b, {}, f"{m}x{k}x{n}", products=m * k * n)
        yield Case("Gemm", [(m, k), (n, k), (n,)], lambda torch, x, w, b: torch.nn.functional.linear(x, w, b), {"transB": 1}, f"{m}x{k}x{n}",
                   products=m * k * n)
    yield Case("MatMul", [(32, 8, 128, 64), (32, 8, 64, 128)], lambda torch, a, b: a @ b, {}, "batches", products=256 * 128 * 128 * 64)


def convolution_cases() -> Iterator[Case]:
    """Yield convolutions: (input, filters, group, stride, pad)."""
    table = {"3x3": ((16, 64, 32, 32), (64, 64, 3, 3), 1, 1, 1), "1x1": ((16, 64, 32, 32), (128, 64, 1, 1), 1, 1, 0),
             "stride 2": ((16, 64, 32, 32), (64, 64, 3, 3), 1, 2, 1), "first layer": ((8, 3, 112, 112), (32, 3, 3, 3), 1, 2, 1),
             "depthwise": ((16, 64, 32, 32), (64, 1, 3, 3), 64, 1, 1), "grouped": ((16, 64, 32, 32), (64, 16, 3, 3), 4, 1, 1)}
    for label, (x, w, group, stride, pad) in table.items():
        sides = [(size + 2 * pad - w[2]) // stride + 1 for size in x[2:]]
        yield Case("Conv", [x, w, (w[0],)], lambda torch, x, w, b, o=(stride, pad, 1, group): torch.nn.functional.conv2d(x, w, b, *o),
                   {"kernel_shape": list(w[2:]), "strides": [stride] * 2, "pads": [pad] * 4, "group": group}, label,
                   products=x[0] * sides[0] * sides[1] * w[0] * w[1] * w[2] * w[3])
    yield Case("ConvTranspose", [(8, 64, 16, 16), (64, 32, 4, 4)], lambda torch, x, w: torch.nn.functional.conv_transpose2d(x, w, None, 2, 1),
               {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]}, "4x4 stride 2", products=8 * 64 * 256 * 32 * 16)
    yield Case("Conv", [(4, 16, 8, 16, 16), (16, 16, 3, 3, 3)], lambda torch, x, w: torch.nn.functional.conv3d(x, w, None, 1, 1),
               {"kernel_shape": [3] * 3, "pads": [1] * 6}, "3-D", products=4 * 16 * 2048 * 16 * 27)
    yield Case("Conv", [(4, 3, 8, 16, 16), (3, 1, 3, 3, 3)], lambda torch, x, w: torch.nn.functional.conv3d(x, w, None, 1, 1, 1, 3),
               {"kernel_shape": [3] * 3, "pads": [1] * 6, "group": 3}, "3-D depthwise", products=4 * 3 * 2048 * 27)


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
    for rows, classes in ((1024, 1000), (65536, 10)):
        yield Case("SoftmaxCrossEntropyLoss", [(rows, classes), integers(classes, rows)], lambda torch, x, y: torch.nn.functional.cross_entropy(x, y), {},
                   f"{rows}x{classes}", transcendentals=(rows * classes, 0))
    yield Case("Det", [(1024, 4, 4)], None, {}, "4x4")
    yield Case("Einsum", [(64, 128, 64), (64, 64, 128)], lambda torch, a, b: torch.einsum("bij,bjk->bik", a, b), {"equation": "bij,bjk->bik"}, "batches",
               products=64 * 128 * 64 * 128)
