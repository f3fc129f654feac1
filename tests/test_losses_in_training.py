"""Losses in training sessions: by name, with sample weights, several at a time, in half precision, and their refusal of what does not fit."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ortrain
from ortrain import errors, onnxblock
from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.dtypes import numpy_dtype
from ortrain.onnxblock import loss
from tests import test_losses
from tests.test_losses import CASES, CLASS_WEIGHT, CTC, FRAMES, LABELS, SAMPLE_WEIGHT, SCORES, expected

NAMED = {"mse": "mse", "l1": "l1", "huber": "huber", "smooth-l1": "smooth l1", "bce-with-logits": "bce with logits", "kl-divergence": "kl divergence",
         "cross-entropy": "cross entropy", "focal": "focal", "binary-focal": "binary focal", "nll": "nll", "hinge": "hinge", "triplet": "triplet",
         "cosine-embedding": "cosine embedding", "ctc": "ctc"}
"""Name of each loss -> a case with its default options."""


def scaled(predictions, dtype="float32", opset=17):
    """Return a model with an output y_i = x_i · w_i for each prediction, whose weights w_i are 1; the axis of the samples is open."""
    kind = helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
    dims = [["n" if size == test_losses.N else size for size in x.shape] for x in predictions]
    graph = helper.make_graph(
        [helper.make_node("Mul", [f"x{i}", f"w{i}"], [f"y{i}"]) for i in range(len(predictions))], "g",
        [helper.make_tensor_value_info(f"x{i}", kind, shape) for i, shape in enumerate(dims)],
        [helper.make_tensor_value_info(f"y{i}", kind, shape) for i, shape in enumerate(dims)],
        [numpy_helper.from_array(np.ones(x.shape[-1:], numpy_dtype(dtype)), f"w{i}") for i, x in enumerate(predictions)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def feeds(case, dtype="float32"):
    """Return the predictions in `dtype` and the targets, float ones in float32."""
    named = {f"x{i}": x.astype(numpy_dtype(dtype)) for i, x in enumerate(case.predictions)}
    return named | {name: t.astype(np.float32) if t.dtype.kind == "f" else t for name, t in case.targets.items()}


def session(model, loss, **options):
    return ortrain.TrainingSession.from_model(model, loss=loss, optimizer=OptimType.SGD, learning_rate=0.1, **options)


# ---- names


def test_every_name_has_a_case():
    assert set(loss.losses_by_name()) == set(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_a_loss_chosen_by_name_trains(name):
    case = CASES[NAMED[name]]
    with session(scaled(case.predictions), name) as training:
        before = training.train_step(**feeds(case))[0]
        np.testing.assert_allclose(before, expected(case), rtol=1e-5)
        for _ in range(3):
            training.optimizer_step()
            training.lazy_reset_grad()
            after = training.train_step(**feeds(case))[0]
        assert after < before


@pytest.mark.parametrize("name", NAMED)
def test_a_loss_adds_the_inputs_that_its_class_names(name):
    case, block = CASES[NAMED[name]], loss.losses_by_name()[name]
    with session(scaled(case.predictions), name) as training:
        assert training.input_names()[len(block.predictions):] == list(block.targets) and len(block.predictions) == len(case.predictions)


def test_underscores_count_as_hyphens(tmp_path):
    generate_artifacts(scaled([SCORES]), loss="cross_entropy", optimizer=OptimType.SGD, artifact_directory=tmp_path)
    with ortrain.TrainingSession.from_artifacts(tmp_path) as training:
        np.testing.assert_allclose(training.train_step(SCORES.astype(np.float32), LABELS)[0], expected(CASES["cross entropy"]), rtol=1e-5)


@pytest.mark.parametrize("wrong, meant", [("crossentropy", "cross-entropy"), ("MSELoss", "mse"), ("hubber", "huber"), ("kl_div", "kl-divergence"),
                                          ("CTCLoss", "ctc")])
def test_an_unknown_name_is_answered_with_close_ones(wrong, meant):
    with pytest.raises(errors.InvalidArgumentError, match=rf"one of cross-entropy, mse, .*got '{wrong}' \(did you mean .*'{meant}'"):
        session(scaled([SCORES]), wrong)


def test_a_name_that_is_close_to_none_is_answered_with_all():
    with pytest.raises(errors.InvalidArgumentError, match=r"one of cross-entropy, mse, .*, ctc, got 'zzzzzz'$"):
        loss.loss_by_name("zzzzzz")
    with pytest.raises(errors.InvalidArgumentError, match="expected options of HuberLoss"):
        loss.loss_by_name("huber", gamma=2.0)
    assert isinstance(loss.loss_by_name("huber", delta=2.0), loss.HuberLoss)


# ---- sample weights


@pytest.mark.parametrize("name", NAMED)
def test_sample_weights_are_an_input_of_training_and_eval_model(name):
    case = CASES[NAMED[name]]
    with session(scaled(case.predictions), loss.loss_by_name(name, sample_weight=True)) as training:
        assert training.input_names()[-1] == "sample_weight"
        given = feeds(case) | {"sample_weight": SAMPLE_WEIGHT.astype(np.float32)}
        for step in (training.train_step, training.eval_step):
            np.testing.assert_allclose(step(**given)[0], expected(case, sample_weight=SAMPLE_WEIGHT), rtol=1e-5)
        for wrong in (np.ones(1, np.float32), np.ones(test_losses.N + 1, np.float32)):
            with pytest.raises(errors.InputShapeError):
                training.train_step(**given | {"sample_weight": wrong})
        # no sample counts: the loss is 0, and so are all gradients
        assert training.train_step(**given | {"sample_weight": np.zeros(test_losses.N, np.float32)})[0] == 0


@pytest.mark.parametrize("name", ["mse", "cross-entropy", "focal", "nll", "ctc"])
def test_samples_without_weight_have_no_gradient(name):
    case = CASES[NAMED[name]]
    model = scaled(case.predictions)
    given = feeds(case) | {"sample_weight": np.zeros(test_losses.N, np.float32)}
    with session(model, loss.loss_by_name(name, sample_weight=True)) as training:
        training.train_step(**given)
        for i in range(len(case.predictions)):
            np.testing.assert_array_equal(training.state.gradients[f"w{i}"], 0)


# ---- several losses


class TestWeightedSum:
    """A model with scores y0 and values y1."""

    X = (SCORES.astype(np.float32), test_losses.X.astype(np.float32))
    T = test_losses.T.astype(np.float32)

    def terms(self, **options):
        return [(loss.CrossEntropyLoss(**options), 1, ["y0"], "labels"), (loss.SmoothL1Loss(**options), 0.25, ["y1"], "values")]

    def test_its_value_and_its_terms_are_outputs(self):
        with session(scaled([SCORES, test_losses.X]), loss.WeightedSum(self.terms()), additional_output_names=["y1"]) as training:
            assert training.input_names() == ["x0", "x1", "labels", "values"]
            assert training.output_names()[:4] == ["loss", "labels_loss", "values_loss", "y1"]
            for step in (training.train_step, training.eval_step):
                total, scores, values, y = step(*self.X, LABELS, self.T)
                np.testing.assert_allclose([scores, values], [expected(CASES["cross entropy"]), expected(CASES["smooth l1"])], rtol=1e-5)
                np.testing.assert_allclose(total, scores + 0.25 * values, rtol=1e-6)
                np.testing.assert_array_equal(y, self.X[1])

    def test_its_gradient_is_the_weighted_sum_of_gradients(self):
        model = scaled([SCORES, test_losses.X])
        with session(model, loss.WeightedSum(self.terms())) as both, \
                session(model, loss.SmoothL1Loss(), loss_input_names=["y1"], requires_grad=["w1"]) as alone:
            both.train_step(*self.X, LABELS, self.T)
            alone.train_step(*self.X, self.T)
            np.testing.assert_allclose(both.state.gradients["w1"], 0.25 * alone.state.gradients["w1"], rtol=1e-5)

    def test_its_terms_share_sample_weights(self):
        with session(scaled([SCORES, test_losses.X]), loss.WeightedSum(self.terms(sample_weight=True))) as training:
            assert training.input_names() == ["x0", "x1", "labels", "sample_weight", "values"]
            found = training.train_step(*self.X, LABELS, SAMPLE_WEIGHT.astype(np.float32), self.T)
            wanted = [expected(CASES[name], sample_weight=SAMPLE_WEIGHT) for name in ("cross entropy", "smooth l1")]
            np.testing.assert_allclose(found[1:], wanted, rtol=1e-5)

    def test_its_terms_may_lack_a_target_and_have_names(self):
        terms = [loss.LossTerm(loss.TripletMarginLoss(), 2.0, ["y0", "y1", "y2"]), (loss.MSELoss(), 1.0, ["y0"], "target", "distance")]
        case = CASES["triplet"]
        with session(scaled(case.predictions), loss.WeightedSum(terms, name="total")) as training:
            assert training.output_names()[:3] == ["total", "loss_0", "distance"]
            given = [x.astype(np.float32) for x in (*case.predictions, case.predictions[1])]
            np.testing.assert_allclose(training.train_step(*given)[1], expected(case), rtol=1e-5)

    @pytest.mark.parametrize("terms, error, message", [
        ([], errors.InvalidArgumentError, "at least one term"),
        ([(loss.MSELoss(), 1.0)], errors.InvalidArgumentError, "expected terms"),
        ([("mse", 1.0, ["y0"])], errors.ArgumentTypeError, "onnxblock loss"),
        ([(loss.MSELoss(), 1.0, "y0")], errors.ArgumentTypeError, "list of the names"),
        ([(loss.MSELoss(), float("nan"), ["y0"])], errors.InvalidArgumentError, "finite weight"),
        ([(loss.MSELoss("none"), 1.0, ["y0"])], errors.InvalidArgumentError, "reduced"),
        ([(loss.MSELoss(), 1.0, ["y0"], "t"), (loss.L1Loss(), 1.0, ["y1"], "t")], errors.InvalidArgumentError, "another name"),
        ([(loss.MSELoss(), 1.0, ["y0"], "t", "y1")], errors.InvalidArgumentError, r"does not use, got \['y1'\]"),
        ([(loss.MSELoss(), 1.0, ["zzz"], "t")], errors.OutputNotFoundError, "zzz"),
        ([(loss.MSELoss(), 1.0, ["y0"], "y1", "part")], errors.InvalidModelError, "the name of an input for the target"),
    ])
    def test_terms_that_do_not_fit_are_refused(self, terms, error, message):
        with pytest.raises(error, match=message):
            session(scaled([SCORES, test_losses.X]), loss.WeightedSum(terms))


# ---- what a metric needs


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_outputs_named_as_additional_ones_are_returned_with_every_loss(name, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    case = CASES[NAMED[name]]
    model = scaled(case.predictions, dtype)
    wanted = loss.loss_inputs(name, model)
    assert wanted == [f"y{i}" for i in range(len(case.predictions))]
    with session(model, name, additional_output_names=wanted) as training:
        given = feeds(case, dtype)
        for step in (training.train_step, training.eval_step):
            value, *outputs = step(**given)
            np.testing.assert_allclose(value, expected(case), rtol=1e-4 if dtype == "float32" else 0.1)
            for i, output in enumerate(outputs):
                assert output.dtype == numpy_dtype(dtype)
                np.testing.assert_array_equal(output.astype(np.float32), given[f"x{i}"].astype(np.float32))


def test_loss_inputs_are_what_the_loss_is_called_with():
    model = scaled(test_losses.EMBEDDINGS)
    assert loss.loss_inputs(None, model) == []
    assert loss.loss_inputs(LossType.MSELoss, model) == loss.loss_inputs("mse", model) == loss.loss_inputs(onnxblock.blocks.Neg(), model) == ["y0"]
    assert loss.loss_inputs("cosine_embedding", model, ["y2", "y1"]) == ["y2", "y1"]
    terms = [(loss.MSELoss(), 1.0, ["y2"], "a"), (loss.CosineEmbeddingLoss(), 1.0, ["y2", "y0"], "b")]
    assert loss.loss_inputs(loss.WeightedSum(terms), model.SerializeToString()) == ["y2", "y0"]
    with pytest.raises(errors.OutputNotFoundError, match="zzz"):
        loss.loss_inputs("mse", model, ["zzz"])
    with pytest.raises(errors.InvalidArgumentError, match="3 outputs for TripletMarginLoss"):
        loss.loss_inputs("triplet", scaled([SCORES]))


def test_all_loss_types_have_a_name():
    assert {getattr(loss, member.name) for member in LossType} <= set(loss.losses_by_name().values())


# ---- refusals


LABEL_LOSSES = {"cross entropy": loss.CrossEntropyLoss(), "label smoothing": loss.CrossEntropyLoss(label_smoothing=0.1), "focal": loss.FocalLoss(),
                "sample weights": loss.CrossEntropyLoss(sample_weight=True)}


@pytest.mark.parametrize("name", LABEL_LOSSES)
@pytest.mark.parametrize("wrong", [-2, 5, 2**40])
def test_labels_that_are_no_class_are_refused_and_change_nothing(name, wrong):
    with session(scaled([SCORES]), LABEL_LOSSES[name]) as training:
        extra = [np.ones(test_losses.N, np.float32)] if name == "sample weights" else []
        with pytest.raises(errors.LabelRangeError):
            training.train_step(SCORES.astype(np.float32), np.where(LABELS == 4, wrong, LABELS), *extra)
        training.train_step(SCORES.astype(np.float32), LABELS, *extra)


@pytest.mark.parametrize("weighted", [False, True])
def test_labels_that_are_no_class_are_refused_by_the_log_likelihood(weighted):
    with session(scaled([SCORES]), loss.NLLLoss(CLASS_WEIGHT, sample_weight=weighted)) as training, pytest.raises(IndexError):
        training.train_step(SCORES.astype(np.float32), LABELS + 1, *([np.ones(test_losses.N, np.float32)] if weighted else []))


@pytest.mark.parametrize("wrong, error", [({"targets": CTC["targets"] + 1}, errors.LabelRangeError), ({"targets": CTC["targets"] - 5}, errors.LabelRangeError),
                                          ({"input_lengths": np.full(test_losses.N, 6)}, errors.IndexRangeError),
                                          ({"input_lengths": np.full(test_losses.N, -1)}, errors.IndexRangeError),
                                          ({"target_lengths": np.full(test_losses.N, 3)}, errors.IndexRangeError),
                                          ({"target_lengths": np.ones(test_losses.N + 1, np.int64)}, errors.InputShapeError)])
def test_lengths_and_targets_of_ctc_that_do_not_fit_are_refused(wrong, error):
    with session(scaled([FRAMES]), "ctc") as training, pytest.raises(error):
        training.train_step(FRAMES.astype(np.float32), **CTC | wrong)


def test_a_target_longer_than_its_frames_has_an_infinite_ctc_loss_unless_it_is_to_be_zero():
    short = CTC | {"input_lengths": np.array([1, 4, 3, 5, 5, 4])}
    for zero_infinity in (False, True):
        with session(scaled([FRAMES]), loss.CTCLoss(zero_infinity=zero_infinity)) as training:
            value = training.train_step(FRAMES.astype(np.float32), **short)[0]
            assert np.isfinite(value) == zero_infinity
            assert np.isfinite(training.state.gradients["w0"]).all() == zero_infinity


def test_padding_within_a_ctc_target_has_no_path():
    with session(scaled([FRAMES]), "ctc") as training:
        assert training.eval_step(FRAMES.astype(np.float32), **CTC | {"target_lengths": np.array([2, 2, 2, 0, 2, 1])})[0] == np.inf


@pytest.mark.parametrize("name", ["bce-with-logits", "binary-focal"])
@pytest.mark.parametrize("size", [40.0, 1e3, 1e30])
def test_losses_of_large_logits_are_finite(name, size):
    x, t = np.array([[-size, size, -size, size]], np.float32), np.array([[0, 1, 1, 0]], np.float32)
    options = {"gamma": 0.5} if "focal" in name else {}
    with session(scaled([x]), loss.loss_by_name(name, **options)) as training:
        assert np.isfinite(training.train_step(x, t)[0])
        assert np.isfinite(training.state.gradients["w0"]).all()


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focal_losses_of_certain_predictions_are_finite(gamma):
    scores = (np.eye(5)[LABELS] * 200).astype(np.float32)
    with session(scaled([scores]), loss.FocalLoss(gamma)) as training:
        assert training.train_step(scores, LABELS)[0] == 0
        assert np.isfinite(training.state.gradients["w0"]).all()
        assert np.isfinite(training.train_step(-scores, LABELS)[0])


@pytest.mark.parametrize("make", [
    lambda: loss.MSELoss("batchmean"), lambda: loss.HuberLoss(0.0), lambda: loss.HuberLoss(float("nan")), lambda: loss.SmoothL1Loss(-1.0),
    lambda: loss.CrossEntropyLoss(label_smoothing=1.5), lambda: loss.CrossEntropyLoss(soft_labels=True, ignore_index=1), lambda: loss.FocalLoss(-1.0),
    lambda: loss.FocalLoss(float("inf")), lambda: loss.FocalLoss(alpha=np.ones((2, 2))), lambda: loss.BinaryFocalLoss(alpha=2.0),
    lambda: loss.HingeLoss(-1.0), lambda: loss.TripletMarginLoss(p=0.0), lambda: loss.CosineEmbeddingLoss(2.0), lambda: loss.CTCLoss(-1),
    lambda: loss.NLLLoss(np.array(["a"])),
])
def test_options_outside_their_range_are_refused(make):
    with pytest.raises(errors.InvalidArgumentError):
        make()


@pytest.mark.parametrize("block, predictions, error, message", [
    (loss.CrossEntropyLoss(), [SCORES[:, 0]], errors.InvalidModelError, "for CrossEntropyLoss, got rank 1"),
    (loss.CrossEntropyLoss(np.ones(4)), [SCORES], errors.InvalidArgumentError, "expected 5 class weights, got 4"),
    (loss.FocalLoss(alpha=np.ones(6)), [SCORES], errors.InvalidArgumentError, "expected 5 class weights, got 6"),
    (loss.NLLLoss(), [SCORES[:, 0]], errors.InvalidModelError, "for NLLLoss, got rank 1"),
    (loss.CrossEntropyLoss(class_axis=2), [SCORES], errors.InvalidModelError, "class_axis"),
    (loss.CTCLoss(), [SCORES], errors.InvalidModelError, r"\[t, n, c\] for CTCLoss, got rank 2"),
    (loss.CTCLoss(blank=3), [FRAMES], errors.InvalidModelError, "expected a blank among 3 classes, got 3"),
    (loss.TripletMarginLoss(), [SCORES], errors.InvalidArgumentError, "TripletMarginLoss can take"),
    (loss.TripletMarginLoss(), [SCORES[:, 0]] * 3, errors.InvalidModelError, "got rank 1"),
    (loss.CosineEmbeddingLoss(), [FRAMES, FRAMES], errors.InvalidModelError, "got rank 3"),
    (loss.MSELoss(), [SCORES, SCORES], errors.InvalidModelError, "got 'y1', which the model computes"),
    (loss.MSELoss(), [SCORES] * 3, errors.InvalidArgumentError, "loss_input_names"),
])
def test_models_that_a_loss_does_not_fit_are_refused(block, predictions, error, message):
    with pytest.raises(error, match=message):
        session(scaled(predictions), block)


# ---- other models


def test_batches_of_any_size_train():
    for name in ("focal", "ctc"):
        case = CASES[NAMED[name]]
        with session(scaled(case.predictions), loss.loss_by_name(name, sample_weight=True)) as training:
            axis = 1 if name == "ctc" else 0
            for count in (6, 2, 4, 1):
                rows = np.arange(count)
                given = [np.take(case.predictions[0], rows, axis).astype(np.float32), *(t[:count] for t in case.targets.values()), np.ones(count, np.float32)]
                alone = [float(training.eval_step(np.take(case.predictions[0], [i], axis).astype(np.float32), *(t[i : i + 1] for t in case.targets.values()),
                                                  np.ones(1, np.float32))[0]) for i in rows]
                np.testing.assert_allclose(training.train_step(*given)[0], np.mean(alone), rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: loss.CrossEntropyLoss(label_smoothing=0.1, sample_weight=True), lambda: loss.FocalLoss(sample_weight=True)])
def test_a_training_block_takes_a_half_precision_model(make):
    class Block(onnxblock.TrainingBlock):
        def __init__(self):
            super().__init__()
            self.loss = make()

        def build(self, *names):
            return self.loss(*names)

    block, model = Block(), scaled([SCORES], "float16")
    block.requires_grad("w0")
    with onnxblock.base(model):
        block("y0")
    training, _ = block.to_model_proto()
    onnx.checker.check_model(training)
    assert "SoftmaxFocalLossGrad" in {node.op_type for node in training.graph.node}


@pytest.mark.parametrize("name", ["focal", "ctc"])
def test_losses_that_onnxruntime_training_lacks_are_not_written_as_ort_files(name, tmp_path):
    with pytest.raises(errors.InvalidModelError, match="operators that onnxruntime-training has, for the ORT format, got ortrain::"):
        generate_artifacts(scaled(CASES[NAMED[name]].predictions), loss=name, optimizer=OptimType.AdamW, artifact_directory=tmp_path, ort_format=True)
    assert not list(tmp_path.iterdir())


def test_the_exported_model_has_no_loss(tmp_path):
    with session(scaled([SCORES]), loss.FocalLoss(sample_weight=True)) as training:
        training.train_step(SCORES.astype(np.float32), LABELS, SAMPLE_WEIGHT.astype(np.float32))
        training.optimizer_step()
        training.export(tmp_path / "trained.onnx")
    assert [value.name for value in onnx.load(tmp_path / "trained.onnx").graph.input] == ["x0"]


def test_the_document_lists_every_loss():
    page = (Path(__file__).parents[1] / "docs" / "losses.md").read_text(encoding="utf-8")
    for name, block in loss.losses_by_name().items():
        targets = ", ".join(f"`{target}`" for target in block.targets) or "none"
        assert re.search(rf"^\| `{name}` \| `{block.__name__}` \| [^|]+ \| {targets}[^`]* \|", page, re.MULTILINE), name
