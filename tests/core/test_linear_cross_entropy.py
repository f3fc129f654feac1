"""A linear layer with many scores is fused with its loss, so that the scores never exist at once: the same losses and gradients in less memory."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import SessionOptions, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import rewriting
from tests.test_rematerialization import assert_same_bits, operators, program_of

WIDTH, CLASSES, LENGTH, BATCH = 24, 1100, 100, 12
RNG = np.random.default_rng(7)
WEIGHTS = {"w": RNG.standard_normal((WIDTH, CLASSES)) / 5, "wt": RNG.standard_normal((CLASSES, WIDTH)) / 5, "b": RNG.standard_normal(CLASSES) / 5,
           "body": RNG.standard_normal((WIDTH, WIDTH)) / 5, "table": RNG.standard_normal((CLASSES, WIDTH)) / 5}


def node(op_type, inputs, output, **attributes):
    return helper.make_node(op_type, inputs, [output], **attributes)


SCORES_AS_ROWS = node("Reshape", ["p", "row"], "y")
HEADS = {
    "product": [node("MatMul", ["h", "w"], "p"), SCORES_AS_ROWS],
    "product and bias": [node("MatMul", ["h", "w"], "m"), node("Add", ["b", "m"], "p"), SCORES_AS_ROWS],
    "Gemm of transposed weights": [node("Flatten", ["h"], "f", axis=2), node("Gemm", ["f", "wt", "b"], "y", transB=1)],
    "transposed embedding": [node("Transpose", ["table"], "t", perm=[1, 0]), node("MatMul", ["h", "t"], "p"), SCORES_AS_ROWS],
}
heads = pytest.mark.parametrize("head", HEADS)


def language_model(head, batch="n"):
    """Return a model from tokens [n, 100] to scores [100 n, 1100]."""
    nodes = [node("Gather", ["table", "x"], "e"), node("MatMul", ["e", "body"], "q"), node("Tanh", ["q"], "h"), *HEADS[head]]
    used = {name for made in nodes for name in made.input}
    constants = {"row": np.array([-1, CLASSES])}
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in WEIGHTS.items() if name in used]
    initializers += [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.INT64, [batch, LENGTH])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", CLASSES])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), used & WEIGHTS.keys()


def data(batch=BATCH, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, CLASSES, (batch, LENGTH)), np.where(rng.random(batch * LENGTH) < 0.1, -1, rng.integers(0, CLASSES, batch * LENGTH))


def session_of(head, trained=(), loss=LossType.CrossEntropyLoss, optimizer=None, **options):
    model, weights = language_model(head)
    return TrainingSession.from_model(model, loss=loss, optimizer=optimizer, requires_grad=sorted(trained or weights), options=SessionOptions(**options))


def assert_same_gradients(fused, separate, tolerance=1e-6):
    """Compare by the norm of the difference. In bfloat16, another order of sums may round an operand of the next product to a neighbor, off by up to 2^-8."""
    for name, gradient in separate.state.gradients.items():
        assert np.linalg.norm(fused.state.gradients[name] - gradient) <= tolerance * np.linalg.norm(gradient), name


def not_fused(monkeypatch):
    monkeypatch.setattr(rewriting, "MIN_SCORES", 1 << 60)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@heads
def test_a_large_head_is_fused_with_its_loss_and_has_the_same_gradients(head, precision, monkeypatch):
    fused = session_of(head, precision=precision)
    losses = [fused.train_step(*data())[0]]
    assert "LinearCrossEntropy" in operators(fused) and not {"LossAndGradient", "MatMul", "Dense"} & set(operators(fused)[-6:])
    not_fused(monkeypatch)
    separate = session_of(head, precision=precision)
    losses.append(separate.train_step(*data())[0])
    assert "LossAndGradient" in operators(separate)
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert_same_gradients(fused, separate, 1e-6 if precision == "float32" else 4e-3)
    scores = 4 * BATCH * LENGTH * CLASSES
    assert program_of(fused).arena_bytes < program_of(separate).arena_bytes - scores / 2


@heads
@pytest.mark.parametrize("trained", [["body"], ["table"], ["head"]])
def test_only_the_gradients_that_are_wanted_are_computed(head, trained, monkeypatch):
    parts = {"head": sorted({name for made in HEADS[head] for name in made.input} & WEIGHTS.keys())}
    names = parts.get(trained[0], trained)
    fused = session_of(head, names)
    fused.train_step(*data())
    assert "LinearCrossEntropy" in operators(fused)
    not_fused(monkeypatch)
    separate = session_of(head, names)
    separate.train_step(*data())
    assert_same_gradients(fused, separate)


@pytest.mark.parametrize("options", [{}, {"optimizer_in_backward": True}, {"precision": "bfloat16"}], ids=str)
@heads
def test_training_with_a_fused_head_has_the_same_bits_for_any_number_of_threads(head, options):
    sessions = []
    for threads in (1, 3):
        session = session_of(head, optimizer=OptimType.AdamW, intra_op_num_threads=threads, **options)
        for seed in range(3):
            session.train_step(*data(seed=seed))
            session.optimizer_step()
            session.lazy_reset_grad()
        assert "LinearCrossEntropy" in operators(session)
        sessions.append(session)
    assert_same_bits(*sessions)


def test_gradients_accumulate_over_steps():
    first, second, both = session_of("product"), session_of("product"), session_of("product")
    for seed, alone in enumerate((first, second)):
        alone.train_step(*data(seed=seed))
        both.train_step(*data(seed=seed))
    for name, gradient in both.state.gradients.items():
        np.testing.assert_allclose(gradient, first.state.gradients[name] + second.state.gradients[name], rtol=1e-5, atol=1e-8, err_msg=name)


def test_an_evaluation_that_returns_no_scores_does_not_compute_them_at_once():
    session = session_of("product and bias")
    loss = session.eval_step(*data())[0]
    assert loss == pytest.approx(session.train_step(*data())[0], rel=1e-6)


def test_other_batch_sizes_need_no_other_plan_but_few_rows_do_not_use_chunks():
    session = session_of("product")
    for batch in (BATCH, 3, 20, BATCH):
        loss = session.train_step(*data(batch))[0]
        session.lazy_reset_grad()
        again = session_of("product")
        assert loss == pytest.approx(again.train_step(*data(batch))[0], rel=1e-6)
        assert ("LinearCrossEntropy" in operators(again)) == (batch >= BATCH)


def test_a_label_outside_the_classes_is_refused_before_anything_changes():
    session = session_of("product")
    x, labels = data()
    before = session.to_buffer()
    with pytest.raises(ValueError, match=f"{CLASSES}"):
        session.train_step(x, np.where(np.arange(labels.size) == 700, CLASSES, labels))
    assert all(not gradient.any() for gradient in session.state.gradients.values())
    np.testing.assert_array_equal(session.to_buffer(), before)


def test_scores_that_a_train_step_returns_are_computed_as_a_whole():
    model, weights = language_model("product")
    session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, requires_grad=sorted(weights), additional_output_names=["y"])
    assert session.train_step(*data())[1].shape == (BATCH * LENGTH, CLASSES)
    assert "LinearCrossEntropy" not in operators(session)
