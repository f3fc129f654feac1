"""Samples of Col2Im and MaxUnpool, with onnx's reference implementation as oracle, and of Unfold."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(97)


def folded(x, image, block, **attributes):
    return Sample("Col2Im", [rng.standard_normal(x), np.array(image), np.array(block)], by_reference("Col2Im", attributes, 18), attributes, opset=18,
                  constants=(1, 2))


def unpooled(x, size, kernel, output_shape=None, opset=11, **attributes):
    count = int(np.prod([*x[:2], *size]))
    inputs = [rng.standard_normal(x), rng.permutation(count)[: np.prod(x)].reshape(x)]
    attributes = {"kernel_shape": kernel} | attributes
    return Sample("MaxUnpool", inputs + ([] if output_shape is None else [np.array(output_shape)]), by_reference("MaxUnpool", attributes, 22), attributes,
                  opset=opset, constants=(2,))


def windows(x, kernel_shape, strides, dilations, pads):
    rank = len(kernel_shape)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    counts = [(size - (kernel - 1) * dilation - 1) // stride + 1
              for size, kernel, stride, dilation in zip(padded.shape[2:], kernel_shape, strides, dilations, strict=True)]
    columns = [padded[:, :, *(slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
                              for at, count, stride, dilation in zip(place, counts, strides, dilations, strict=True))]
               for place in np.ndindex(*kernel_shape)]
    return np.stack(columns, 2).reshape(len(x), -1, np.prod(counts))


def unfolded(x, kernel, strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0)):
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    return Sample("Unfold", [rng.standard_normal(x)], lambda images: windows(images, **attributes), attributes, domain="ortrain", gradient=False)


X, PLACES = rng.standard_normal((1, 1, 2, 2)), np.arange(4).reshape(1, 1, 2, 2) * 3
SAMPLES = [
    folded((2, 12, 12), (4, 5), (2, 2)), folded((1, 18, 6), (4, 5), (3, 3)), folded((2, 6, 15), (5, 5), (1, 3), strides=(2, 1), pads=(0, 1, 1, 1)),
    folded((1, 8, 9), (5, 5), (2, 2), dilations=(2, 2)), folded((1, 5, 4), (8,), (5,)), folded((1, 16, 8), (3, 3, 3), (2, 2, 2)),
    folded((1, 4, 25), (4, 4), (2, 2), pads=(1, 1, 1, 1)),
    unpooled((2, 3, 2, 3), (4, 6), (2, 2), strides=(2, 2)), unpooled((1, 2, 3), (5,), (3,), opset=9), unpooled((1, 2, 2, 2), (3, 3), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    unpooled((1, 2, 2, 2), (4, 4), (2, 2), (1, 2, 5, 6), strides=(2, 2)), unpooled((1, 1, 2, 2), (4, 4), (2, 2), (1, 1, 5, 5), opset=9, strides=(2, 2)),
    unpooled((1, 1, 2, 2, 2), (4, 4, 4), (2, 2, 2), strides=(2, 2, 2), opset=22),
    unfolded((2, 3, 5, 6), (2, 3)), unfolded((2, 3, 5, 6), (3, 2), (2, 1), (1, 2), (1, 0, 2, 1)), unfolded((2, 3, 7), (3,), (2,), (2,), (1, 1)),
    unfolded((2, 3, 5, 6), (1, 1)), unfolded((2, 3, 5, 6), (1, 1), (2, 1)),
]
REFUSALS = [
    Refusal("Col2Im", [np.zeros((1, 5, 6)), np.array([4, 5]), np.array([3, 3])], opset=18, constants=(1, 2)),
    Refusal("Col2Im", [np.zeros((1, 9, 7)), np.array([4, 5]), np.array([3, 3])], opset=18, constants=(1, 2)),
    Refusal("Col2Im", [np.zeros((9, 6)), np.array([4, 5]), np.array([3, 3])], opset=18, constants=(1, 2)),
    Refusal("Col2Im", [np.zeros((1, 9, 6)), np.array([2, 2]), np.array([3, 3])], opset=18, constants=(1, 2), match="fit"),
    *[Refusal("Col2Im", [np.zeros((1, 9, 6)), np.array([4, 5]), np.array([3, 3])], {name: (0, 1)}, opset=18, constants=(1, 2), match="positive")
      for name in ("strides", "dilations")],
    Refusal("MaxUnpool", [X, PLACES]), Refusal("MaxUnpool", [X, PLACES * 1.0], {"kernel_shape": (2, 2)}),
    Refusal("MaxUnpool", [X, PLACES, np.array([1, 1, 2, 3])], {"kernel_shape": (2, 2)}, constants=(2,)),
]
