"""Samples of DFT and STFT; the oracle is onnx's reference implementation."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(103)
REAL, COMPLEX = rng.standard_normal((2, 7, 3, 1)), rng.standard_normal((2, 6, 4, 2))
SIGNAL, WINDOW = rng.standard_normal((2, 20, 1)), np.hanning(8) + 0.1


def dft(x, length=None, axis=1, opset=20, **attributes):
    inputs = [x] if length is None else [x, np.array(length)]
    if opset >= 20:
        inputs = [x, None if length is None else np.array(length), np.array(axis)]
    else:
        attributes = attributes | {"axis": axis}
    return Sample("DFT", inputs, by_reference("DFT", attributes, opset), attributes, opset=opset, constants=(1, 2))


def dft_by_matrix(x, n, axis):
    """Return the DFT of (real, imaginary) pairs as a multiplication by the matrices of cosines and sines."""
    angle = 2 * np.pi * np.outer(np.arange(n), np.arange(x.shape[axis])) / n
    real, imaginary = np.moveaxis(x, axis, -2)[..., 0], np.moveaxis(x, axis, -2)[..., 1]
    turned = [real @ np.cos(angle).T + imaginary @ np.sin(angle).T, imaginary @ np.cos(angle).T - real @ np.sin(angle).T]
    return np.moveaxis(np.stack(turned, -1), -2, axis).astype(x.dtype)


def stft(*inputs, opset=17, **attributes):
    return Sample("STFT", inputs, by_reference("STFT", attributes, opset), attributes, opset=opset, constants=(1, 3))


SAMPLES = [
    *[dft(x, length, axis, opset, inverse=inverse) for x in (REAL, COMPLEX) for length in (None, 5, 9) for axis in (1, 2) for inverse in (0, 1)
      for opset in ((17, 20) if length is None else (20,))],
    *[dft(REAL, length, axis, onesided=1) for length in (None, 4, 8) for axis in (1, -2)], dft(COMPLEX, None, 1, 17, onesided=1),
    *[dft(COMPLEX, length, onesided=1, inverse=1) for length in (None, 9, 12)],
    Sample("DFT", [COMPLEX], by_reference("DFT", {}, 20), opset=20), dft(REAL, opset=17),
    Sample("DFTGrad", [rng.standard_normal((2, 6, 4, 2)), COMPLEX], lambda dy, x: dft_by_matrix(dy * [1, -1], 6, 1) * [1, -1], {"opset": 17, "axis": 1}, "ortrain", gradient=False),
    stft(SIGNAL, np.array(4), WINDOW), stft(SIGNAL, np.array(3), WINDOW, np.array(8), onesided=0), stft(SIGNAL, np.array(5), None, np.array(7), opset=20),
    stft(rng.standard_normal((1, 16, 2)), np.array(4), WINDOW, onesided=0),
    Sample("STFT", [SIGNAL[..., 0], np.array(4), WINDOW], lambda x, *more: by_reference("STFT", {"onesided": 1}, 17)(x[..., None], *more), {"onesided": 1},
           constants=(1,), label="a real signal without its last axis"),
]
REFUSALS = [
    Refusal("DFT", [REAL[..., [0, 0, 0]]], opset=20), Refusal("DFT", [REAL, None, np.array(3)], opset=20, constants=(2,)),
    Refusal("DFT", [REAL, np.array(0)], opset=20, constants=(1,)), Refusal("DFT", [REAL], {"axis": 5}),
    Refusal("STFT", [SIGNAL, np.array(0), WINDOW], constants=(1,)), Refusal("STFT", [SIGNAL[0, :, 0], np.array(4), WINDOW], constants=(1,)),
    Refusal("STFT", [SIGNAL, np.array(4), WINDOW, np.array(5)], constants=(1, 3)), Refusal("STFT", [SIGNAL, np.array(4), None, np.array(25)], constants=(1, 3)),
]
