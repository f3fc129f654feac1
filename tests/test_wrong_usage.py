"""Wrong usage raises a named error with the expected value, the given value and the place; a refused call changes nothing."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ortrain import InferenceSession, OrtValue, SessionOptions, errors
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer

CASE = Path(__file__).parent / "data" / "ort_golden" / "mlp_ce"


@pytest.fixture
def state():
    return CheckpointState.load_checkpoint(CASE / "checkpoint")


@pytest.fixture
def module(state):
    return Module(CASE / "training_model.onnx", state, CASE / "eval_model.onnx")


@pytest.fixture
def batch():
    inputs = np.load(CASE / "inputs.npz")
    return inputs["train0.x"], inputs["train0.labels"]


def snapshot(state):
    return {name: (p.data.copy(), None if p.grad is None else p.grad.copy()) for name, p in state.parameters}


def assert_unchanged(state, before):
    for name, (data, grad) in before.items():
        np.testing.assert_array_equal(state.parameters[name].data, data)
        if grad is not None:
            np.testing.assert_array_equal(state.parameters[name].grad, grad)


def refusals(x, labels):
    return {
        "an input missing": ((x,), errors.InputCountError, ValueError),
        "an input too many": ((x, labels, labels), errors.InputCountError, ValueError),
        "a wrong inner size": ((x[:, :-1], labels), errors.InputShapeError, ValueError),
        "a wrong rank": ((x[0], labels), errors.InputRankError, ValueError),
        "a wrong dtype": ((x.astype(np.float64), labels), errors.InputTypeError, TypeError),
        "labels of a wrong dtype": ((x, labels.astype(np.int32)), errors.InputTypeError, TypeError),
        "no array": ((None, labels), errors.InputTypeError, TypeError),
        "another number of labels": ((x, labels[:-1]), errors.OrtrainError, ValueError),
        "an empty batch": ((x[:0], labels[:0]), errors.EmptyBatchError, ValueError),
        "a label out of range": ((x, np.full_like(labels, 10_000)), errors.LabelRangeError, ValueError),
    }


@pytest.mark.parametrize("usage", list(refusals(np.zeros((2, 2), np.float32), np.zeros(2, np.int64))))
def test_a_wrong_call_is_refused_and_changes_nothing(usage, module, state, batch):
    module(*batch)
    before = snapshot(state)
    arguments, error, builtin = refusals(*batch)[usage]
    assert issubclass(error, errors.OrtrainError)
    with pytest.raises(error, match="expected") as caught:
        module(*arguments)
    assert isinstance(caught.value, builtin)
    assert_unchanged(state, before)


def test_a_wrong_first_call_is_refused(module, state, batch):
    before = snapshot(state)
    with pytest.raises(errors.LabelRangeError, match="got 77"):
        module(batch[0], np.full_like(batch[1], 77))
    assert_unchanged(state, before)


def test_an_unknown_parameter_is_a_key_error(state):
    with pytest.raises(KeyError) as caught:
        state.parameters["nope"]
    assert isinstance(caught.value, errors.ParameterNotFoundError) and str(caught.value) == "Parameter nope not found."
    with pytest.raises(errors.PropertyNotFoundError):
        state.properties["nope"]


def test_a_parameter_keeps_shape_and_dtype(state):
    name, parameter = next(iter(state.parameters))
    with pytest.raises(errors.ParameterShapeError):
        state.parameters[name] = np.zeros(parameter.data.size + 1, np.float32)
    with pytest.raises(errors.ParameterTypeError):
        parameter.data = parameter.data.astype(np.float64)


def test_a_parameter_may_be_set_before_a_module_exists(state, batch):
    for _, parameter in state.parameters:
        parameter.data = np.zeros_like(parameter.data)
    module = Module(CASE / "training_model.onnx", state)
    classes = state.parameters["fc2.bias"].data.size
    assert module(*batch) == pytest.approx(np.log(classes), rel=1e-6)


@pytest.mark.parametrize("name", ["checkpoint", "training_model.onnx"])
def test_a_missing_file_is_file_not_found(name, tmp_path, state):
    with pytest.raises(FileNotFoundError) as caught:
        CheckpointState.load_checkpoint(tmp_path / name) if name == "checkpoint" else Module(tmp_path / name, state)
    assert isinstance(caught.value, errors.ArtifactNotFoundError)


def test_a_truncated_or_foreign_checkpoint_is_refused(tmp_path):
    data = (CASE / "checkpoint").read_bytes()
    for content in (b"", data[: len(data) // 2], b"garbage" * 100, (CASE / "training_model.onnx").read_bytes()):
        (tmp_path / "c").write_bytes(content)
        with pytest.raises(errors.InvalidCheckpointError):
            CheckpointState.load_checkpoint(tmp_path / "c")


def test_a_file_that_is_not_a_model_is_refused(tmp_path, state):
    (tmp_path / "m.onnx").write_bytes(b"not a model at all")
    with pytest.raises(errors.InvalidModelError):
        Module(tmp_path / "m.onnx", state)
    with pytest.raises(errors.InvalidModelError, match="Gradient buffer"):
        Module(CASE / "eval_model.onnx", state)


def test_a_device_other_than_cpu_is_refused(state):
    with pytest.raises(errors.UnsupportedDeviceError):
        Module(CASE / "training_model.onnx", state, device="cuda")


def test_an_optimizer_needs_an_optimizer_model(module):
    with pytest.raises(errors.InvalidModelError, match="Only support one type of optimizer"):
        Optimizer(CASE / "training_model.onnx", module)


def test_eval_without_eval_model_is_refused(state, batch):
    module = Module(CASE / "training_model.onnx", state).eval()
    with pytest.raises(errors.InvalidStateError):
        module(*batch)
    for names in (module.input_names, module.output_names):
        with pytest.raises(errors.InvalidStateError, match="eval model"):
            names()
    with pytest.raises(errors.InvalidStateError):
        module.export_model_for_inferencing("x.onnx", ["output"])


def test_export_checks_its_names(module, tmp_path):
    with pytest.raises(errors.InvalidArgumentError):
        module.export_model_for_inferencing(tmp_path / "x.onnx", [])
    with pytest.raises(errors.InvalidArgumentError, match="zzz"):
        module.export_model_for_inferencing(tmp_path / "x.onnx", ["zzz"])
    with pytest.raises(TypeError):
        module.export_model_for_inferencing(tmp_path / "x.onnx", "output")


def test_a_buffer_of_the_wrong_size_is_refused(module):
    with pytest.raises(errors.ParameterShapeError, match="Parameters buffer size incorrect"):
        module.copy_buffer_to_parameters(OrtValue(np.zeros(3, np.float32)))


def test_options_that_training_does_not_support_are_refused():
    with pytest.raises(errors.InvalidArgumentError, match="Prepacking"):
        SessionOptions().add_session_config_entry("session.disable_prepacking", "0")


def test_a_nominal_state_has_no_values_until_they_are_loaded(batch):
    nominal = CheckpointState.load_checkpoint(CASE / "nominal_checkpoint")
    module = Module(CASE / "training_model.onnx", nominal, CASE / "eval_model.onnx")
    optimizer = Optimizer(CASE / "optimizer_model.onnx", module)
    for call in (lambda: nominal.parameters["fc1.bias"], lambda: module(*batch), optimizer.step, lambda: module.get_contiguous_parameters()):
        with pytest.raises(errors.InvalidStateError, match=r"[Pp]lease load"):
            call()
    full = CheckpointState.load_checkpoint(CASE / "checkpoint")
    other = Module(CASE / "training_model.onnx", full)
    module.copy_buffer_to_parameters(other.get_contiguous_parameters(), trainable_only=False)
    np.testing.assert_array_equal(module(*batch), other(*batch))


def test_ort_values_give_ort_values(module, batch):
    result = module(*(OrtValue.ortvalue_from_numpy(x) for x in batch))
    assert isinstance(result, OrtValue) and result.data_type() == "tensor(float)"


def test_learning_rate_and_scheduler(module):
    optimizer = Optimizer(CASE / "optimizer_model.onnx", module)
    assert optimizer.get_learning_rate() == pytest.approx(0.001)
    optimizer.set_learning_rate(0.5)
    assert optimizer.get_learning_rate() == 0.5
    with pytest.raises(TypeError):
        optimizer.set_learning_rate("x")
    scheduler = LinearLRScheduler(optimizer, 4, 10, 0.1)
    rates = [optimizer.get_learning_rate()]
    for _ in range(10):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    assert rates == pytest.approx([0, 0.025, 0.05, 0.075, 0.1, 0.1 * 5 / 6, 0.1 * 4 / 6, 0.05, 0.1 * 2 / 6, 0.1 / 6, 0])
    with pytest.raises(TypeError):
        LinearLRScheduler(optimizer, 1.5, 3, 0.1)


def test_gradients_accumulate_until_they_are_reset(module, state, batch):
    module(*batch)
    once = state.parameters["fc1.weight"].grad.copy()
    module(*batch)
    np.testing.assert_allclose(state.parameters["fc1.weight"].grad, 2 * once, rtol=1e-6)
    module.lazy_reset_grad()
    np.testing.assert_allclose(state.parameters["fc1.weight"].grad, 2 * once, rtol=1e-6)
    module(*batch)
    np.testing.assert_array_equal(state.parameters["fc1.weight"].grad, once)


def test_resuming_with_optimizer_state_continues_exactly(tmp_path, batch):
    def start(path):
        state = CheckpointState.load_checkpoint(path)
        module = Module(CASE / "training_model.onnx", state)
        return state, module, Optimizer(CASE / "optimizer_model.onnx", module)

    def steps(module, optimizer, count):
        for _ in range(count):
            module(*batch)
            optimizer.step()
            module.lazy_reset_grad()

    state, module, optimizer = start(CASE / "checkpoint")
    steps(module, optimizer, 3)
    CheckpointState.save_checkpoint(state, tmp_path / "c", include_optimizer_state=True)
    steps(module, optimizer, 2)
    resumed, module2, optimizer2 = start(tmp_path / "c")
    steps(module2, optimizer2, 2)
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.data, resumed.parameters[name].data)


@pytest.mark.parametrize(("op_type", "domain", "last"), [("InPlaceAccumulatorV2", "com.microsoft", np.array([False])),
                                                         ("SGDUpdate", "ortrain", np.ones(2, np.float32))])
def test_a_model_may_not_overwrite_its_inputs_or_constants(op_type, domain, last):
    node = helper.make_node(op_type, ["x", "v", "last"], ["y"], domain=domain, name="writer")
    given = {"x": np.zeros((3, 4), np.float32), "v": np.ones((3, 4), np.float32), "last": last}
    kinds = {name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in given.items()}
    y = helper.make_tensor_value_info("y", 9, [1])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ortrain", 1)]
    for constant in (False, True):
        weights = [numpy_helper.from_array(given["x"], "x")] if constant else []
        inputs = [kind for name, kind in kinds.items() if name != "x" or not constant]
        model = helper.make_model(helper.make_graph([node], "g", inputs, [y], weights), opset_imports=opsets, ir_version=8)
        session = InferenceSession(model.SerializeToString())
        with pytest.raises(errors.InvalidModelError, match=f"{op_type}.*'x'.*writer"):
            session.run(None, {name: array for name, array in given.items() if name != "x" or not constant})
    assert not given["x"].any()


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "all"])
def test_rematerialization_is_a_share_from_zero_to_one(share, state):
    with pytest.raises(errors.InvalidArgumentError, match=r"expected a share of the step's time from 0 to 1 as rematerialization, got"):
        Module(CASE / "training_model.onnx", state, session_options=SessionOptions(rematerialization=share))


@pytest.mark.parametrize("precision", ["float64", "", None, 16])
def test_an_unknown_precision_is_refused(precision, state):
    with pytest.raises(errors.InvalidArgumentError, match=r"expected one of float32, bfloat16, auto as precision, got"):
        Module(CASE / "training_model.onnx", state, session_options=SessionOptions(precision=precision))


@pytest.mark.parametrize("key, value, wanted", [
    ("ortrain.speed", "1", r"expected one of ortrain\.enable_winograd, .*, got the configuration entry 'ortrain\.speed'"),
    ("ortrain.optimizer_in_backward", "yes", r"expected 0 or 1 as ortrain\.optimizer_in_backward, got 'yes'"),
    ("ortrain.rematerialization", "much", r"expected a number as ortrain\.rematerialization, got 'much'"),
    ("ortrain.rematerialization", 0.1, r"expected text as key and value of a configuration entry, got 'ortrain\.rematerialization' and 0\.1"),
    ("ortrain.precision", "half", r"expected one of float32, bfloat16, auto as precision, got 'half'"),
    ("ortrain.parameter_dtype", "float16", r"expected one of float32, bfloat16 as parameter_dtype, got 'float16'"),
    ("ortrain.rematerialization", "2", r"expected a share of the step's time from 0 to 1 as rematerialization, got 2\.0"),
])
def test_an_invalid_configuration_entry_is_refused_and_changes_nothing(key, value, wanted):
    options = SessionOptions()
    with pytest.raises(errors.InvalidArgumentError, match=wanted):
        options.add_session_config_entry(key, value)
    assert options == SessionOptions()
