"""Profiles: their figures, their effect on the session, and the format of the trace."""

import json

import numpy as np
import pytest

from ortrain import errors
from ortrain.cli import main
from ortrain.ir import TensorType
from ortrain.ops import REGISTRY
from ortrain.ops.registry.cost_model import COSTS, MOVING, count_operations
from tests.test_narrow_activations import perceptron
from tests.test_rematerialization import BATCH, program_of, trained
from tests.test_session import batch, start, steps

STEPS = 3
GEMM_KERNELS = 2 + 3
"""Two layers: forward twice; backward twice for the weights and once for the hidden values."""


def profiled(**options):
    with start(**options) as session:
        with session.profile() as profile:
            losses = steps(session, batch(), STEPS)
        return profile, losses


def test_every_step_of_every_run_is_measured():
    profile, _ = profiled()
    assert {step.runs for step in profile.steps} == {STEPS}
    assert len(profile.events) == STEPS * len(profile.steps)
    assert all(event.duration >= 0 for event in profile.events) and profile.seconds > 0
    assert sum(step.kernel == "gemm" for step in profile.steps) == GEMM_KERNELS
    assert [step.operator for step in profile.steps if step.kernel == "adamw"] == ["optimizer"]


def test_a_matrix_multiplication_counts_two_operations_per_multiplication():
    matrix = [TensorType("float32", shape) for shape in ((8, 5), (5, 3))]
    assert count_operations("Gemm", {}, [*matrix, None], [TensorType("float32", (8, 3))]) == 2 * 8 * 5 * 3
    turned = [TensorType("float32", (4, 5, 8)), TensorType("float32", (4, 5, 3))]
    assert count_operations("FusedMatMul", {"transA": 1}, turned, [TensorType("float32", (4, 8, 3))]) == 2 * 4 * 8 * 5 * 3


def test_a_convolution_and_each_of_its_gradients_count_the_same_operations():
    x, w, y = (TensorType("float32", shape) for shape in ((2, 4, 9, 9), (6, 2, 3, 3), (2, 6, 7, 7)))
    forward = 2 * (2 * 6 * 7 * 7) * (2 * 3 * 3)
    assert count_operations("Conv", {"group": 2}, [x, w], [y]) == forward
    assert count_operations("ConvGrad", {"group": 2}, [y, x, w], [x, w, None]) == 2 * forward
    assert count_operations("ConvGrad", {"group": 2}, [y, x, w], [None, w, None]) == forward


def test_an_operator_outside_of_the_cost_model_has_no_count():
    assert count_operations("Transpose", {}, [TensorType("float32", (2, 3))], [TensorType("float32", (3, 2))]) is None


def test_the_cost_model_names_existing_operators():
    assert not {*COSTS, *MOVING} - {op_type for _, op_type in REGISTRY}


def test_a_profiled_session_computes_the_same():
    with start() as session:
        plain = steps(session, batch(), STEPS)
    assert profiled()[1] == plain


def test_nothing_is_recorded_outside_the_block():
    with start() as session:
        with session.profile() as profile:
            steps(session, batch(), 1)
        count = len(profile.events)
        steps(session, batch(), 1)
        assert len(profile.events) == count
        with session.profile() as second:
            session.eval_step(*batch())
        assert {step.runs for step in second.steps} == {1} and len(profile.events) == count


def test_a_session_is_profiled_once_at_a_time():
    with start() as session, session.profile(), pytest.raises(errors.InvalidStateError, match="being profiled"):
        session.profile().__enter__()


def test_a_step_that_a_guard_refuses_ends_the_run():
    with start() as session:
        x, labels = batch()
        with session.profile() as profile:
            with pytest.raises(errors.LabelRangeError):
                session.train_step(x, labels + 1000)
            session.train_step(x, labels)
    guards = [step for step in profile.steps if step.kernel == "check_range"]
    assert [step.runs for step in guards] == [2] and {step.runs for step in profile.steps if step.kernel == "gemm"} == {1}


def test_a_profile_says_what_memory_programs_take_and_what_is_kept_in_bfloat16():
    for precision in ("float32", "bfloat16"):
        session = trained(perceptron(layers=6), 1, None, precision=precision)
        with session.profile() as profile:
            session.train_step(*BATCH)
        memory, = profile.memory
        assert memory.arena_bytes == program_of(session).arena_bytes and f"{memory.arena_bytes / 1e6:.1f} MB" in str(memory)
        if precision == "float32":
            assert not memory.kept_in_bfloat16 and "bfloat16" not in str(memory)
        else:
            assert set(memory.kept_in_bfloat16.values()) == {512 * 256 * 2} and len(memory.kept_in_bfloat16) > 3
            assert f"{len(memory.kept_in_bfloat16)} activations" in str(memory)


def test_the_table_has_a_row_for_each_step_or_kernel():
    profile, _ = profiled()
    lines = profile.table().splitlines()
    assert len(lines) == len(profile.steps) + 2 and lines[0].split()[:3] == ["kernel", "operator", "node"]
    by_kernel = profile.table(by="kernel", most=2).splitlines()
    assert len(by_kernel) == 4 and by_kernel[-1] == lines[-1]
    assert sum(step.seconds for step in profile.by_kernel()) == pytest.approx(profile.seconds)
    with pytest.raises(ValueError, match="'step' or 'kernel'"):
        profile.table(by="node")


def test_the_trace_has_one_complete_event_for_each_run_of_a_step(tmp_path):
    profile, _ = profiled()
    profile.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(trace) == len(profile.events) and {event["ph"] for event in trace} == {"X"}
    assert min(event["ts"] for event in trace) == 0
    gemm = next(event for event in trace if event["cat"] == "gemm")
    assert gemm["args"]["flop"] > 0 and gemm["args"]["bytes"] > 0


@pytest.fixture
def artifacts(tmp_path):
    with start() as session:
        (tmp_path / "run").mkdir()
        session.save_artifacts(tmp_path / "run")
    return tmp_path / "run"


def test_the_command_prints_a_table_and_writes_a_trace_and_nothing_else(artifacts, capsys):
    before = {path: path.read_bytes() for path in artifacts.iterdir()}
    trace = artifacts.parent / "trace.json"
    assert main(["profile", str(artifacts), "--steps", "2", "--threads", "1", "--by", "step", "--trace", str(trace)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("kernel") and "adamw" in out and out.splitlines()[-1].startswith("program 0: an arena of")
    assert json.loads(trace.read_text())["traceEvents"]
    assert {path: path.read_bytes() for path in artifacts.iterdir()} == before


def test_the_command_takes_a_data_file(artifacts, capsys):
    x, labels = batch()
    with start() as session:
        names = session.input_names()
    np.savez(artifacts.parent / "data.npz", **{names[0]: x, "labels": labels})
    assert main(["profile", str(artifacts), "--data", str(artifacts.parent / "data.npz"), "--batch-size", "4", "--steps", "1"]) == 0
    assert "loss_and_gradient" in capsys.readouterr().out


def test_the_command_refuses_to_measure_nothing(artifacts, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["profile", str(artifacts), "--steps", "0"])
    assert "argument --steps: expected a whole number of at least 1, got '0'" in capsys.readouterr().err
