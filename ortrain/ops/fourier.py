"""Discrete Fourier transforms: DFT and STFT, computed in Python by numpy.fft. The gradient of a transform is its adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.ir import Dim, Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, normalize_axis, operator
from ortrain.ops.shape import constant_dims, first_input_gradient

FLOATS = ("float32", "float64")


def to_pairs(z: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    """Return complex numbers as (real, imaginary) pairs in a new last axis, with dtype `kind`."""
    return np.stack([z.real, z.imag], -1).astype(kind, copy=False)


def to_complex(x: np.ndarray) -> np.ndarray:
    """Return an array with a last axis of (real, imaginary) or (real) as complex or real numbers without this axis."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def dft_of(x: np.ndarray, n: int, axis: int, inverse: bool, onesided: bool) -> np.ndarray:
    """Return the DFT of x along an axis, with x truncated or zero-padded to length n.

    onesided: return the first half of the spectrum of a real signal, or with `inverse` the real signal of such a half. x and the result have (real,
    imaginary), or (real) alone, in the last axis."""
    z = to_complex(x)
    if inverse and onesided:
        return np.fft.irfft(z, n, axis)[..., None].astype(x.dtype, copy=False)
    y = np.fft.ifft(z, n, axis) if inverse else np.fft.fft(z, n, axis)
    return to_pairs(np.take(y, np.arange(n // 2 + 1), axis) if onesided else y, x.dtype)


def dft_adjoint(dy: np.ndarray, shape: Sequence[int], n: int, axis: int, inverse: bool, onesided: bool) -> np.ndarray:
    """Return the adjoint of dft_of applied to dy, for x of this shape."""
    if inverse and onesided:
        half = np.fft.rfft(dy[..., 0], n, axis) / n
        # each coefficient stands for two conjugate ones, except the first and, if n is even, the last
        multiplicity = np.full(n // 2 + 1, 2.0, dy.dtype)
        multiplicity[0] = 1
        if n % 2 == 0:
            multiplicity[-1] = 1
        z = half * multiplicity.reshape([-1 if i == axis else 1 for i in range(half.ndim)])
    else:
        z = to_complex(dy)                                     # numpy.fft pads the missing half of a onesided spectrum with zeros
        z = np.fft.fft(z, n, axis) / n if inverse else np.fft.ifft(z, n, axis) * n
    full = to_pairs(z, dy.dtype) if shape[-1] == 2 else z.real[..., None].astype(dy.dtype, copy=False)
    dx = np.zeros(shape, dy.dtype)
    common = tuple(slice(0, min(a, b)) for a, b in zip(shape, full.shape, strict=True))
    dx[common] = full[common]
    return dx


# ---- DFT


def dft_options(c: InferenceContext) -> tuple[int | None, int, bool, bool] | None:
    """Return (length, axis, inverse, onesided) of a DFT; the length is None while unknown, the result while the axis is unknown.

    The axis is an attribute before opset 20 and an input since."""
    rank = len(c.shape(0))
    if c.opset < 20:
        axis: int | None = int(c.attribute("axis", 1))
    else:
        axes = constant_dims(c, 2) if c.has(2) else [-2]
        axis = None if axes is None else axes[0]
    if axis is None:
        return None
    axis = normalize_axis(c, axis, rank)
    if axis == rank - 1:
        raise c.error(f"expected an axis that is not the last, of real and imaginary parts, got {axis}")
    inverse, onesided = bool(c.attribute("inverse", 0)), bool(c.attribute("onesided", 0))
    length = constant_dims(c, 1) if c.has(1) else None
    size = c.shape(0)[axis]
    if not c.has(1) and isinstance(size, int):
        length = [2 * (size - 1) if inverse and onesided else size]
    if length is not None and length[0] < 1:
        raise c.error(f"expected a positive dft_length, got {length[0]}")
    return None if length is None else length[0], axis, inverse, onesided


def constant_dft_options(c: InferenceContext) -> tuple[int, int, bool, bool]:
    """Return the options of a DFT, which must be constant."""
    options = dft_options(c)
    if options is None or options[0] is None:
        raise c.error("expected dft_length and axis that are known before running, got values that are computed")
    return options[0], *options[1:]


def lower_dft(c: LoweringContext) -> KernelCall:
    n, axis, inverse, onesided = constant_dft_options(c)
    return KernelCall("python", function=lambda x, *_: [dft_of(x, n, axis, inverse, onesided)])


def dft_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return first_input_gradient(g, g.op("DFTGrad", g.dy, *g.inputs, domain=ORTRAIN, opset=20 if g.opset >= 20 else 17, **g.node.attributes))


@operator("DFT", lower=lower_dft, gradient=dft_gradient, stop_gradient=(1, 2))
def dft(c: InferenceContext) -> list[TensorType]:
    """y = the discrete Fourier transform of x along an axis, or its inverse; the last axis holds (real, imaginary), or (real) alone in x"""
    shape: list[Dim] = list(c.shape(0))
    if len(shape) < 2 or isinstance(shape[-1], int) and shape[-1] not in (1, 2) or c.dtype(0) not in FLOATS:
        raise c.error(f"expected float32 or float64 numbers with 1 or 2 parts in the last axis, got {c.dtype(0)}{shape}")
    options = dft_options(c)
    if options is None:
        return [TensorType(c.dtype(0), (*(c.new_symbol(f"size{axis}") for axis in range(len(shape) - 1)), 2))]
    n, axis, inverse, onesided = options
    length = n if n is not None else shape[axis] if not c.has(1) and not (inverse and onesided) else c.new_symbol("length")
    shape[axis] = length if inverse or not onesided else length // 2 + 1 if isinstance(length, int) else c.new_symbol("half")
    shape[-1] = 1 if inverse and onesided else 2
    return [TensorType(c.dtype(0), tuple(shape))]


def lower_dft_grad(c: LoweringContext) -> KernelCall:
    node = Node("DFT", c.node.inputs[1:], c.node.outputs, c.node.name, "", c.node.attributes)
    n, axis, inverse, onesided = constant_dft_options(InferenceContext(node, c.types[1:], c.values[1:], int(c.attribute("opset"))))
    shape = c.dims(1)
    return KernelCall("python", function=lambda dy, *_: [dft_adjoint(dy, shape, n, axis, inverse, onesided)])


@operator("DFTGrad", domain=ORTRAIN, lower=lower_dft_grad)
def dft_grad(c: InferenceContext) -> list[TensorType]:
    """dx = the adjoint of the transform applied to dY, of (dY, inputs of DFT)"""
    return [c.type(1)]


# ---- STFT


def frame_options(c: InferenceContext) -> tuple[int, int, int] | None:
    """Return (frame step, frame length, window length) of an STFT, None while unknown. A window shorter than the frame is padded with zeros."""
    step, frame_length = constant_dims(c, 1), constant_dims(c, 3) if c.has(3) else None
    window = c.shape(2)[0] if c.has(2) else None
    if step is None or c.has(3) and frame_length is None or isinstance(window, str):
        return None
    size = c.shape(0)[1] if frame_length is None and window is None else 0
    if isinstance(size, str):
        return None
    length = frame_length[0] if frame_length is not None else window if window is not None else size
    if step[0] < 1 or length < 1 or window is not None and window > length:
        raise c.error(f"expected a positive frame_step, and frames as long as the window at least, got {step[0]}, {length} and {window}")
    return step[0], length, length if window is None else window


def stft_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return the DFT of the frames, gathered from the signal and multiplied element-wise by the window; None while sizes are unknown."""
    kind, options = g.type(g.inputs[0]), frame_options(g.context())
    size = None if kind.shape is None else kind.shape[1]
    if options is None or not isinstance(size, int) or kind.dtype not in FLOATS:
        return None
    step, length, window = options
    signal = g.inputs[0] if len(kind.shape or ()) == 3 else g.op("Reshape", g.inputs[0], g.constant([0, 0, 1]))
    starts = np.arange(int(1 + (size - length) // step), dtype=np.int64) * step
    frames = g.op("Gather", signal, g.constant(starts[:, None] + np.arange(int(window), dtype=np.int64)), axis=1)          # [n, frames, window, parts]
    if g.has(2):
        frames = g.op("Mul", frames, g.op("Reshape", g.inputs[2], g.constant([window, 1])))
    attributes: dict[str, Any] = {"onesided": int(g.attribute("onesided", 1))}
    if g.opset < 20:
        return [g.op("DFT", frames, g.constant(np.array(length, np.int64)), axis=2, **attributes)]
    return [g.op("DFT", frames, g.constant(np.array(length, np.int64)), g.constant(np.array(2)), **attributes)]


@operator("STFT", decompose=stft_decomposition, stop_gradient=(1, 3))
def stft(c: InferenceContext) -> list[TensorType]:
    """y [n, frames, frequencies, 2] = the DFTs of windowed frames of a signal [n, length, 1 or 2], frame_step apart

    As in onnxruntime, a real signal may also be [n, length], which exporters write."""
    shape = c.shape(0)
    if len(shape) not in (2, 3) or len(shape) == 3 and isinstance(shape[2], int) and shape[2] not in (1, 2):
        raise c.error(f"expected a signal [n, length, 1 or 2] or [n, length], got shape {list(shape)}")
    options = frame_options(c)
    if options is None:
        return [TensorType(c.dtype(0), (shape[0], c.new_symbol("frames"), c.new_symbol("length"), 2))]
    step, length, _ = options
    if isinstance(shape[1], int) and shape[1] < length:
        raise c.error(f"expected a signal of {length} elements at least, got {shape[1]}")
    frames = 1 + (shape[1] - length) // step if isinstance(shape[1], int) else c.new_symbol("frames")
    return [TensorType(c.dtype(0), (shape[0], frames, length // 2 + 1 if c.attribute("onesided", 1) else length, 2))]
