"""Models with grid sampling and regions of interest: training, and refused inputs."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain import errors
from ortrain.artifacts import LossType, OptimType

FLOAT = TensorProto.FLOAT


def model(nodes, inputs, output, constants, opset=20):
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info(*output)],
                              [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def hill(x, y):
    """Return an image [1, 1, 16, 16] of a peak at a coordinate in [-1, 1]."""
    at = np.linspace(-1, 1, 16, dtype=np.float32)
    return np.exp(-4 * ((at[None, :] - x) ** 2 + (at[:, None] - y) ** 2))[None, None].astype(np.float32)


def test_a_spatial_transformer_learns_the_translation_of_an_image():
    nodes = [helper.make_node("AffineGrid", ["theta", "size"], ["grid"], align_corners=1),
             helper.make_node("GridSample", ["x", "grid"], ["y"], align_corners=1)]
    start = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    source = model(nodes, [("x", FLOAT, [1, 1, 16, 16])], ("y", FLOAT, [1, 1, 16, 16]), {"theta": start, "size": np.array([1, 1, 16, 16])})
    with ortrain.TrainingSession.from_model(source, loss=LossType.MSELoss, optimizer=OptimType.AdamW, requires_grad=["theta"]) as session:
        session.learning_rate = 0.02
        for _ in range(150):
            session.train_step(hill(0.3, -0.2), hill(0, 0))
            session.optimizer_step()
            session.lazy_reset_grad()
        np.testing.assert_allclose(session.state.trainable["theta"][0, :, 2], [0.3, -0.2], atol=0.03)


@pytest.mark.parametrize("image", [2, -1])
@pytest.mark.parametrize("op_type", ["RoiAlign", "MaxRoiPool"])
def test_a_region_with_an_image_index_out_of_range_is_refused(op_type, image):
    box, images = np.array([[0, 0, 2, 2]], np.float32), np.array([image])
    if op_type == "RoiAlign":
        node, given = helper.make_node(op_type, ["x", "regions", "images"], ["y"]), {"regions": box, "images": images}
    else:
        node = helper.make_node(op_type, ["x", "regions"], ["y"], pooled_shape=[1, 1])
        given = {"regions": np.concatenate([images[:, None], box], 1).astype(np.float32)}
    inputs = [("x", FLOAT, ["n", 3, 4, 4]), *((name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)) for name, array in given.items())]
    session = ortrain.InferenceSession(model([node], inputs, ("y", FLOAT, None), {}))
    with pytest.raises(errors.IndexRangeError):
        session.run(None, {"x": np.zeros((2, 3, 4, 4), np.float32), **given})


def test_differentiating_a_decomposition_with_unknown_sizes_names_the_remedy():
    nodes = [helper.make_node("Mul", ["x", "w"], ["weighted"]), helper.make_node("STFT", ["weighted", "step", "", "length"], ["y"], onesided=1),
             helper.make_node("Flatten", ["y"], ["scores"])]
    source = model(nodes, [("x", FLOAT, ["n", "length of x", 1])], ("scores", FLOAT, ["n", "k"]),
                   {"w": np.ones(1, np.float32), "step": np.array(4), "length": np.array(8)})
    options = {"loss": LossType.MSELoss, "optimizer": OptimType.SGD, "requires_grad": ["w"]}
    with pytest.raises(errors.MissingGradientError, match="input_shapes"):
        ortrain.TrainingSession.from_model(source, **options)
    with ortrain.TrainingSession.from_model(source, input_shapes={"x": [2, 20, 1]}, **options) as session:
        assert float(session.train_step(np.ones((2, 20, 1), np.float32), np.zeros((2, 40), np.float32))[0]) == pytest.approx(64 / 10)
