"""What a trainer refuses, with what the error says, before anything is trained or written."""

import numpy as np
import pytest

from ortrain import Trainer
from ortrain.errors import InvalidArgumentError, OrtrainError
from tests.trainer.models import CLASSES, FEATURES, classifier, samples

X, Y = samples()


def new_trainer(**settings) -> Trainer:
    return Trainer.from_model(classifier(), loss="cross-entropy", progress=False, **settings)


SETTINGS = {
    "an unknown schedule": (dict(schedule="cosin"), "expected a schedule among constant, linear, cosine, .* got 'cosin'"),
    "a schedule that is none": (dict(schedule=3), "expected the name of a schedule or an object with a method rate.*, got 3"),
    "a callback that is none": (dict(callbacks=[print]), "expected Callback objects as callbacks, got builtin_function_or_method: wrap a function"),
    "an infinite class weight": (dict(class_weight=[1, np.inf, 1]), r"expected finite class weights of at least 0, got \[1.0, inf, 1.0\]"),
    "a negative class weight": (dict(class_weight=[1, -1, 1]), "expected finite class weights of at least 0"),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_are_refused_when_the_trainer_is_made(kind):
    settings, message = SETTINGS[kind]
    with pytest.raises(InvalidArgumentError, match=message):
        new_trainer(**settings)


FITS = {
    "a callback that is none": (dict(callbacks=[print]), "expected Callback objects as callbacks"),
    "weights that the loss does not take": (dict(sample_weight=np.ones(len(X))), "expected no sample_weight, since the loss takes none"),
    "one-hot labels": (dict(targets=np.eye(CLASSES)[Y]), r"one-hot labels pass labels.argmax\(-1\)"),
}


@pytest.mark.parametrize("kind", FITS)
def test_a_fit_is_refused_before_a_step(kind):
    arguments, message = FITS[kind]
    trainer = new_trainer()
    with pytest.raises(OrtrainError, match=message):
        trainer.fit(X, **{"targets": Y} | arguments)
    assert trainer.step == 0


def test_a_loss_with_sample_weights_asks_for_them():
    with pytest.raises(InvalidArgumentError, match="expected sample_weight, since the loss was made with sample_weight=True"):
        new_trainer(sample_weight=True).fit(X, Y)


def test_predictions_take_inputs_alone():
    with pytest.raises(InvalidArgumentError, match=r"expected inputs for 'x' alone, got a pair \(inputs, targets\)|expected data for 'x' alone"):
        new_trainer().predict((X, Y))


def test_a_file_is_refused_as_the_folder_of_a_run_and_a_folder_as_the_path_of_a_model(tmp_path):
    (tmp_path / "file").write_text("mine")
    trainer = new_trainer(folder=tmp_path / "file")
    with pytest.raises(InvalidArgumentError, match="expected a folder for the run, got the file"):
        trainer.fit(X, Y)
    with pytest.raises(InvalidArgumentError, match="expected the path of a file to write, got the folder"):
        trainer.export(tmp_path)
    assert (tmp_path / "file").read_text() == "mine" and trainer.step == 0 and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_advice_to_open_a_batch_is_not_given_for_features():
    with pytest.raises(OrtrainError, match=rf"expected size {FEATURES} along axis 1 of input 'x', got 2") as caught:
        new_trainer().fit(X[:, :2], Y)
    assert "batch" not in str(caught.value)
