"""Discrete Fourier transforms: DFT and STFT. NumPy transforms, in Python steps; the gradient is the adjoint, a transform again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.ir import Dim, Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, normalize_axis, operator
from ortrain.ops.shape import known_dims, padded

FLOATS = ("float32", "float64")


def pairs(z: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    """Complex numbers as (real, imaginary) in a last axis."""
    return np.stack([z.real, z.imag], -1).astype(kind, copy=False)


def numbers(x: np.ndarray) -> np.ndarray:
    """(real, imaginary) or real alone in the last axis, as numbers."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def transform(x: np.ndarray, n: int, axis: int, inverse: bool, onesided: bool) -> np.ndarray:
    """DFT by its definition: x cut or padded with zeros to n; onesided, the half of a real signal's transform, or (inverse) a real signal from that half."""
    z = numbers(x)
    if inverse and onesided:
        return np.fft.irfft(z, n, axis)[..., None].astype(x.dtype, copy=False)
    y = np.fft.ifft(z, n, axis) if inverse else np.fft.fft(z, n, axis)
    return pairs(np.take(y, np.arange(n // 2 + 1), axis) if onesided else y, x.dtype)


def adjoint(dy: np.ndarray, shape: Sequence[int], n: int, axis: int, inverse: bool, onesided: bool) -> np.ndarray:
    """The adjoint of transform, for x of that shape."""
    if inverse and onesided:
        half = np.fft.rfft(dy[..., 0], n, axis) / n
        twice = np.full(n // 2 + 1, 2.0, dy.dtype)             # but the first and, of an even n, the last every number stands for two
        twice[0] = 1
        if n % 2 == 0:
            twice[-1] = 1
        z = half * twice.reshape([-1 if i == axis else 1 for i in range(half.ndim)])
    else:
        z = numbers(dy)                                        # onesided: what was cut off is padded with zeros
        z = np.fft.fft(z, n, axis) / n if inverse else np.fft.ifft(z, n, axis) * n
    found = pairs(z, dy.dtype) if shape[-1] == 2 else z.real[..., None].astype(dy.dtype, copy=False)
    dx = np.zeros(shape, dy.dtype)
    kept = tuple(slice(0, min(a, b)) for a, b in zip(shape, found.shape, strict=True))
    dx[kept] = found[kept]
    return dx


# ---- DFT


def options(c: InferenceContext) -> tuple[int | None, int, bool, bool] | None:
    """(length or None, axis, inverse, onesided); None while the axis is not known. By attribute the axis before opset 20."""
    rank = len(c.shape(0))
    if c.opset < 20:
        axis: int | None = int(c.attribute("axis", 1))
    else:
        given = known_dims(c, 2) if c.has(2) else [-2]
        axis = None if given is None else given[0]
    if axis is None:
        return None
    axis = normalize_axis(c, axis, rank)
    if axis == rank - 1:
        raise c.error(f"expected an axis that is not the last, of real and imaginary parts, got {axis}")
    inverse, onesided = bool(c.attribute("inverse", 0)), bool(c.attribute("onesided", 0))
    length = known_dims(c, 1) if c.has(1) else None
    size = c.shape(0)[axis]
    if not c.has(1) and isinstance(size, int):
        length = [2 * (size - 1) if inverse and onesided else size]
    if length is not None and length[0] < 1:
        raise c.error(f"expected a positive dft_length, got {length[0]}")
    return None if length is None else length[0], axis, inverse, onesided


def known_options(c: InferenceContext) -> tuple[int, int, bool, bool]:
    """The options of a node that is about to run."""
    found = options(c)
    if found is None or found[0] is None:
        raise c.error("expected dft_length and axis that are known before running, got values that are computed")
    return found[0], *found[1:]


def lower_dft(c: LoweringContext) -> KernelCall:
    n, axis, inverse, onesided = known_options(c)
    return KernelCall("python", function=lambda x, *_: [transform(x, n, axis, inverse, onesided)])


def dft_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return padded(g, g.op("DFTGrad", g.dy, *g.inputs, domain=ORTRAIN, opset=20 if g.opset >= 20 else 17, **g.node.attributes))


@operator("DFT", lower=lower_dft, gradient=dft_gradient, stop_gradient=(1, 2))
def dft(c: InferenceContext) -> list[TensorType]:
    """y = the discrete Fourier transform of x along an axis, or its inverse; (real, imaginary) in the last axis, of which x may have the first alone"""
    shape: list[Dim] = list(c.shape(0))
    if len(shape) < 2 or isinstance(shape[-1], int) and shape[-1] not in (1, 2) or c.dtype(0) not in FLOATS:
        raise c.error(f"expected float32 or float64 numbers with 1 or 2 parts in the last axis, got {c.dtype(0)}{shape}")
    found = options(c)
    if found is None:
        return [TensorType(c.dtype(0), (*(c.fresh(f"size{axis}") for axis in range(len(shape) - 1)), 2))]
    n, axis, inverse, onesided = found
    whole = n if n is not None else shape[axis] if not c.has(1) and not (inverse and onesided) else c.fresh("length")
    shape[axis] = whole if inverse or not onesided else whole // 2 + 1 if isinstance(whole, int) else c.fresh("half")
    shape[-1] = 1 if inverse and onesided else 2
    return [TensorType(c.dtype(0), tuple(shape))]


def lower_dft_grad(c: LoweringContext) -> KernelCall:
    node = Node("DFT", c.node.inputs[1:], c.node.outputs, c.node.name, "", c.node.attributes)
    n, axis, inverse, onesided = known_options(InferenceContext(node, c.types[1:], c.values[1:], int(c.attribute("opset"))))
    shape = c.dims(1)
    return KernelCall("python", function=lambda dy, *_: [adjoint(dy, shape, n, axis, inverse, onesided)])


@operator("DFTGrad", domain=ORTRAIN, lower=lower_dft_grad)
def dft_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dY, and the inputs of DFT): the adjoint of the transform"""
    return [c.type(1)]


# ---- STFT


def frames_of(c: InferenceContext) -> tuple[int, int, int] | None:
    """(step, frame length, length of the window); None while they are not known. A window may be shorter than its frame, which is padded."""
    step, given = known_dims(c, 1), known_dims(c, 3) if c.has(3) else None
    window = c.shape(2)[0] if c.has(2) else None
    if step is None or c.has(3) and given is None or isinstance(window, str):
        return None
    size = c.shape(0)[1] if given is None and window is None else 0
    if isinstance(size, str):
        return None
    length = given[0] if given is not None else window if window is not None else size
    if step[0] < 1 or length < 1 or window is not None and window > length:
        raise c.error(f"expected a positive frame_step, and frames as long as the window at least, got {step[0]}, {length} and {window}")
    return step[0], length, length if window is None else window


def frames_decomposition(g: NodeBuilder) -> list[str] | None:
    """A Gather of the frames, a product with the window, and their transforms."""
    kind, found = g.type(g.inputs[0]), frames_of(g.context())
    size = None if kind.shape is None else kind.shape[1]
    if found is None or not isinstance(size, int) or kind.dtype not in FLOATS:
        return None
    step, length, window = found
    signal = g.inputs[0] if len(kind.shape or ()) == 3 else g.op("Reshape", g.inputs[0], g.constant([0, 0, 1]))
    starts = np.arange(int(1 + (size - length) // step)) * step
    frames = g.op("Gather", signal, g.constant(starts[:, None] + np.arange(int(window))), axis=1)          # [n, frames, window, parts]
    if g.has(2):
        frames = g.op("Mul", frames, g.op("Reshape", g.inputs[2], g.constant([window, 1])))
    attributes: dict[str, Any] = {"onesided": int(g.attribute("onesided", 1))}
    if g.opset < 20:
        return [g.op("DFT", frames, g.constant(np.array(length, np.int64)), axis=2, **attributes)]
    return [g.op("DFT", frames, g.constant(np.array(length, np.int64)), g.constant(np.array(2)), **attributes)]


@operator("STFT", decompose=frames_decomposition, stop_gradient=(1, 3))
def stft(c: InferenceContext) -> list[TensorType]:
    """y = the Fourier transforms of frames of a signal [n, length, parts], frame_step apart and times a window; their first half if onesided. A real signal may
    do without its last axis, which exporters leave out and onnxruntime does not miss"""
    shape = c.shape(0)
    if len(shape) not in (2, 3) or len(shape) == 3 and isinstance(shape[2], int) and shape[2] not in (1, 2):
        raise c.error(f"expected a signal [n, length, 1 or 2] or [n, length], got shape {list(shape)}")
    found = frames_of(c)
    if found is None:
        return [TensorType(c.dtype(0), (shape[0], c.fresh("frames"), c.fresh("length"), 2))]
    step, length, _ = found
    if isinstance(shape[1], int) and shape[1] < length:
        raise c.error(f"expected a signal of {length} elements at least, got {shape[1]}")
    frames = 1 + (shape[1] - length) // step if isinstance(shape[1], int) else c.fresh("frames")
    return [TensorType(c.dtype(0), (shape[0], frames, length // 2 + 1 if c.attribute("onesided", 1) else length, 2))]
