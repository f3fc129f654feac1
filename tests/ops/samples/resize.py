"""Samples of Resize and Upsample; the oracle is onnx's reference implementation."""

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(41)
X = rng.standard_normal((2, 3, 5, 7))
NONE = np.zeros(0)
SCALES = np.array([1, 1, 1.7, 0.65]).astype(np.float32).astype(np.float64)
SIZES = np.array([2, 3, 9, 4])


def reference(op_type, opset, attributes):
    def run(*arrays):
        names = [f"x{i}" if array is not None else "" for i, array in enumerate(arrays)]
        node = helper.make_node(op_type, names, ["y"], **attributes)
        given = {name: array.astype(np.float64) if i in (1, 2) and op_type != "Upsample" else array
                 for i, (name, array) in enumerate(zip(names, arrays, strict=True)) if name}
        inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in given.items()]
        model = helper.make_model(helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)]),
                                  opset_imports=[helper.make_opsetid("", opset)])
        # the reference rounds cubic weights to float32: it is no oracle for float64, which the float32 run is compared with elsewhere
        return (None,) if attributes.get("mode") == "cubic" and arrays[0].dtype == np.float64 else ReferenceEvaluator(model).run(None, given)[0]

    return run


def resized(scales=None, sizes=None, opset=18, roi=NONE, **attributes):
    inputs = [X, roi, scales, sizes] if sizes is not None else [X, roi, scales]
    return Sample("Resize", inputs, reference("Resize", opset, attributes), attributes, opset=opset, constants=(1, 2, 3))


def along(x, indices, weights):
    """Return y[…, j, …] along axis 1."""
    return np.stack([sum(w * x[:, i] for i, w in zip(row, ws, strict=True)) for row, ws in zip(indices, weights, strict=True)], 1)


def adjoint(dy, indices, weights):
    dx = np.zeros((dy.shape[0], 3, *dy.shape[2:]), dy.dtype)
    for j, (row, ws) in enumerate(zip(indices, weights, strict=True)):
        for i, w in zip(row, ws, strict=True):
            dx[:, i] += w * dy[:, j]
    return dx


def repeated(n, factor, inner):
    """Return samples of ResampleAxis and of its gradient that repeat n rows of `inner` elements."""
    table = {"axis": 1, "indices": np.arange(n).repeat(factor)[:, None], "weights": np.ones((n * factor, 1))}
    dy = rng.standard_normal((3, n * factor, inner))
    return [Sample("ResampleAxis", [rng.standard_normal((3, n, inner))], lambda x: x.repeat(factor, 1), {**table, "size": n * factor}, "ortrain", gradient=n < 9),
            Sample("ResampleAxisGrad", [dy], lambda dy: dy.reshape(3, n, factor, inner).sum(2), {**table, "size": n}, "ortrain", gradient=False)]


INDICES, WEIGHTS = np.array([[0, 1], [1, 2], [2, 2], [0, 2]]), np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0], [2.0, -1.0]])
TABLE = {"axis": 1, "indices": INDICES, "weights": WEIGHTS}
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")

SAMPLES = [
    *[resized(SCALES, mode=mode, coordinate_transformation_mode=c, opset=19) for mode in ("nearest", "linear", "cubic") for c in COORDINATES],
    *[resized(None, SIZES, mode=mode) for mode in ("nearest", "linear", "cubic")],
    *[resized(SCALES, nearest_mode=n) for n in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")],
    resized(SCALES, mode="linear", antialias=1), resized(SCALES, mode="cubic", antialias=1), resized(SCALES, mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
    resized(np.array([1.0, 1, 2, 2]), mode="linear", opset=11), resized(None, np.array([9, 4]), axes=(2, 3), mode="linear"),
    resized(None, np.array([9, 4]), axes=(2, 3), keep_aspect_ratio_policy="not_larger"), resized(None, np.array([9, 4]), axes=(2, 3), keep_aspect_ratio_policy="not_smaller"),
    resized(None, np.array([2, 3, 4, 4]), roi=np.array([0, 0, 0.2, 0.3, 1, 1, 0.9, 0.7]), mode="linear", coordinate_transformation_mode="tf_crop_and_resize"),
    resized(None, np.array([2, 3, 4, 4]), roi=np.array([0, 0, 0.2, 0.3, 1, 1, 1.4, 1.2]), mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0),
    Sample("Resize", [X, np.array([1.0, 1, 2, 2])], lambda x, s: x.repeat(2, 2).repeat(2, 3), opset=10, constants=(1,)),
    Sample("Upsample", [X, np.array([1.0, 1, 2, 2])], lambda x, s: x.repeat(2, 2).repeat(2, 3), opset=9, constants=(1,)),
    Sample("Upsample", [X], lambda x: x.repeat(3, 2), {"scales": (1.0, 1.0, 3.0, 1.0)}, opset=8),
    *[sample for n, factor, inner in ((5, 2, 1), (5, 3, 1), (5, 4, 1), (5, 2, 33), (5, 3, 70), (5, 2, 7), (9001, 2, 1), (700, 2, 33)) for sample in repeated(n, factor, inner)],
    Sample("ResampleAxis", [X[:, :, 0]], lambda x: x[:, [0, 0, 1, 1, 1, 2]], {"axis": 1, "indices": np.array([[0], [0], [1], [1], [1], [2]]), "weights": np.ones((6, 1)), "size": 6},
           "ortrain"),
    Sample("ResampleAxis", [X[:, :, 0]], lambda x: along(x, INDICES, WEIGHTS).astype(x.dtype), {**TABLE, "size": 4}, "ortrain"),
    Sample("ResampleAxisGrad", [rng.standard_normal((2, 4, 5))], lambda dy: adjoint(dy, INDICES, WEIGHTS), {**TABLE, "size": 3}, "ortrain", gradient=False),
    Sample("ResizeGrad", [rng.standard_normal((2, 3, 10, 7)), X, None, np.array([1.0, 1, 2, 1])], lambda dy, x, r, s: dy.reshape(2, 3, 5, 2, 7).sum(3), {}, "ortrain",
           gradient=False, constants=(3,)),
]
REFUSALS = [
    Refusal("Resize", [X, NONE, np.array([2.0, 2.0])], constants=(1, 2)), Refusal("Resize", [X, NONE, SCALES], {"mode": "best"}, constants=(1, 2)),
    *[Refusal("Resize", [X, NONE, np.array([1, 1, 2, scale])], constants=(1, 2), match="positive scales") for scale in (0.0, -1.0, np.nan, np.inf)],
    *[Refusal("ResampleAxis", [X], {"axis": axis, "size": 1, "indices": np.array([[place]]), "weights": np.ones((1, 1))}, domain="ortrain", match=match)
      for axis, place, match in ((-1, 0, "an axis"), (9, 0, "an axis"), (2, -1, "indices below"), (2, 99, "indices below"))],
]
