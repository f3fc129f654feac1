"""Metrics equal those of scikit-learn on whole epochs, however the batches were cut, and refuse what they cannot use without a trace."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortrain import metrics
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, LabelRangeError, OrtrainError

reference = pytest.importorskip("sklearn.metrics")

SAMPLES, CLASSES = 103, 4
BATCH_SIZES = (1, 10, 103)
NAMES = ["accuracy", "top-2", "precision", "recall", "f1", "f1-micro", "f1-weighted", "auroc", "confusion-matrix", "perplexity", "mae", "mse", "rmse", "r2"]
REGRESSIONS = NAMES[10:]


@pytest.fixture(scope="module")
def random():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def classified(random):
    """(logits [n, classes], targets [n], weights [n]) with ties among the logits, and a class that no target belongs to."""
    targets = random.integers(0, CLASSES - 1, SAMPLES)
    logits = np.round(random.standard_normal((SAMPLES, CLASSES)) + 1.5 * np.eye(CLASSES)[targets], 1).astype(np.float32)
    return logits, targets, random.random(SAMPLES)


@pytest.fixture(scope="module")
def binary(random):
    """(logits [n], targets [n], weights [n])"""
    targets = random.integers(0, 2, SAMPLES)
    return np.round(random.standard_normal(SAMPLES) + targets, 1).astype(np.float32), targets, random.random(SAMPLES)


@pytest.fixture(scope="module")
def regressed(random):
    """(predictions [n, 3], targets [n, 3], weights [n]) far from zero."""
    targets = random.standard_normal((SAMPLES, 3)) + 1000
    return (targets + random.standard_normal((SAMPLES, 3))).astype(np.float32), targets.astype(np.float32), random.random(SAMPLES)


def figure(metric, data, batch_size=10, weighted=False):
    """The result over the data in batches; the last one is short."""
    metric = metrics.get(metric)
    metric.reset()
    predictions, targets, weights = data
    for start in range(0, len(targets), batch_size):
        rows = slice(start, start + batch_size)
        metric.update(predictions[rows], targets[rows], weights[rows] if weighted else None)
    return metric.result()


both_ways = pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
each_batch_size = pytest.mark.parametrize("batch_size", BATCH_SIZES)


def softmax(logits):
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


# ---- against scikit-learn


@both_ways
@each_batch_size
def test_accuracy_equals_that_of_scikit_learn(classified, batch_size, weighted):
    logits, targets, weights = classified
    expected = reference.accuracy_score(targets, logits.argmax(1), sample_weight=weights if weighted else None)
    assert figure("accuracy", classified, batch_size, weighted) == pytest.approx(expected, rel=1e-12)


@both_ways
@each_batch_size
@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("name", ["precision", "recall", "f1"])
def test_precision_recall_and_f1_equal_those_of_scikit_learn(classified, name, average, batch_size, weighted):
    logits, targets, weights = classified
    score = getattr(reference, f"{name}_score")
    expected = score(targets, logits.argmax(1), average=average, sample_weight=weights if weighted else None, zero_division=0)
    assert figure(f"{name}-{average}", classified, batch_size, weighted) == pytest.approx(expected, rel=1e-12)


@both_ways
@pytest.mark.parametrize("name", ["precision", "recall", "f1"])
def test_binary_averages_equal_those_of_scikit_learn(binary, name, weighted):
    logits, targets, weights = binary
    expected = getattr(reference, f"{name}_score")(targets, logits > 0, sample_weight=weights if weighted else None)
    assert figure(f"{name}-binary", binary, 10, weighted) == pytest.approx(expected, rel=1e-12)


@both_ways
@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_accuracy_equals_that_of_scikit_learn_where_scores_differ(random, k, weighted):
    logits, targets, weights = random.standard_normal((SAMPLES, CLASSES)), random.integers(0, CLASSES, SAMPLES), random.random(SAMPLES)
    expected = reference.top_k_accuracy_score(targets, logits, k=k, sample_weight=weights if weighted else None)
    assert figure(f"top-{k}", (logits, targets, weights), 10, weighted) == pytest.approx(expected, rel=1e-12)


@both_ways
@each_batch_size
def test_the_area_of_two_classes_equals_that_of_scikit_learn(binary, batch_size, weighted):
    logits, targets, weights = binary
    expected = reference.roc_auc_score(targets, logits, sample_weight=weights if weighted else None)
    assert figure("auroc", binary, batch_size, weighted) == pytest.approx(expected, rel=1e-12)
    two_columns = np.stack([np.zeros_like(logits), logits], axis=1), targets, weights
    assert figure("auroc", two_columns, batch_size, weighted) == pytest.approx(expected, rel=1e-12)


@both_ways
@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_the_area_of_one_class_against_the_rest_equals_that_of_scikit_learn(random, average, weighted):
    targets = random.integers(0, CLASSES, SAMPLES)
    data = np.round(random.standard_normal((SAMPLES, CLASSES)) + np.eye(CLASSES)[targets], 1), targets, random.random(SAMPLES)
    probabilities = softmax(data[0])
    if weighted:            # scikit-learn takes weights for two classes only
        parts = [reference.roc_auc_score(targets == label, probabilities[:, label], sample_weight=data[2]) for label in range(CLASSES)]
        expected = np.average(parts, weights=None if average == "macro" else np.bincount(targets, data[2]))
    else:
        expected = reference.roc_auc_score(targets, probabilities, multi_class="ovr", average=average)
    assert figure(metrics.AUROC(average), data, 10, weighted) == pytest.approx(expected, rel=1e-12)
    assert figure(metrics.AUROC(average, from_logits=False), (probabilities, *data[1:]), 10, weighted) == pytest.approx(expected, rel=1e-12)


@both_ways
def test_the_confusion_matrix_equals_that_of_scikit_learn(classified, weighted):
    logits, targets, weights = classified
    metric = metrics.ConfusionMatrix()
    share = figure(metric, classified, 10, weighted)
    expected = reference.confusion_matrix(targets, logits.argmax(1), labels=range(CLASSES), sample_weight=weights if weighted else None)
    np.testing.assert_allclose(metric.matrix, expected, rtol=1e-12)
    assert metric.matrix.dtype == (np.float64 if weighted else np.int64)
    assert share == pytest.approx(figure("accuracy", classified, 10, weighted), rel=1e-12)


@both_ways
def test_perplexity_is_the_exponential_of_the_log_loss_of_scikit_learn(classified, weighted):
    logits, targets, weights = classified
    expected = math.exp(reference.log_loss(targets, softmax(logits), labels=range(CLASSES), sample_weight=weights if weighted else None))
    assert figure("perplexity", classified, 10, weighted) == pytest.approx(expected, rel=1e-9)


@both_ways
@each_batch_size
@pytest.mark.parametrize("name, function", [("mae", "mean_absolute_error"), ("mse", "mean_squared_error"), ("r2", "r2_score")])
def test_errors_and_r2_of_regressions_equal_those_of_scikit_learn(regressed, name, function, batch_size, weighted):
    predictions, targets, weights = regressed
    expected = getattr(reference, function)(targets.astype(np.float64), predictions.astype(np.float64), sample_weight=weights if weighted else None)
    assert figure(name, regressed, batch_size, weighted) == pytest.approx(expected, rel=1e-9)


def test_the_root_mean_squared_error_is_the_root_over_all_outputs(regressed):
    assert figure("rmse", regressed) == pytest.approx(math.sqrt(figure("mse", regressed)), rel=1e-12)
    one_output = regressed[0][:, 0], regressed[1][:, 0], regressed[2]
    assert figure("rmse", one_output) == pytest.approx(reference.root_mean_squared_error(one_output[1], one_output[0]), rel=1e-6)


@pytest.mark.parametrize("predictions", [[2.5, 2.5, 2.5], [2.5, 2.0, 2.5]])
def test_r2_of_equal_targets_is_that_of_scikit_learn(predictions):
    # with these weights the mean of the targets rounds to another number, and scikit-learn returns about -1e29
    data = np.array(predictions), np.full(3, 2.5), np.array([0.1, 0.2, 0.3])
    assert figure("r2", data, 1, True) == figure("r2", data, 1) == reference.r2_score(data[1], data[0])


@given(cuts=st.sets(st.integers(1, SAMPLES - 1)), weighted=st.booleans())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_the_result_does_not_depend_on_how_batches_are_cut(classified, regressed, cuts, weighted):
    for name in NAMES:
        predictions, targets, weights = regressed if name in REGRESSIONS else classified
        weights = np.where(weights < 0.2, 0, weights)
        whole = figure(name, (predictions, targets, weights), SAMPLES, weighted)
        metric = metrics.get(name)
        for rows in np.split(np.arange(SAMPLES), sorted(cuts)):
            metric.update(predictions[rows], targets[rows], weights[rows] if weighted else None)
        assert metric.result() == pytest.approx(whole, rel=1e-9), name


# ---- shapes


def test_the_class_axis_may_be_the_second_or_the_last(random):
    targets = random.integers(0, 3, (20, 5))
    last = random.standard_normal((20, 5, 3)) + 2 * np.eye(3)[targets]
    second = np.moveaxis(last, -1, 1)
    weights = random.random(20)
    for name in ("accuracy", "top-2", "f1", "perplexity", "auroc"):
        flat = figure(name, (last.reshape(100, 3), targets.reshape(100), np.repeat(weights, 5)), 7, True)
        assert figure(name, (last, targets, weights), 3, True) == pytest.approx(flat, rel=1e-12), name
        assert figure(name, (second, targets, weights), 3, True) == pytest.approx(flat, rel=1e-12), name


def test_axis_1_is_the_class_axis_where_both_fit_unless_the_caller_says_otherwise():
    scores = np.array([[[0.0, 1.0], [0.0, 1.0]]])
    assert figure(metrics.Accuracy(), (scores, np.array([[0, 0]]), None)) == 1.0
    assert figure(metrics.Accuracy(class_axis=-1), (scores, np.array([[1, 1]]), None)) == 1.0


def test_one_score_per_target_is_compared_with_the_threshold():
    targets = np.array([0, 1, 1], np.float32)
    for scores in (np.array([-1.0, 0.3, 0.8]), np.array([[-1.0], [0.3], [0.8]])):
        assert figure("accuracy", (scores, targets, None)) == 1.0
        assert figure(metrics.Accuracy(threshold=0.5), (scores, targets, None)) == pytest.approx(2 / 3)
    assert figure("accuracy", (np.array([[-1.0], [2.0]]), np.array([[0], [0]]), None)) == 0.5


def test_class_labels_and_half_precision_scores_are_taken_as_predictions(classified):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    logits, targets, _ = classified
    expected = figure("f1", classified)
    assert figure("f1", (logits.argmax(1), targets, None)) == expected
    assert figure("accuracy", (logits.astype(np.float16), targets, None)) == figure("accuracy", classified)
    assert figure("accuracy", (np.array([[0, 1], [1, 0]], ml_dtypes.bfloat16), np.array([1, 1]), None)) == 0.5


def test_ignored_targets_do_not_count(classified):
    logits, targets, weights = classified
    kept = targets != 1
    marked = np.where(kept, targets, -100)
    for kind in (metrics.Accuracy, metrics.TopKAccuracy, metrics.Precision, metrics.Recall, metrics.F1, metrics.ConfusionMatrix, metrics.Perplexity,
                 metrics.AUROC):
        arguments = {"k": 2} if kind is metrics.TopKAccuracy else {}
        expected = figure(kind(**arguments), (logits[kept], targets[kept], weights[kept]), 10, True)
        assert figure(kind(ignore_index=-100, **arguments), (logits, marked, weights), 10, True) == pytest.approx(expected, rel=1e-12), kind
        with pytest.raises(LabelRangeError, match="-100"):
            kind(**arguments).update(logits, marked)


def test_many_classes_are_computed_in_blocks_of_rows(random):
    logits, targets = random.standard_normal((50, 5000)), random.integers(0, 5000, 50)          # a block has 13 rows
    entropy = reference.log_loss(targets, softmax(logits), labels=range(5000))
    assert figure("perplexity", (logits, targets, None), 50) == pytest.approx(math.exp(entropy), rel=1e-9)
    expected = reference.top_k_accuracy_score(targets, logits, k=2500, labels=range(5000))
    assert figure("top-2500", (logits, targets, None), 50) == pytest.approx(expected, rel=1e-12)


def test_top_1_is_the_accuracy_where_scores_are_equal():
    data = np.zeros((3, 3)), np.array([0, 1, 2]), None
    assert figure("top-1", data) == figure("accuracy", data) == pytest.approx(1 / 3)


def test_a_result_without_samples_is_nan_and_reset_forgets(classified, regressed):
    for name in NAMES:
        metric = metrics.get(name)
        assert math.isnan(metric.result()), name
        data = regressed if name in REGRESSIONS else classified
        metric.update(*data[:2])
        first = metric.result()
        metric.update(data[0][:1], data[1][:1])
        metric.reset()
        assert math.isnan(metric.result()), name
        metric.update(*data[:2])
        assert metric.result() == first, name


def test_the_area_of_a_single_class_is_nan():
    assert math.isnan(figure("auroc", (np.array([0.1, 0.2]), np.array([1, 1]), None)))
    assert math.isnan(figure("auroc", (np.eye(3), np.array([1, 1, 1]), None)))


# ---- refusals


def test_a_refused_update_changes_nothing(classified, regressed):
    logits, targets, weights = classified
    unfit = [(logits[:-1], targets, None, InvalidArgumentError), (logits, targets, weights[:-1], InvalidArgumentError),
             (logits, targets, -weights, InvalidArgumentError), (logits, targets, weights * np.nan, InvalidArgumentError),
             (logits * np.nan, targets, None, InvalidArgumentError), (logits, targets + 2, None, LabelRangeError),
             (logits, targets - 1, None, LabelRangeError), (logits, targets + 0.5, None, InvalidArgumentError),
             (logits, targets.astype(str), None, ArgumentTypeError), (logits.astype(object), targets, None, ArgumentTypeError),
             (np.float32(1), np.int64(1), None, InvalidArgumentError), (logits[:, :, None, None], targets, None, InvalidArgumentError)]
    for name in NAMES[:10]:
        metric = metrics.get(name)
        metric.update(*classified)
        before = metric.result()
        for predictions, wanted, factors, error in unfit:
            with pytest.raises(error, match="expected"):
                metric.update(predictions, wanted, factors)
            assert metric.result() == before, name
    for name in REGRESSIONS:
        metric = metrics.get(name)
        metric.update(*regressed)
        before = metric.result()
        # NumPy would broadcast the second of these
        for predictions, wanted in ((regressed[0][:-1], regressed[1]), (regressed[0][:, :1], regressed[1][:, 0][:, None, None]), ("a", regressed[1])):
            with pytest.raises(OrtrainError, match="expected"):
                metric.update(predictions, wanted)
            assert metric.result() == before, name


def test_settings_that_make_no_sense_are_refused():
    for make in (lambda: metrics.TopKAccuracy(0), lambda: metrics.F1("mean"), lambda: metrics.AUROC("micro"), lambda: metrics.ConfusionMatrix(0),
                 lambda: metrics.ConfusionMatrix(10**6)):
        with pytest.raises(InvalidArgumentError, match="expected"):
            make()
    with pytest.raises(LabelRangeError, match="two classes"):
        metrics.F1("binary").update(np.eye(3), np.arange(3))
    with pytest.raises(LabelRangeError, match="at most 2 classes"):
        metrics.ConfusionMatrix(2).update(np.arange(3), np.arange(3))
    with pytest.raises(InvalidArgumentError, match="at least 5 classes"):
        metrics.TopKAccuracy(5).update(np.eye(3), np.arange(3))


# ---- names and functions


def test_metrics_are_found_by_name_and_unknown_names_list_the_known_ones():
    for name in [*NAMES, "top-5", "f1-binary", "root-mean-squared-error"]:
        assert metrics.get(name).name == name
    ready = metrics.F1("micro", name="mine")
    assert metrics.get(ready) is ready
    for wrong in ("acuracy", "top-0", "top-x", ""):
        with pytest.raises(InvalidArgumentError, match=r"accuracy, auroc, .*top-K"):
            metrics.get(wrong)
    for wrong in (5, None, metrics.F1):
        with pytest.raises(ArgumentTypeError, match="expected the name of a metric"):
            metrics.get(wrong)
    assert [metric.name for metric in metrics.get_all(["f1", "accuracy"])] == ["f1", "accuracy"]
    for wrong in (["f1", "f1"], [metrics.F1(name="loss")]):
        with pytest.raises(InvalidArgumentError, match="different names"):
            metrics.get_all(wrong)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@both_ways
def test_functions_of_scikit_learn_receive_class_labels_of_integer_targets(classified, weighted):
    logits, targets, weights = classified
    expected = reference.balanced_accuracy_score(targets, logits.argmax(1), sample_weight=weights if weighted else None)
    metric = metrics.get(reference.balanced_accuracy_score)
    assert metric.name == "balanced_accuracy_score" and metric.higher_is_better
    assert figure(metric, classified, 10, weighted) == pytest.approx(expected, rel=1e-12)


@both_ways
def test_functions_receive_the_outputs_of_a_regression_as_they_are(regressed, weighted):
    predictions, targets, weights = regressed
    expected = reference.mean_absolute_error(targets, predictions, sample_weight=weights if weighted else None)
    metric = metrics.get(reference.mean_absolute_error)
    assert not metric.higher_is_better
    assert figure(metric, regressed, 10, weighted) == pytest.approx(expected, rel=1e-12)


def test_functions_that_need_scores_receive_them(binary):
    expected = reference.average_precision_score(binary[1], binary[0])
    assert figure(metrics.FunctionMetric(reference.average_precision_score, needs_scores=True), binary) == pytest.approx(expected, rel=1e-12)


def test_a_threshold_turns_floating_point_targets_into_classes(binary):
    logits, targets, weights = binary
    metric = metrics.FunctionMetric(reference.matthews_corrcoef, "mcc", higher_is_better=True, threshold=0.0)
    assert figure(metric, (logits, targets.astype(np.float32), weights)) == pytest.approx(reference.matthews_corrcoef(targets, logits > 0), rel=1e-12)


def test_functions_that_do_not_fit_are_refused(classified):
    logits, targets, weights = classified
    with pytest.raises(InvalidArgumentError, match="higher_is_better"):
        metrics.FunctionMetric(reference.matthews_corrcoef)
    with pytest.raises(InvalidArgumentError, match="needs_scores"):
        metrics.FunctionMetric(reference.roc_auc_score, needs_scores=True, threshold=0.0)
    with pytest.raises(ArgumentTypeError, match="expected a function"):
        metrics.FunctionMetric("f1")
    unweighted = metrics.FunctionMetric(lambda targets, predictions: np.mean(targets == predictions), "share", higher_is_better=True)
    with pytest.raises(InvalidArgumentError, match="sample_weight"):
        unweighted.update(logits, targets, weights)
    assert figure(unweighted, classified) == figure("accuracy", classified)
    matrix = metrics.FunctionMetric(reference.confusion_matrix, higher_is_better=True)
    with pytest.raises(ArgumentTypeError, match="one number"):
        figure(matrix, classified)


def test_stored_outputs_are_copies(binary):
    logits, targets, _ = binary
    for metric in (metrics.AUROC(), metrics.FunctionMetric(reference.roc_auc_score, needs_scores=True)):
        reused, again = logits.copy(), targets.copy()
        metric.update(reused, again)
        reused[:], again[:] = 0, 0
        assert metric.result() == pytest.approx(reference.roc_auc_score(targets, logits), rel=1e-12)
