"""Sessions that keep parameters and moments in bfloat16 alone: what they reach, their memory, files and interfaces, and what they refuse."""

import copy
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import SessionOptions, Trainer, TrainingSession, errors
from ortrain.distributed import LocalSGD, OptimizerSharding
from ortrain.dtypes import numpy_dtype
from ortrain.federated.workspace import Workspace
from ortrain.runtime import seed
from ortrain.runtime.state import TrainingState
from ortrain.training.weight_average import WeightAverage
from tests.distributed.test_batch_normalization import IMAGES, LABELS, images_model
from tests.distributed.threads import results
from tests.trainer.models import classifier, samples

pytest.importorskip("ml_dtypes")

BFLOAT16 = numpy_dtype("bfloat16")
X, TARGETS = samples()


def session(model=None, optimizer="adamw", learning_rate=0.01, threads=1, **options):
    how = SessionOptions(intra_op_num_threads=threads, **({"parameter_dtype": "bfloat16"} | options))
    return TrainingSession.from_model(model or classifier(), loss="cross-entropy", optimizer=optimizer, learning_rate=learning_rate, options=how)


def train(trained, steps=20, x=X, targets=TARGETS, keep=False):
    """Train; return all parameters and moments, as bytes."""
    for _ in range(steps):
        trained.train_step(x, targets)
        if keep:
            trained.gradient_buffers()
        trained.optimizer_step()
        trained.lazy_reset_grad()
    return bits(trained)


def bits(trained):
    return b"".join(segment.array.tobytes() for segment in trained.state.segments())


def nearest(values):
    return values.astype(BFLOAT16).astype(np.float32)


# ---- what is reached


def digits_model(hidden=64):
    """x [n, 64] -> scores [n, 10] through one hidden layer."""
    rng = np.random.default_rng(3)
    arrays = {"hidden": rng.standard_normal((64, hidden)) / 6, "bias": np.zeros(hidden), "head": rng.standard_normal((hidden, 10)) / 8}
    nodes = [helper.make_node("Gemm", ["x", "hidden", "bias"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("MatMul", ["r", "head"], ["scores"])]
    graph = helper.make_graph(nodes, "digits", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 10])],
                              [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def accuracy_of_digits(dtype, optimizer, learning_rate, to_nearest=False):
    """Train for 30 epochs with a learning rate whose steps are mostly below half the distance of two bfloat16 numbers; return (held-out loss, accuracy)."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, targets = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, targets = (x[order] / 16).astype(np.float32), targets[order]
    rng = np.random.default_rng(1)
    with session(digits_model(), optimizer, learning_rate, parameter_dtype=dtype) as trained:
        for _ in range(30):
            for rows in np.split(rng.permutation(1400), 28):
                train(trained, 1, x[rows], targets[rows])
                if to_nearest:
                    trained.from_buffer(nearest(trained.to_buffer()))
        loss, scores = float(trained.eval_step(x[1400:], targets[1400:])[0]), trained.predict(x[1400:])[0]
        return loss, float((scores.argmax(1) == targets[1400:]).mean())


@pytest.mark.parametrize("optimizer, learning_rate", [("adamw", 1e-4), ("sgd", 0.01)])
def test_small_steps_reach_what_float32_reaches_where_rounding_to_nearest_loses_them(optimizer, learning_rate):
    loss, accuracy = accuracy_of_digits("float32", optimizer, learning_rate)
    narrow_loss, narrow_accuracy = accuracy_of_digits("bfloat16", optimizer, learning_rate)
    stalled_loss, _ = accuracy_of_digits("float32", optimizer, learning_rate, to_nearest=True)
    assert narrow_loss == pytest.approx(loss, rel=0.02) and narrow_accuracy == pytest.approx(accuracy, abs=0.02)
    assert stalled_loss > 1.3 * loss


def test_parameters_and_moments_take_six_bytes_for_each_parameter():
    with session(digits_model(512)) as narrow, session(digits_model(512), parameter_dtype="float32") as wide:
        count = sum(array.size for array in wide.state.trainable.values())
        assert [sum(segment.array.nbytes for segment in trained.state.segments()) for trained in (narrow, wide)] == [6 * count, 12 * count]


# ---- the same bits


@pytest.mark.parametrize("optimizer, hidden", [*((name, 512) for name in ("adamw", "adam", "sgd", "lion", "rmsprop", "adagrad")),
                                               *((name, 5000) for name in ("adamw", "sgd", "lion"))])
def test_threads_and_when_updates_run_change_no_bit(optimizer, hidden):
    model = digits_model(hidden)
    x, targets = np.random.default_rng(2).standard_normal((40, 64)).astype(np.float32), np.arange(40) % 10
    with session(model, optimizer) as usual:
        expected = train(usual, 5, x, targets)
        kernels = {step.call.kernel for step in usual._train_runner.last.plan.steps}
        assert ("gemm_update" in kernels) == (hidden == 5000), "expected large gradients to be used up piece by piece"
    assert train(session(model, optimizer, threads=2), 5, x, targets) == expected
    if hidden == 512:                                       # products in pieces round as a whole only where they sum up in the same order
        assert train(session(model, optimizer), 5, x, targets, keep=True) == expected
    assert train(session(model, optimizer, optimizer_in_backward=True), 5, x, targets) == expected


def test_the_seed_rounds_differently(monkeypatch):
    results = []
    for number in (3, 4):
        monkeypatch.setattr(seed, "_seed", number)
        results.append(train(session()))
    assert results[0] != results[1]


def test_convolutions_and_normalizations_train_too():
    with session(images_model(), "sgd", 0.05, rematerialization=0.3) as narrow, session(images_model(), "sgd", 0.05, parameter_dtype="float32") as wide:
        before, *losses = float(wide.eval_step(IMAGES, LABELS)[0]), 0.0, 0.0
        for number, trained in enumerate((narrow, wide)):
            train(trained, 30, IMAGES, LABELS)
            losses[number] = float(trained.eval_step(IMAGES, LABELS)[0])
        assert losses[0] == pytest.approx(losses[1], rel=0.05) and losses[0] < 0.9 * before
        assert {name for name, array in narrow.state.frozen.items() if array.dtype == np.float32} == {f"{name}{i}" for name in ("mean", "variance")
                                                                                                     for i in range(3)}


# ---- files and copies


def test_checkpoints_and_exports_hold_the_numbers_as_float32_and_continue_to_the_bit(tmp_path):
    straight = session()
    train(straight, 15)
    with session() as first:
        train(first, 10)
        first.save_artifacts(tmp_path)
        first.export(tmp_path / "trained.onnx")
        values = {name: array.astype(np.float32) for name, array in first.state.trainable.items()}
    for name, array in values.items():
        assert (nearest(array) == array).all(), name
    exported = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    for name, array in values.items():
        np.testing.assert_array_equal(exported[name], array)
    resumed = TrainingSession.from_artifacts(tmp_path, options=SessionOptions(parameter_dtype="bfloat16"))
    resumed.learning_rate = 0.01
    assert train(resumed, 5) == bits(straight)
    with TrainingSession.from_artifacts(tmp_path) as wide:
        for name, array in values.items():
            np.testing.assert_array_equal(wide.state.trainable[name], array)
        assert all(segment.dtype == np.float32 for segment in wide.state.segments())


def test_a_state_goes_from_one_session_to_another_in_either_dtype():
    with session() as first:
        train(first, 10)
        kept, step = bits(first), first.state.optimizer_step
        models, state = (first.training_model, first.eval_model, first.optimizer_model), first.state
        with pytest.raises(errors.InvalidStateError, match="expected a state whose other session is closed, to keep its parameters in float32"):
            TrainingSession(models[0], state, *models[1:])
    with TrainingSession(models[0], state, *models[1:]) as wide:
        assert all(segment.dtype == np.float32 for segment in wide.state.segments()) and state.optimizer_step == step
    again = TrainingSession(models[0], state, *models[1:], options=SessionOptions(parameter_dtype="bfloat16"))
    assert bits(again) == kept


def test_copies_continue_to_the_bit():
    with session() as first:
        train(first, 5)
        other = copy.deepcopy(first)
        assert train(other, 5) == train(first, 5)


def test_a_trainer_resumes_to_the_bit(tmp_path):
    def fit(folder, epochs, resume=False):
        options = SessionOptions(parameter_dtype="bfloat16")
        how = {"progress": False, "seed": 5, "patience": 9}
        trainer = (Trainer.from_artifacts(folder, resume=True, options=options, **how) if resume
                   else Trainer.from_model(classifier(), loss="cross-entropy", folder=folder, options=options, **how))
        trainer.fit(X, TARGETS, epochs=epochs, batch_size=8, validation=0.2)
        return bits(trainer.session)

    expected = fit(tmp_path / "straight", 4)
    fit(tmp_path / "run", 2)
    assert fit(tmp_path / "run", 4, resume=True) == expected


# ---- interfaces


def test_values_are_read_as_float32_and_rounded_when_they_are_set():
    with session() as narrow:
        parameter = narrow.parameters["hidden.weight"]
        assert parameter.data.dtype == np.float32 and (parameter.data == nearest(parameter.data)).all()
        with pytest.raises(ValueError, match="read-only"):
            parameter.data[0, 0] = 1
        values = np.random.default_rng(0).standard_normal(parameter.data.shape).astype(np.float32)
        parameter.data = values
        np.testing.assert_array_equal(parameter.data, nearest(values))
        with pytest.raises(errors.ParameterTypeError, match="Expected: float32, Got: float64"):
            parameter.data = values.astype(np.float64)
        buffer = narrow.to_buffer()
        narrow.from_buffer(buffer * np.float32(1.1))
        np.testing.assert_array_equal(narrow.to_buffer(), nearest(buffer * np.float32(1.1)))
        assert parameter.grad.dtype == np.float32 and "bfloat16" in narrow._repr_html_()


def test_flat_buffers_are_those_that_are_kept():
    with session() as narrow:
        train(narrow, 2)
        parameters, gradients, moments = narrow.parameter_buffers(), narrow.gradient_buffers(), narrow.moment_buffers()
        buffers = parameters[0], gradients[0], *(moment[0] for moment in moments.values())
        assert [buffer.array.dtype for buffer in buffers] == [BFLOAT16, np.float32, BFLOAT16, BFLOAT16]
        assert parameters[0].offsets == gradients[0].offsets == moments["momentum1"][0].offsets
        parameters[0].array[...] = 0.5
        assert (narrow.parameters["head.bias"].data == 0.5).all()


def test_workers_keep_the_same_parameters():
    def fit(synchronization):
        def work(strategy):
            with Trainer.from_model(classifier(), loss="cross-entropy", progress=False, strategy=strategy, synchronization=synchronization(),
                                    options=SessionOptions(parameter_dtype="bfloat16", intra_op_num_threads=1)) as trainer:
                trainer.fit(X, TARGETS, epochs=3, batch_size=4)
                return [segment.array.tobytes() for segment in trainer.session.state.parameter_segments()]

        return results(2, work)

    whole, sharded = fit(lambda: None), fit(OptimizerSharding)
    assert whole[0] == whole[1] == sharded[0] == sharded[1]


def test_a_configuration_entry_sets_it():
    options = SessionOptions()
    options.add_session_config_entry("ortrain.parameter_dtype", "bfloat16")
    assert options.parameter_dtype == "bfloat16"


# ---- what is refused


@pytest.mark.parametrize("optimizer", ["lamb", "adafactor", "muon"])
def test_optimizers_of_whole_tensors_are_refused(optimizer):
    with pytest.raises(errors.InvalidArgumentError, match="expected an optimizer that updates each element on its own with parameters of bfloat16"):
        session(optimizer=optimizer)


def test_averages_of_parameters_are_refused():
    with session() as narrow, pytest.raises(errors.InvalidArgumentError, match="expected parameters that are kept in float32 for an average of weights"):
        WeightAverage(narrow)

    def work(strategy):
        with pytest.raises(errors.InvalidArgumentError, match="expected parameters that are kept in float32 for workers that average"):
            Trainer(session(), strategy=strategy, synchronization=LocalSGD())

    results(2, work)


def test_federated_clients_are_refused():
    with pytest.raises(errors.InvalidArgumentError, match="expected parameters that are kept in float32 for federated clients"):
        Workspace(session, ())


def test_workers_with_different_seeds_are_refused():
    def work(strategy):
        trained = session()
        trained.state.rounding_seed = strategy.rank
        with pytest.raises(errors.InvalidArgumentError, match="expected the same seed of rounding on every worker"):
            Trainer(trained, strategy=strategy, progress=False).fit(X, TARGETS)

    results(2, work)
    with session(parameter_dtype="float32") as wide:
        assert wide.state.rounding_seed is None, "expected other workers to be free to have seeds of their own"


@pytest.mark.parametrize("dtype", ["float16", "auto", "", None])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(errors.InvalidArgumentError, match="expected one of float32, bfloat16 as parameter_dtype, got"):
        session(parameter_dtype=dtype)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(errors.MissingPackageError, match="expected the package ml_dtypes for parameters in bfloat16"):
        session()


def test_moments_of_another_dtype_are_refused():
    with session() as narrow:
        train(narrow, 1)
        checkpoint = narrow.state.to_checkpoint(include_optimizer_state=True)
        for moments in checkpoint.optimizer_groups["group0"].momentums.values():
            moments["momentum0"] = moments["momentum0"].astype(np.float64)
        models = narrow.training_model, narrow.eval_model, narrow.optimizer_model
    with pytest.raises(errors.InvalidCheckpointError, match=r"expected momentum0 of .* and dtype float32, got .* and float64"):
        TrainingSession(models[0], TrainingState(checkpoint), *models[1:], options=SessionOptions(parameter_dtype="bfloat16"))
