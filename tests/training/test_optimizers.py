"""Optimizers in sessions: by name, as artifacts, with deferred gradients, in the backward pass, in checkpoints."""

import numpy as np
import onnx
import pytest

from ortrain import SessionOptions, TrainingSession, errors
from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.onnxblock import optim
from ortrain.ops.registry.optimizers import ALGORITHMS
from ortrain.ops.registry.record import MICROSOFT
from tests.core.optimizer_references import REFERENCES
from tests.test_optimizer_in_backward import assert_same, dense_layers
from tests.test_session import DATA

RNG = np.random.default_rng(11)
BATCHES = [(RNG.standard_normal((24, 20)).astype(np.float32), RNG.integers(0, 5, 24)) for _ in range(4)]
VARIANTS = {
    "sgd with momentum": lambda: optim.SGD(momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd with decay": lambda: optim.SGD(weight_decay=0.01, decoupled=True),
    "rmsprop with momentum": lambda: optim.RMSprop(momentum=0.9), "centered rmsprop": lambda: optim.RMSprop(centered=True),
}
OPTIMIZERS = [*optim.OPTIMIZERS, *VARIANTS]


def small():
    return dense_layers(20, 30, 5)


def wide():
    """Return a model whose gradients are deferred or even left uncomputed."""
    return dense_layers(20, 700, 600, 5)


def session_of(optimizer, model=None, rate=0.003, **options):
    made = VARIANTS[optimizer]() if isinstance(optimizer, str) and optimizer in VARIANTS else optimizer
    return TrainingSession.from_model(model or small(), loss=LossType.CrossEntropyLoss, optimizer=made, learning_rate=rate, options=SessionOptions(**options))


def train(session, batches=BATCHES):
    losses = []
    for batch in batches:
        losses.append(float(session.train_step(*batch)[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_lowers_the_loss(optimizer):
    rates = {"sgd": 0.5, "sgd with momentum": 0.1, "sgd with decay": 0.5, "adagrad": 0.05, "lamb": 0.05, "muon": 0.02}
    with session_of(optimizer, rate=rates.get(optimizer, 0.005)) as session:
        losses = train(session, BATCHES[:1] * 60)
        assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in ("adamw", "sgd")])
def test_a_session_follows_the_reference(optimizer):
    with session_of(optimizer) as session:
        session.keep_gradients()
        recipe = session._optimizer.recipe
        reference, expected = REFERENCES[recipe.algorithm.kernel], {name: array.astype(float) for name, array in session.state.trainable.items()}
        moments = {name: [None if moment is None else np.zeros(moment.shape(array.shape)) for moment in recipe.moments] for name, array in expected.items()}
        for step, batch in enumerate(BATCHES, 1):
            session.train_step(*batch)
            gradients = {name: array.astype(float) for name, array in session.state.gradients.items()}
            session.optimizer_step()
            session.lazy_reset_grad()
            for name in expected:
                expected[name] = reference(expected[name], gradients[name], session.learning_rate, step, *moments[name], **recipe.attributes)
        for name, array in session.state.trainable.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_deferred_gradients_train_with_the_same_bits(optimizer, threads):
    with session_of(optimizer, wide(), intra_op_num_threads=threads) as deferred, session_of(optimizer, wide(), intra_op_num_threads=1) as kept:
        kept.keep_gradients()
        train(deferred)
        assert deferred._train_runner.last.deferred_names, "expected gradients to be deferred"
        train(kept)
        assert_same(deferred, kept)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_updates_in_the_backward_pass_give_the_same_bits(optimizer):
    with session_of(optimizer) as separate, session_of(optimizer, optimizer_in_backward=True) as fused:
        assert train(separate) == train(fused)
        assert_same(separate, fused)


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in ("lamb", "adafactor", "muon")])
def test_updates_are_fused_into_the_product_that_computes_a_large_gradient(optimizer):
    with session_of(optimizer, wide(), optimizer_in_backward=True) as fused, session_of(optimizer, wide()) as separate:
        separate.keep_gradients()
        train(separate)
        train(fused)
        assert "gemm_update" in {step.call.kernel for step in fused._train_runner.last.plan.steps}
        for name, array in separate.state.trainable.items():
            # Lion turns rounding errors of a gradient near 0 into whole steps
            limits = {"rtol": 0, "atol": 0.003 * 8} if optimizer == "lion" else {"rtol": 1e-3, "atol": 1e-3}
            np.testing.assert_allclose(fused.state.trainable[name], array, **limits)


@pytest.mark.parametrize("optimizer", ["lamb", "adafactor", "muon"])
def test_an_optimizer_that_needs_the_whole_tensor_is_not_fused_into_a_product(optimizer):
    with session_of(optimizer, wide(), optimizer_in_backward=True) as fused:
        train(fused)
        names = {step.call.kernel for step in fused._train_runner.last.plan.steps}
        assert optimizer in names and "gemm_update" not in names


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_resumes_from_a_checkpoint_with_its_moments(optimizer, tmp_path):
    with session_of(optimizer) as whole, session_of(optimizer) as first:
        train(whole)
        train(first, BATCHES[:2])
        first.save_artifacts(tmp_path)
    with TrainingSession.from_artifacts(tmp_path) as second:
        second.learning_rate = 0.003
        train(second, BATCHES[2:])
        assert_same(whole, second)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_parameters_keep_values_and_moments(optimizer):
    for in_backward in (False, True):
        with session_of(optimizer, optimizer_in_backward=in_backward) as session:
            session.freeze("w0")
            before = session.state.trainable["w0"].copy(), session.state.trainable["w1"].copy()
            train(session)
            np.testing.assert_array_equal(session.state.trainable["w0"], before[0])
            assert not np.array_equal(session.state.trainable["w1"], before[1])
            for segments in filter(None, session.state.moments):
                view = next(segment.views["w0"] for segment in segments if "w0" in segment.views)
                assert not view.any()


def test_float64_parameters_are_trained():
    model = small()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for optimizer in ("lion", "adafactor", "lamb", "muon"):
        with session_of(optimizer, model) as session:
            losses = train(session, [(BATCHES[0][0].astype(np.float64), BATCHES[0][1])] * 12)
            assert losses[-1] < losses[0]


def test_the_name_of_an_optimizer_stands_for_its_defaults(tmp_path):
    for optimizer, name in (("adamw", OptimType.AdamW), ("sgd", OptimType.SGD)):
        for choice, folder in ((optimizer, "name"), (name, "type")):
            (tmp_path / folder).mkdir(exist_ok=True)
            generate_artifacts(small(), loss=LossType.CrossEntropyLoss, optimizer=choice, artifact_directory=tmp_path / folder)
        assert (tmp_path / "name" / "optimizer_model.onnx").read_bytes() == (tmp_path / "type" / "optimizer_model.onnx").read_bytes()


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(errors.InvalidArgumentError, match=r"among adamw, sgd, adam, lion, .*, muon, got 'adma'"):
        session_of("adma")


def test_optimizers_that_onnxruntime_training_cannot_load_are_operators_of_our_own_domain():
    assert {name for name, algorithm in ALGORITHMS.items() if algorithm.domain == MICROSOFT} == {"AdamWOptimizer", "SGDOptimizerV2"}


def test_an_operator_of_that_name_in_another_domain_is_no_optimizer():
    with session_of("adam") as session:
        session.optimizer_model.graph.nodes[0].domain = "com.microsoft"
        with pytest.raises(errors.InvalidModelError, match="one type of optimizer algorithm, but got: 0"):
            session.load_optimizer(session.optimizer_model)


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path):
    with session_of(optim.RMSprop(momentum=0.9)) as session, session_of(optim.RMSprop(centered=True)) as other:
        session.save_artifacts(tmp_path)
        model = other.optimizer_model
    with TrainingSession.from_artifacts(tmp_path) as again:
        before = again.optimizer_model
        again.state.moments = []
        with pytest.raises(errors.InvalidCheckpointError, match="momentum1"):
            again.load_optimizer(model)
        assert again.optimizer_model is before


def test_the_optimizer_can_be_replaced_by_one_with_other_moments():
    with session_of("adamw") as session, session_of("adafactor") as other:
        train(session)
        session.load_optimizer(other.optimizer_model)
        session.learning_rate = 0.003
        losses = train(session, BATCHES[:1] * 10)
        assert losses[-1] < losses[0]


def test_clipping_in_the_optimizer_model_works_for_every_optimizer():
    for make in (optim.Lion, optim.LAMB, optim.Adafactor, optim.Muon, optim.Adam, optim.Adagrad, optim.RMSprop,
                 lambda clip_grad: optim.SGD(clip_grad, momentum=0.9)):
        with session_of(make(clip_grad=optim.ClipGradNorm(0.01))) as session:
            train(session)
            assert session.last_gradient_norm is not None


@pytest.mark.parametrize("make, message", [
    (lambda: optim.SGD(nesterov=True), "momentum and no dampening"), (lambda: optim.SGD(momentum=1.0), r"momentum in \[0, 1\)"),
    (lambda: optim.Adam(betas=(0.9, 1.0)), r"beta2 in \[0, 1\)"), (lambda: optim.Lion(weight_decay=-1), "weight_decay >= 0"),
    (lambda: optim.RMSprop(alpha=float("nan")), "alpha"), (lambda: optim.Adafactor(decay_rate=0.5), "decay_rate <= 0"),
    (lambda: optim.Muon(newton_schulz_steps=2.5), "whole number from 1 to 100"), (lambda: optim.Adagrad(eps=float("inf")), "eps >= 0"),
])
def test_hyperparameters_out_of_range_are_refused(make, message):
    with pytest.raises(errors.InvalidArgumentError, match=message):
        make()


def test_hyperparameters_that_are_no_numbers_are_refused():
    for make in (lambda: optim.Lion(betas=0.9), lambda: optim.Adam(eps="1e-8"), lambda: optim.Adafactor(eps=1e-30), lambda: optim.SGD(momentum=True)):
        with pytest.raises(errors.ArgumentTypeError):
            make()


def test_artifacts_of_onnxruntime_training_still_load():
    for case in ("mlp_sgd", "mlp_ce"):
        with TrainingSession.from_artifacts(DATA / case) as session:
            assert session._optimizer.recipe.algorithm.domain == MICROSOFT


def test_an_optimizer_that_onnxruntime_training_lacks_is_refused_in_its_file_format(tmp_path):
    with pytest.raises(errors.InvalidModelError, match="ortrain::LionOptimizer"):
        generate_artifacts(small(), loss=LossType.CrossEntropyLoss, optimizer="lion", artifact_directory=tmp_path, ort_format=True)
    assert not list(tmp_path.iterdir())
