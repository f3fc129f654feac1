"""The doctor names each node that cannot be trained and each problem of artifacts, with the reason and the remedy."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import ParameterGroup, TrainingSession
from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.cli import main
from ortrain.doctor import ERROR, NOTE, WARNING, examine
from tests.test_open_batch import Builder, lenet, lstm

DATA = Path(__file__).parent / "data" / "ort_golden"
RNG = np.random.default_rng(0)


def weight(name, *shape, dtype=np.float32):
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(dtype), name)


def saved(folder, nodes, initializers, opset=17, ir_version=8, domains=(), output=("n", 3)):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(output))], initializers)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=ir_version), path)
    return path


def only(findings, severity):
    return [finding for finding in findings if finding.severity == severity]


@pytest.mark.parametrize("case", sorted(path.name for path in DATA.iterdir()))
def test_recorded_models_and_artifacts_are_in_order(case):
    assert [finding.where for finding in examine(DATA / case / "forward.onnx")] == (["attention"] if case == "transformer" else [])
    assert examine(DATA / case) == []


def test_an_unknown_operator_is_named_with_its_node(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Strange", ["h"], ["y"], name="odd one", domain="my.company")]
    (finding,) = examine(saved(tmp_path, nodes, [weight("w", 4, 3)], domains=["my.company"]))
    assert finding.severity == ERROR and "my.company::Strange 'odd one'" in finding.where and "register_operator" in finding.remedy


def test_shapes_that_do_not_fit_are_named_at_their_node(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"], name="bias")]
    (finding,) = examine(saved(tmp_path, nodes, [weight("w", 4, 3), weight("b", 2)]))
    assert finding.severity == ERROR and "'bias'" in finding.where


def test_a_model_whose_weights_reach_no_output_is_named(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Floor", ["h"], ["y"])]
    (finding,) = examine(saved(tmp_path, nodes, [weight("w", 4, 3)]))
    assert finding.severity == ERROR and finding.where == "outputs"


def test_weights_of_half_precision_are_named(tmp_path):
    nodes = [helper.make_node("Cast", ["half"], ["w"], to=1), helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Mul", ["h", "s"], ["y"])]
    findings = examine(saved(tmp_path, nodes, [weight("half", 4, 3, dtype=np.float16), weight("s", 3)]))
    assert any("half precision" in finding.reason for finding in only(findings, NOTE))


def test_versions_that_the_old_package_does_not_read_are_notes(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    (finding,) = examine(saved(tmp_path, nodes, [weight("w", 4, 3)], opset=22, ir_version=10))
    assert finding.severity == NOTE and "opset 22" in finding.reason
    (finding,) = examine(saved(tmp_path, nodes, [weight("w", 4, 3)], ir_version=11))
    assert finding.severity == NOTE and "IR version 11" in finding.reason


def test_a_file_that_is_no_model_is_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"garbage")
    (finding,) = examine(tmp_path / "model.onnx")
    assert finding.severity == ERROR


def copied(folder, case="mlp_ce"):
    for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"):
        shutil.copyfile(DATA / case / name, folder / name)
    return folder


@pytest.mark.parametrize(("name", "severity"), [("training_model.onnx", ERROR), ("checkpoint", ERROR), ("eval_model.onnx", WARNING),
                                                ("optimizer_model.onnx", WARNING)])
def test_a_missing_file_is_named(name, severity, tmp_path):
    (copied(tmp_path) / name).unlink()
    (finding,) = examine(tmp_path)
    assert (finding.severity, finding.where) == (severity, name)


def test_models_that_do_not_belong_together_are_named(tmp_path):
    shutil.copyfile(DATA / "cnn" / "checkpoint", copied(tmp_path) / "checkpoint")
    assert only(examine(tmp_path), ERROR)


def test_a_nominal_checkpoint_is_named(tmp_path):
    shutil.copyfile(DATA / "mlp_ce" / "nominal_checkpoint", copied(tmp_path) / "checkpoint")
    (finding,) = examine(tmp_path)
    assert "nominal" in finding.reason


def test_an_eval_model_in_another_order_is_named(tmp_path):
    path = copied(tmp_path) / "eval_model.onnx"
    model = onnx.load(path)
    inputs = list(model.graph.input)
    del model.graph.input[:]
    model.graph.input.extend([*inputs[:1], *inputs[:0:-1]])
    onnx.save(model, path)
    (finding,) = examine(tmp_path)
    assert finding.where == "eval_model.onnx"


def written(folder, nodes, extra=()):
    """A training model with these nodes, as the old package might have written it."""
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4]),
                                           helper.make_tensor_value_info("lazy_reset_grad", TensorProto.BOOL, [1])],
                              [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)], list(extra))
    path = folder / "training_model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)], ir_version=9), path)
    return path


MS = "com.microsoft"
KNOWN_WRONG = {
    "ConvGrad with auto_pad": [helper.make_node("ConvGrad", ["x", "x", "x"], ["d"], domain=MS, auto_pad="SAME_UPPER", name="wrong")],
    "LeakyReluGrad of a negative alpha": [helper.make_node("LeakyRelu", ["x"], ["y"], alpha=-0.5),
                                          helper.make_node("LeakyReluGrad", ["x", "y"], ["d"], domain=MS, alpha=-0.5, name="wrong")],
    "GeluGrad of the tanh form": [helper.make_node("Gelu", ["x"], ["y"], approximate="tanh"),
                                  helper.make_node("GeluGrad", ["x", "x"], ["d"], domain=MS, name="wrong")],
}


@pytest.mark.parametrize("nodes", KNOWN_WRONG.values(), ids=KNOWN_WRONG)
def test_a_written_gradient_that_is_known_to_be_wrong_is_named(nodes, tmp_path):
    (finding,) = examine(written(tmp_path, nodes))
    assert finding.severity == WARNING and "'wrong'" in finding.where and "again with ortrain" in finding.remedy


def test_what_ortrain_writes_for_the_same_is_in_order(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("LeakyRelu", ["h"], ["a"], alpha=-0.5),
             helper.make_node("Gelu", ["a"], ["y"], approximate="tanh")]
    model = saved(tmp_path, nodes, [weight("w", 4, 3)], opset=20)
    generate_artifacts(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path)
    assert examine(tmp_path) == []


def test_the_command_prints_findings_and_says_by_its_status_whether_it_trains(tmp_path, capsys):
    assert main(["doctor", str(DATA / "mlp_ce")]) == 0
    assert "the model can be trained" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "error: training_model.onnx" in printed and "remedy:" in printed
    assert main(["doctor", str(tmp_path / "nope.onnx")]) == 1


def examined(model, folder):
    onnx.save(model, folder / "model.onnx")
    return examine(folder / "model.onnx")


def test_a_fixed_batch_that_can_be_opened_is_a_note_with_the_shapes_to_give(tmp_path):
    (finding,) = examined(lenet(), tmp_path)
    assert finding.severity == NOTE and "axis 0 has size 1" in finding.reason and "input_shapes={'image': ['batch', 1, 8, 8]}" in finding.remedy


def test_a_fixed_batch_of_a_recurrent_model_may_be_its_axis_1(tmp_path):
    b = Builder()
    y = b.op("LSTM", "x", b.weight(1, 20, 3), b.weight(1, 20, 5), hidden_size=5)
    (finding,) = examined(b.model([("x", "float32", [7, 2, 3])], y), tmp_path)
    assert finding.severity == NOTE and "exactly 2 samples" in finding.reason and "[7, 'batch', 3]" in finding.remedy
    (finding,) = examined(lstm(batch=1), tmp_path)
    assert "['batch', 7, 3]" in finding.remedy


def test_a_fixed_batch_that_cannot_be_opened_is_a_warning_with_the_node(tmp_path):
    b = Builder()
    y = b.op("Sub", b.op("MatMul", "x", b.weight(4, 3)), b.weight(8, 3))
    (finding,) = examined(b.model([("x", "float32", [8, 4])], y), tmp_path)
    assert finding.severity == WARNING and "Sub node 'Sub_1'" in finding.remedy and "export the model with a dynamic batch axis" in finding.remedy


def deep(folded):
    b, h = Builder(), "x"
    for _ in range(8):
        h = b.op("Conv", h, b.weight(3, 3, 1, 1), *([b.weight(3)] if folded else []))
        h = b.op("Relu", h if folded else b.op("BatchNormalization", h, *(b.constant(np.ones(3, np.float32)) for _ in range(4))))
    return b.model([("x", "float32", ["n", 3, 4, 4])], h)


def test_folded_batch_normalization_is_a_note(tmp_path):
    (finding,) = examined(deep(folded=True), tmp_path)
    assert finding.severity == NOTE and "8 convolutions" in finding.where and "folded" in finding.reason
    assert examined(deep(folded=False), tmp_path) == []


@pytest.mark.parametrize("kind", ["Dropout without training_mode", "Dropout with training_mode false", "Identity in place of Dropout"])
def test_dropout_in_inference_mode_is_a_note(kind, tmp_path):
    b = Builder()
    h = b.op("MatMul", "x", b.weight(4, 4))
    if kind.startswith("Identity"):
        h = b.op("Identity", h)
        b.nodes[-1].name = "/encoder/dropout/Identity"
    else:
        h = b.op("Dropout", h, *([b.constant(np.float32(0.5)), b.constant(np.array(False))] if "false" in kind else []))
    (finding,) = examined(b.model([("x", "float32", ["n", 4])], b.op("MatMul", h, b.weight(4, 2))), tmp_path)
    assert finding.severity == NOTE and "inference mode" in finding.reason


def test_dropout_that_trains_is_in_order(tmp_path):
    b = Builder()
    h = b.op("Dropout", b.op("MatMul", "x", b.weight(4, 4)), b.constant(np.float32(0.5)), b.constant(np.array(True)))
    assert examined(b.model([("x", "float32", ["n", 4])], b.op("MatMul", h, b.weight(4, 2))), tmp_path) == []


def test_reasons_and_remedies_are_sentences(tmp_path):
    findings = [*examined(lenet(), tmp_path), *examined(deep(folded=True), tmp_path), *examine(copied(tmp_path)), *examine(tmp_path / "model.onnx")]
    (tmp_path / "model.onnx").write_bytes(b"garbage")
    findings += examine(tmp_path / "model.onnx")
    assert findings
    for text in (text for finding in findings for text in (finding.reason, finding.remedy)):
        assert text[0].isupper() and text.endswith(".") and not text.endswith(".."), text


def test_artifacts_that_only_ortrain_can_load_are_named(tmp_path):
    model = saved(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], [weight("w", 4, 3)])
    generate_artifacts(model, loss="focal", optimizer="lion", artifact_directory=tmp_path)
    assert [(f.severity, f.where) for f in examine(tmp_path)] == [(NOTE, "training_model.onnx"), (NOTE, "optimizer_model.onnx")]
    assert "LionOptimizer" in examine(tmp_path)[1].reason


def test_parameter_groups_in_a_checkpoint_are_a_note(tmp_path):
    model = saved(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], [weight("w", 4, 3)])
    generate_artifacts(model, loss="mse", optimizer="adamw", artifact_directory=tmp_path)
    with TrainingSession.from_artifacts(tmp_path) as session:
        session.set_parameter_groups([ParameterGroup("w", learning_rate_scale=0.5)])
        session.save_checkpoint(tmp_path / "checkpoint", include_optimizer_state=True)
    assert [(f.severity, f.where) for f in examine(tmp_path)] == [(NOTE, "checkpoint")]
