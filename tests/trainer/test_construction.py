"""Mistakes in making a trainer are named, with what was probably meant."""

import warnings

import pytest
from onnx import helper

from ortrain import Trainer
from ortrain.artifacts import LossType
from ortrain.errors import InvalidArgumentError
from tests.trainer.models import CLASSES, classifier, samples

X, Y = samples()


def with_activation(op_type: str):
    model = classifier()
    model.graph.node[-1].output[0] = "z"
    model.graph.node.append(helper.make_node(op_type, ["z"], ["scores"]))
    return model


@pytest.mark.parametrize(("op_type", "loss"), [("Softmax", "cross-entropy"), ("Softmax", LossType.CrossEntropyLoss), ("Softmax", "focal"),
                                               ("Sigmoid", "bce-with-logits")])
def test_a_loss_that_would_apply_an_activation_twice_is_warned_of(op_type, loss):
    with pytest.warns(UserWarning, match=f"result 'scores' of a {op_type}: make 'z' the model's output, or .* num_classes"):
        Trainer.from_model(with_activation(op_type), loss=loss, progress=False).close()


@pytest.mark.parametrize(("op_type", "loss", "more"), [("Softmax", "mse", {}), ("LogSoftmax", "cross-entropy", {}), ("LogSoftmax", "nll", {}),
                                                       ("Softmax", "cross-entropy", {"num_classes": CLASSES})])
def test_other_losses_are_not_warned_of(op_type, loss, more):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer.from_model(with_activation(op_type), loss=loss, progress=False, **more).close()


@pytest.mark.parametrize(("name", "hint"), [("lr", "did you mean 'learning_rate' by 'lr'"), ("patiense", "'patience'"), ("max_grad_norm", "'clip_norm'"),
                                            ("batch_size", "batch_size is an argument of fit"), ("validation_split", "validation is an argument of fit")])
def test_an_unknown_setting_is_refused_with_what_was_meant(name, hint):
    with pytest.raises(InvalidArgumentError, match=hint):
        Trainer.from_model(classifier(), loss="cross-entropy", **{name: 1})


@pytest.mark.parametrize(("name", "meant"), [("sparse_categorical_crossentropy", "cross-entropy"), ("binary_crossentropy", "bce-with-logits"), ("mae", "l1")])
def test_losses_of_other_libraries_are_recognized_in_the_refusal(name, meant):
    with pytest.raises(InvalidArgumentError, match=f"did you mean '{meant}'"):
        Trainer.from_model(classifier(), loss=name)


def test_a_trainer_says_what_it_trains():
    with Trainer.from_model(classifier(), loss="cross-entropy", progress=False) as trainer:
        trainer.fit(X, Y, batch_size=25)
        assert repr(trainer) == "Trainer(inputs x; targets labels; 163 numbers in 4 trained tensors; 1 epochs and 2 steps completed)"
