"""A classifier gets a new head with another number of classes, wherever the shapes prove that it is one."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain.errors import InvalidArgumentError, OutputNotFoundError
from ortrain.formats.onnx_files import to_proto
from ortrain.loading.loader import load_model
from ortrain.passes.head import head_parameters

OLD, NEW, WIDTH = 7, 3, 6
X = np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32)
IMAGE = np.random.default_rng(1).standard_normal((4, WIDTH, 5, 5)).astype(np.float32)


def build(nodes, weights, outputs=None, image=False, batch="n") -> onnx.ModelProto:
    shape = [batch, WIDTH, 5, 5] if image else [batch, WIDTH]
    outputs = outputs or {"scores": (TensorProto.FLOAT, [batch, OLD])}
    made = [helper.make_node(*node[:3], name=f"node{number}", **(node[3] if len(node) > 3 else {})) for number, node in enumerate(nodes)]
    graph = helper.make_graph(made, "network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
                              [numpy_helper.from_array(np.asarray(value) if np.asarray(value).dtype == np.int64 else np.asarray(value, np.float32), name)
                               for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


HEADS = {
    "Gemm": build([("Gemm", ["x", "fc.weight", "fc.bias"], ["scores"], {"transB": 1})], {"fc.weight": random(OLD, WIDTH), "fc.bias": random(OLD)}),
    "Gemm without bias": build([("Gemm", ["x", "fc.weight"], ["scores"])], {"fc.weight": random(WIDTH, OLD)}),
    "MatMul and Add": build([("MatMul", ["x", "fc.weight"], ["p"]), ("Add", ["fc.bias", "p"], ["scores"])],
                            {"fc.weight": random(WIDTH, OLD), "fc.bias": random(1, OLD)}),
    "transposed weight": build([("Transpose", ["fc.weight"], ["w"]), ("MatMul", ["x", "w"], ["scores"])], {"fc.weight": random(OLD, WIDTH)}),
    "Softmax behind it": build([("Gemm", ["x", "fc.weight", "fc.bias"], ["s"]), ("Identity", ["s"], ["i"]), ("Softmax", ["i"], ["scores"])],
                               {"fc.weight": random(WIDTH, OLD), "fc.bias": random(OLD)}),
    "Softmax and Reshape": build([("Gemm", ["x", "fc.weight"], ["s"]), ("Softmax", ["s"], ["p"]), ("Reshape", ["p", "shape"], ["scores"])],
                                 {"fc.weight": random(WIDTH, OLD), "shape": np.array([-1, OLD])}),
    "convolution and pooling": build([("Conv", ["x", "fc.weight", "fc.bias"], ["c"]), ("Relu", ["c"], ["r"]), ("GlobalAveragePool", ["r"], ["g"]),
                                      ("Reshape", ["g", "shape"], ["scores"])],
                                     {"fc.weight": random(OLD, WIDTH, 1, 1), "fc.bias": random(OLD), "shape": np.array([-1, OLD])}, image=True),
    "map of classes": build([("Conv", ["x", "fc.weight"], ["scores"], {"pads": [1, 1, 1, 1]})], {"fc.weight": random(OLD, WIDTH, 3, 3)},
                            {"scores": (TensorProto.FLOAT, ["n", OLD, 5, 5])}, image=True),
    "fixed batch": build([("Gemm", ["x", "fc.weight"], ["s"]), ("Reshape", ["s", "shape"], ["scores"])],
                         {"fc.weight": random(WIDTH, OLD), "shape": np.array([4, OLD])}, batch=4),
}


def run(model, **feeds):
    return ortrain.InferenceSession(to_proto(model).SerializeToString()).run(None, feeds)


@pytest.mark.parametrize("case", HEADS)
def test_the_last_layer_is_replaced_and_keeps_its_names(case):
    old, x = load_model(HEADS[case]), IMAGE if HEADS[case].graph.input[0].type.tensor_type.shape.dim[2:] else X
    new = ortrain.replace_head(HEADS[case], NEW)
    proto = to_proto(new)
    onnx.checker.check_model(proto, full_check=True)
    assert {name for name in new.graph.initializers if name.startswith("fc.")} == {name for name in old.graph.initializers if name.startswith("fc.")}
    scores = run(new, x=x)[0]
    assert scores.shape == tuple(NEW if size == OLD else size for size in run(old, x=x)[0].shape)
    assert [dim.dim_value or dim.dim_param for dim in proto.graph.output[0].type.tensor_type.shape.dim][:2] == [4 if case == "fixed batch" else "n", NEW]
    assert new.graph.outputs == ["scores"] and "Softmax" not in [node.op_type for node in new.graph.nodes]
    assert load_model(HEADS[case]).graph.initializers["fc.weight"].shape == old.graph.initializers["fc.weight"].shape


@pytest.mark.parametrize("case", HEADS)
def test_a_new_head_is_uniform_in_the_limits_of_a_linear_layer_and_the_same_for_the_same_seed(case):
    new, again, other = (ortrain.replace_head(HEADS[case], 300, seed=seed).graph.initializers for seed in (1, 1, 2))
    weight = new["fc.weight"]
    limit = 1 / np.sqrt(weight.size / 300)
    assert 0.9 * limit < np.abs(weight).max() <= limit and abs(weight.std() - limit / np.sqrt(3)) < 0.06 * limit
    assert all(np.abs(array).max() <= limit for name, array in new.items() if name.startswith("fc."))
    assert all(np.array_equal(array, again[name]) for name, array in new.items())
    assert not np.array_equal(weight, other["fc.weight"])


def test_a_head_of_the_same_size_is_new_as_well():
    new = ortrain.replace_head(HEADS["Gemm"], OLD)
    assert new.graph.initializers["fc.weight"].shape == (OLD, WIDTH)
    assert not np.array_equal(new.graph.initializers["fc.weight"], load_model(HEADS["Gemm"]).graph.initializers["fc.weight"])


def test_a_tied_weight_stays_for_its_other_readers():
    tied = build([("Gather", ["table", "rows"], ["e"], {}), ("ReduceMean", ["e"], ["m"], {"axes": [0], "keepdims": 1}), ("Add", ["x", "m"], ["h"]),
                  ("Gemm", ["h", "table"], ["scores"], {"transB": 1})], {"table": random(OLD, WIDTH), "rows": np.array([1, 2])})
    new = ortrain.replace_head(tied, NEW)
    np.testing.assert_array_equal(new.graph.initializers["table"], load_model(tied).graph.initializers["table"])
    assert run(new, x=X)[0].shape == (4, NEW)


def test_other_outputs_that_read_an_activation_keep_it():
    model = build([("Gemm", ["x", "fc.weight"], ["s"]), ("Softmax", ["s"], ["scores"]), ("ArgMax", ["scores"], ["label"], {"axis": 1, "keepdims": 0}),
                   ("Mul", ["scores", "two"], ["twice"])], {"fc.weight": random(WIDTH, OLD), "two": 2.0},
                  {"scores": (TensorProto.FLOAT, ["n", OLD]), "label": (TensorProto.INT64, ["n"]), "twice": (TensorProto.FLOAT, ["n", OLD])})
    scores, label, twice = run(ortrain.replace_head(model, NEW), x=X)
    np.testing.assert_array_equal(label, scores.argmax(1))
    exponential = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(twice, 2 * exponential / exponential.sum(1, keepdims=True), rtol=1e-5)


def test_the_head_of_a_chosen_output_is_replaced_alone():
    model = build([("Gemm", ["x", "a.weight"], ["a"]), ("Gemm", ["x", "b.weight"], ["b"])], {"a.weight": random(WIDTH, OLD), "b.weight": random(WIDTH, OLD)},
                  {"a": (TensorProto.FLOAT, ["n", OLD]), "b": (TensorProto.FLOAT, ["n", OLD])})
    assert [scores.shape for scores in run(ortrain.replace_head(model, NEW, output="b"), x=X)] == [(4, OLD), (4, NEW)]
    with pytest.raises(OutputNotFoundError, match="'c'"):
        ortrain.replace_head(model, NEW, output="c")


REFUSED = {
    "residual": (build([("Gemm", ["x", "w"], ["g"]), ("Add", ["g", "x"], ["scores"])], {"w": random(WIDTH, WIDTH)},
                       {"scores": (TensorProto.FLOAT, ["n", WIDTH])}), "Add"),
    "normalized": (build([("Gemm", ["x", "w"], ["g"]), ("LayerNormalization", ["g", "s"], ["scores"])], {"w": random(WIDTH, OLD), "s": random(OLD)}),
                   "LayerNormalization"),
    "computed weight": (build([("Transpose", ["x"], ["t"]), ("MatMul", ["x", "t"], ["scores"])], {},
                              {"scores": (TensorProto.FLOAT, ["n", "n"])}), "computed weight"),
    "mean of classes": (build([("Gemm", ["x", "w"], ["g"]), ("ReduceMean", ["g"], ["scores"], {"axes": [1], "keepdims": 1})], {"w": random(WIDTH, OLD)},
                              {"scores": (TensorProto.FLOAT, ["n", 1])}), r"\[.*, 1\]"),
    "no layer": (build([("Relu", ["x"], ["scores"])], {}, {"scores": (TensorProto.FLOAT, ["n", WIDTH])}), "which no node computes"),
    "ambiguous shape": (build([("Gemm", ["x", "w"], ["g"]), ("Reshape", ["g", "shape"], ["scores"])], {"w": random(WIDTH, 4), "shape": np.array([4, 4])},
                              {"scores": (TensorProto.FLOAT, [4, 4])}, batch=4), "twice"),
    "other nodes need its size": (build([("Gemm", ["x", "w"], ["scores"]), ("Mul", ["scores", "f"], ["y"])], {"w": random(WIDTH, OLD), "f": random(OLD)},
                                        {"scores": (TensorProto.FLOAT, ["n", OLD]), "y": (TensorProto.FLOAT, ["n", OLD])}), "outputs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_whose_head_cannot_be_proved_is_refused(case):
    model, message = REFUSED[case]
    with pytest.raises(InvalidArgumentError, match=message):
        ortrain.replace_head(model, NEW)


@pytest.mark.parametrize("classes", [0, -1, True, 2.5, "3"])
def test_a_number_of_classes_that_is_none_is_refused(classes):
    with pytest.raises(InvalidArgumentError, match="number of classes"):
        ortrain.replace_head(HEADS["Gemm"], classes)


@pytest.mark.parametrize("case", ["Gemm", "Softmax behind it", "convolution and pooling"])
def test_a_trainer_learns_other_classes_with_a_new_head_alone(case):
    rng = np.random.default_rng(2)
    labels = rng.integers(0, NEW, 60)
    x = rng.standard_normal((60, WIDTH)).astype(np.float32) * 0.1
    x[np.arange(60), labels] += 1
    if case.startswith("conv"):
        x = x[:, :, None, None] + 0.5 * rng.standard_normal((60, WIDTH, 5, 5)).astype(np.float32)
    with ortrain.Trainer.from_model(HEADS[case], loss="cross-entropy", num_classes=NEW, requires_grad="head", learning_rate=0.03,
                                    progress=False) as trainer:
        assert set(trainer.session.state.trainable) == {"fc.weight", "fc.bias"}
        trainer.fit(x, labels, epochs=40)
        assert trainer.evaluate(x, labels)["accuracy"] > 0.95
        assert trainer.predict(x).shape == (60, NEW)


def test_a_new_head_is_what_head_stands_for():
    model = ortrain.replace_head(HEADS["convolution and pooling"], NEW)
    assert head_parameters(model, ["fc.weight", "fc.bias"]) == ["fc.weight", "fc.bias"]
