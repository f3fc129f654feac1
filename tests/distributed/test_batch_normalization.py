"""Batch normalization by the statistics of all workers' samples: workers train like one process with the whole batch, running statistics included."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import SessionOptions, TrainingSession, errors
from ortrain.distributed import DiLoCo, OptimizerSharding, OverlappedSynchronization
from ortrain.ir import TensorType
from ortrain.ops.registry.cost_model import count_operations
from ortrain.trainer import LambdaCallback
from tests.distributed.test_parallel_training import assert_like_one_process, fit, trainer_of
from tests.distributed.threads import results, run
from tests.training.test_flat_buffers import normalized

SAMPLES, CLASSES = 30, 3
RNG = np.random.default_rng(4)
IMAGES = (RNG.standard_normal((SAMPLES, 2, 6, 6)) * 2 + 3).astype(np.float32)
ROWS = RNG.standard_normal((SAMPLES, 20)).astype(np.float32) + 1
LABELS = RNG.integers(0, CLASSES, SAMPLES)


def images_model(opset=17) -> onnx.ModelProto:
    """x [n, 2, 6, 6] -> scores [n, 3] through two convolutions with normalizations, one of which is in a residual branch, and one of pixels alone."""
    rng = np.random.default_rng(5)
    arrays = {"k": rng.standard_normal((4, 2, 3, 3)), "l": rng.standard_normal((4, 4, 1, 1)), "v": rng.standard_normal((4, CLASSES))}
    for number in range(3):
        arrays |= {f"scale{number}": rng.random(4) + 0.5, f"bias{number}": rng.standard_normal(4)}
        arrays |= {f"mean{number}": np.zeros(4), f"variance{number}": np.ones(4)}

    def normalization(number, x, y):
        return helper.make_node("BatchNormalization", [x, *(f"{name}{number}" for name in ("scale", "bias", "mean", "variance"))], [y], momentum=0.8)

    nodes = [helper.make_node("Conv", ["x", "k"], ["a"]), normalization(0, "a", "b"), helper.make_node("Relu", ["b"], ["c"]),
             helper.make_node("Conv", ["c", "l"], ["d"]), normalization(1, "d", "e"), helper.make_node("Add", ["c", "e"], ["f"]),
             helper.make_node("Relu", ["f"], ["g"]), helper.make_node("GlobalAveragePool", ["g"], ["h"]), helper.make_node("Flatten", ["h"], ["i"]),
             normalization(2, "i", "j"), helper.make_node("MatMul", ["j", "v"], ["scores"])]
    graph = helper.make_graph(nodes, "images", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 6, 6])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
                              [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with weights, inputs and outputs of float64."""
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return model


IMAGES_HOW = {"model": images_model(), "data": (IMAGES, LABELS), "validation": (IMAGES[:9], LABELS[:9]), "synchronized_batch_normalization": True,
              "optimizer": "sgd", "learning_rate": 0.05}


# ---- equality


@pytest.mark.parametrize("size", [2, 3, 4])
def test_workers_train_like_one_process_with_the_whole_batch(size):
    assert_like_one_process(size, 12 // size, **IMAGES_HOW)


def test_newer_operator_sets_have_it_too():
    assert_like_one_process(2, 6, **(IMAGES_HOW | {"model": images_model(18)}))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_workers_with_fewer_samples_or_none_take_part(accumulate):
    """26 = 2 x 12 + 2 samples: in the last batch, two of four workers have one each. A batch of two is normalized to signs, nearly, so that rounding grows."""
    data = IMAGES[:26].astype(np.float64), LABELS[:26]
    how = IMAGES_HOW | {"model": in_float64(images_model()), "data": data, "validation": data, "accumulate": accumulate}
    assert_like_one_process(4, 3, **how)
    assert_like_one_process(3, 3, **how)


def test_it_goes_with_sharded_optimizers_and_clipping():
    assert_like_one_process(2, 6, OptimizerSharding, clip_norm=0.1, **(IMAGES_HOW | {"optimizer": "adamw", "learning_rate": 0.01}))


def test_the_cost_of_a_gradient_that_leaves_out_that_of_x_is_known():
    """Rematerialization asks for it."""
    image, channels = TensorType("float32", (2, 4, 3, 3)), TensorType("float32", (4,))
    assert count_operations("BatchNormalizationGrad", {}, [image, image, channels, channels, channels], [None, channels, channels]) == 11 * 72


def test_rows_are_normalized_too():
    assert_like_one_process(2, 6, model=normalized(), data=(ROWS, LABELS), validation=None, synchronized_batch_normalization=True, optimizer="sgd")


def test_without_it_workers_normalize_by_their_own_statistics():
    own = results(2, lambda strategy: fit(strategy, 6, **(IMAGES_HOW | {"synchronized_batch_normalization": False})))[0]
    assert np.abs(own[0][0] - fit(None, 12, **IMAGES_HOW)[0][0]) > 1e-3


def test_float64_is_normalized_in_float64():
    data = IMAGES.astype(np.float64), LABELS
    how = IMAGES_HOW | {"model": in_float64(images_model()), "data": data, "validation": None, "epochs": 1}
    found, expected = results(3, lambda strategy: fit(strategy, 4, **how))[0], fit(None, 12, **how)
    for name, array in expected[2].items():
        assert array.dtype == np.float64
        np.testing.assert_allclose(found[2][name], array, rtol=1e-11, atol=1e-13, err_msg=name)


# ---- failures and refusals


@pytest.mark.parametrize("where", ["on_step_end", "on_gradients"])
def test_a_worker_that_fails_between_steps_ends_all_with_its_rank(where):
    def fail(trainer, *_):
        if trainer.rank == 1:
            raise OSError("disk full")

    found = run(3, lambda strategy: trainer_of(strategy, images_model(), synchronized_batch_normalization=True, callbacks=[LambdaCallback(**{where: fail})])
                .fit(IMAGES, LABELS, batch_size=4))
    assert [str(error) for error in found] == ["rank 1 of 3 failed: OSError: disk full"] * 3


def test_a_worker_that_fails_in_a_step_ends_all_with_its_rank():
    wrong = LABELS.copy()
    wrong[7] = 11
    batches = [(IMAGES[start : start + 12], wrong[start : start + 12]) for start in range(0, 24, 12)]
    found = run(2, lambda strategy: trainer_of(strategy, images_model(), synchronized_batch_normalization=True).fit(batches))
    for error in found:
        assert isinstance(error, errors.WorkerFailedError) and str(error).startswith("rank 1 of 2 failed: LabelRangeError")


@pytest.mark.parametrize("synchronization", [DiLoCo, OverlappedSynchronization])
def test_exchanges_during_steps_are_refused(synchronization):
    with pytest.raises(errors.InvalidArgumentError, match="expected no synchronized batch normalization with workers that exchange gradients during"):
        trainer_of(synchronization=synchronization(), synchronized_batch_normalization=True)


def test_artifacts_do_not_know_of_it(tmp_path):
    def work(strategy):
        with trainer_of(strategy, images_model(), folder=tmp_path / "run", synchronized_batch_normalization=True) as trainer:
            trainer.fit(IMAGES, LABELS, batch_size=6)
            return float(trainer.session.eval_step(IMAGES, LABELS)[0])

    expected = results(2, work)[0]
    with TrainingSession.from_artifacts(tmp_path / "run", options=SessionOptions(intra_op_num_threads=1)) as session:
        assert float(session.eval_step(IMAGES, LABELS)[0]) == expected
        assert {node.domain for node in session.training_model.graph.nodes} <= {"", "com.microsoft"}
