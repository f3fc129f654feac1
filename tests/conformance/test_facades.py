"""Every facade passes every case, shows errors in the form of its language, trains to the same bits, and reads the checkpoints of the others."""

import re

import numpy as np
import pytest

from ortrain.cli.conformance import judged
from ortrain.conformance import cases as suite
from ortrain.conformance.drivers import FINISHED, LANGUAGES, Failure, driver_for
from ortrain.conformance.runner import Outcome, run_case
from ortrain.conformance.service import Service
from ortrain.enums import ErrorCode

CASES = suite.load_cases()
KNOWN = suite.known_failures()
ARTIFACTS = suite.ARTIFACTS / "classifier"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_facade_passes_a_case(case, language):
    outcome = run_case(Service(driver_for(language)), case)
    if case.name in KNOWN.get(language, {}):
        assert outcome.verdict == "failed", "a case that is known to fail passes: take it out of known_failures.toml"
        return
    assert outcome.verdict in ("passed", "absent"), outcome.detail
    for shown in outcome.shown:
        assert re.fullmatch(driver_for(language).shown, shown, re.DOTALL), shown


def test_known_failures_name_existing_cases_and_languages():
    assert set(KNOWN) <= {*LANGUAGES, "native-c", "native-csharp"}
    assert {name for known in KNOWN.values() for name in known} <= {case.name for case in CASES}


def test_unexpected_passes_and_failures_are_reported(monkeypatch):
    monkeypatch.setattr("ortrain.cli.conformance.known_failures", lambda: {"c": {"a": "why", "b": "why"}})
    columns = {"c": {"a": Outcome("passed"), "b": Outcome("failed"), "d": Outcome("failed", "so"), "e": Outcome("passed")}}
    assert judged(columns) == ["c: a passes, and known_failures.toml says that it fails", "c: d: so"]
    assert columns["c"]["b"].verdict == "known"


def test_a_result_that_differs_fails_its_case():
    (case,) = [case for case in CASES if case.name == "the_learning_rate_is_set_and_read"]
    calls = [*case.calls[:-1], case.calls[-1] | {"result": 0.25}]
    wrong = suite.Case(case.name, case.documentation, calls, case.artifacts, case.objects)
    outcome = run_case(Service(driver_for("python")), wrong)
    assert outcome.verdict == "failed" and "expected 0.25, got 0.5" in outcome.detail


def started(language, checkpoint):
    """Return a driver, a state and a session of a language."""
    driver = driver_for(language)
    state = driver.call("checkpoint_state.load", None, {"path": str(checkpoint)})
    models = {f"{name}_model": str(ARTIFACTS / f"{name if name != 'train' else 'training'}_model.onnx") for name in ("train", "eval", "optimizer")}
    return driver, state, driver.call("training_session.create", None, {"state": state, **models})


def batches(count):
    random = np.random.default_rng(5)
    return [[random.standard_normal((4, 3), dtype=np.float32), random.integers(0, 3, 4)] for _ in range(count)]


def trained(language, checkpoint, steps):
    """Return the parameters after some steps, and the losses of all steps."""
    driver, _, session = started(language, checkpoint)
    losses = []
    driver.call("training_session.register_linear_lr_scheduler", session, {"warmup_step_count": 2, "total_step_count": 20, "initial_lr": 0.05})
    for batch in batches(steps):
        losses.append(driver.call("training_session.train_step", session, {"inputs": batch})[0])
        driver.call("training_session.optimizer_step", session, {})
        driver.call("training_session.scheduler_step", session, {})
        driver.call("training_session.lazy_reset_grad", session, {})
    return driver.call("training_session.to_buffer", session, {"trainable_only": False}), losses


def test_the_same_training_gives_the_same_bits_in_every_language():
    parameters, losses = trained("python", ARTIFACTS / "checkpoint", 10)
    assert not np.array_equal(parameters, started("python", ARTIFACTS / "checkpoint")[2].module.get_contiguous_parameters().numpy())
    for language in FINISHED[1:]:
        others, other_losses = trained(language, ARTIFACTS / "checkpoint", 10)
        assert others.tobytes() == parameters.tobytes(), language
        assert [loss.tobytes() for loss in other_losses] == [loss.tobytes() for loss in losses], language


@pytest.mark.parametrize("writer", FINISHED)
def test_a_checkpoint_is_read_in_every_other_language(writer, tmp_path):
    driver, state, session = started(writer, ARTIFACTS / "checkpoint")
    driver.call("training_session.train_step", session, {"inputs": batches(1)[0]})
    driver.call("training_session.optimizer_step", session, {})
    driver.call("checkpoint_state.set_property", state, {"name": "written by", "value": writer})
    driver.call("checkpoint_state.set_property", state, {"name": "epoch", "value": 3})
    driver.call("checkpoint_state.set_property", state, {"name": "loss", "value": 0.5})
    driver.call("checkpoint_state.save", state, {"path": str(tmp_path / "saved"), "include_optimizer_state": True})
    parameters = driver.call("training_session.to_buffer", session, {"trainable_only": False})
    after, _ = trained(writer, tmp_path / "saved", 2)
    for reader in FINISHED:
        other, again, resumed = started(reader, tmp_path / "saved")
        assert other.call("training_session.to_buffer", resumed, {"trainable_only": False}).tobytes() == parameters.tobytes(), reader
        for name, kind, value in (("written by", "str", writer), ("epoch", "int", 3), ("loss", "float", 0.5)):
            assert other.call("checkpoint_state.get_property", again, {"name": name, "type": kind}) == value, reader
        # the checkpoint has the optimizer's moments: training on gives the same parameters as in the writer's language
        assert trained(reader, tmp_path / "saved", 2)[0].tobytes() == after.tobytes(), reader


@pytest.mark.parametrize("language", FINISHED[1:])
def test_errors_have_the_codes_of_onnxruntime(language):
    with pytest.raises(Failure) as caught:
        driver_for(language).call("checkpoint_state.load", None, {"path": "nothing"})
    assert (caught.value.name, caught.value.code) == ("ArtifactNotFoundError", ErrorCode.NO_SUCHFILE)
