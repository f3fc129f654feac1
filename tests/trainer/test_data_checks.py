"""Errors in data in memory are found before the first step, and before anything is written."""

import numpy as np
import onnx
import pytest

from ortrain import Trainer
from ortrain.errors import InputRankError, InputShapeError, InputTypeError, InvalidArgumentError, LabelRangeError
from ortrain.loading.loader import load_model
from ortrain.trainer.data_checks import label_ranges
from tests.trainer.models import CLASSES, FEATURES, classifier, samples

X, Y = samples()


def changed(values: np.ndarray, place, value) -> np.ndarray:
    copy = values.copy()
    copy[place] = value
    return copy


def trainer_in(folder, **settings) -> Trainer:
    trainer = Trainer.from_model(classifier(), loss=settings.pop("loss", "cross-entropy"), folder=folder, progress=False, **settings)
    trainer.session.train_step = None                     # a step would fail
    return trainer


WRONG = {
    "label too large": ((X, changed(Y, -1, CLASSES)), LabelRangeError, rf"from 0 to {CLASSES - 1}.*got {CLASSES} in sample {len(Y) - 1}.*num_classes"),
    "label below 0": ((X, changed(Y, 7, -2)), LabelRangeError, "got -2 in sample 7"),
    "labels as floats": ((X, changed(Y, 7, 9).astype(np.float64)), LabelRangeError, "got 9.0 in sample 7"),
    "labels that are not whole": ((X, changed(Y.astype(np.float32), 7, 0.5)), InvalidArgumentError, "whole numbers.*sample 7"),
    "NaN": ((changed(X, (9, 2), np.nan), Y), InvalidArgumentError, "finite.*sample 9"),
    "other number of features": ((X[:, :-1], Y), InputShapeError, f"expected size {FEATURES}"),
    "other number of dimensions": ((X[:, :, None], Y), InputRankError, "2 dimensions"),
    "one-hot labels": ((X, np.eye(CLASSES, dtype=np.int64)[Y]), InputRankError, "argmax"),
    "labels of another rank": ((X, Y[:, None, None]), InputRankError, "1 dimensions"),
    "text": ((X, Y.astype(str)), InputTypeError, "text"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("part", ["training", "validation"])
def test_data_that_do_not_fit_are_refused_before_the_first_step(case, part, tmp_path):
    data, error, message = WRONG[case]
    with trainer_in(tmp_path / "run") as trainer, pytest.raises(error, match=message):
        if part == "training":
            trainer.fit(*data)
        else:
            trainer.fit(X, Y, validation=data)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("metrics", ["auto", ["accuracy", "f1", "top-2"]])
def test_the_label_to_ignore_is_accepted_and_ignored_by_metrics(metrics):
    with Trainer.from_model(classifier(), loss="cross-entropy", loss_options={"ignore_index": 100}, metrics=metrics, progress=False) as trainer:
        trainer.fit(X, changed(Y, 3, 100))
        rest = np.arange(len(Y)) != 3
        assert trainer.evaluate(X, changed(Y, 3, 100))["accuracy"] == trainer.evaluate(X[rest], Y[rest])["accuracy"]
        with pytest.raises(LabelRangeError, match="got -1 in sample 3"):
            trainer.fit(X, changed(Y, 3, -1), epochs=2)


@pytest.mark.parametrize("loss", ["cross-entropy", "focal", "nll"])
def test_the_classes_of_every_classification_loss_are_known(loss):
    with Trainer.from_model(classifier(), loss=loss, progress=False) as trainer:
        assert label_ranges(load_model(trainer.session.eval_model)) == {"labels": (CLASSES, -1)}
        with pytest.raises(LabelRangeError, match="got 8"):
            trainer.fit(X, changed(Y, 3, 8))


def test_the_last_batch_must_fit_a_model_with_a_fixed_batch_before_the_first_step():
    model = classifier()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 16
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 16
    with Trainer.from_model(onnx.load_from_string(model.SerializeToString()), loss="cross-entropy", input_shapes={}, progress=False) as trainer:
        with pytest.raises(InputShapeError, match="expected size 16"):
            trainer.fit(X, Y, batch_size=16)
        assert trainer.step == 0
        trainer.fit(X, Y, batch_size=16, drop_last=True)
        trainer.fit(X[:48], Y[:48], batch_size=16, epochs=2)


def test_a_figure_that_no_epoch_will_have_is_refused_before_the_first_step(tmp_path):
    with trainer_in(tmp_path / "run", patience=2) as trainer:
        with pytest.raises(InvalidArgumentError, match="'validation_loss' without validation data: give fit some"):
            trainer.fit(X, Y)
        with pytest.raises(InvalidArgumentError, match="expected to monitor one of loss, accuracy"):
            trainer_in(None, patience=2, monitor="f1").fit(X, Y)
    assert not (tmp_path / "run").exists()
