"""The operator benchmark covers every compiled kernel, measures, and renders its table."""

import json

import numpy as np
import pytest

from benchmarks.operators.case import Case
from benchmarks.operators.cases import CASES, select
from benchmarks.operators.engine import prepare
from benchmarks.operators.peer import PeerTime, TorchOperators
from benchmarks.operators.roofline import Roofline
from benchmarks.operators.run import Row, measure_cases, record, table
from benchmarks.operators.tables import operators_table, slower_operators_table, view_operators_table
from benchmarks.peers.run_torch_operators import is_view
from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import kernels
from ortrain.ops.registry.optimizers import ALGORITHMS

OTHER_KERNELS = {algorithm.kernel for algorithm in ALGORITHMS.values()} | {
    "accumulate", "clip_in_place", "exchange", "gemm_update", "gradient_noise", "linear_cross_entropy", "loss_and_gradient", "moving_average",
    "scale_in_place", "squared_norm",                                                                                  # of whole steps
    "ctc_loss", "softmax_focal_loss", "softmax_focal_loss_grad",                                                       # of losses that ONNX does not define
    "concat_training", "dequantized_gemm", "strided_copies",                                           # of operators that fusion inserts
    "channels_last_max_pool", "channels_last_max_pool_grad", "channels_last_average_pool", "channels_last_average_pool_grad",
    "channels_last_norm_again", "channels_last_group_norm", "channels_last_group_norm_again", "channels_last_group_norm_grad",   # of networks of convolutions
    "write_constant"}                                                                                                  # of constants
"""Kernels that a single operator of a model does not reach."""


def test_every_compiled_kernel_is_timed_by_a_case():
    handle, used = EngineHandle(1), set()
    for case in CASES.values():
        for backward in (False, True):
            prepared = prepare(case, backward, handle)
            used |= set(prepared.kernels if prepared else ())
    assert {name for name, _ in kernels()} - used == OTHER_KERNELS


def test_names_of_cases_are_unique_and_can_be_selected():
    assert {case.name for case in select(["softmax inner 7"]).values()} == {"Softmax inner 7", "LogSoftmax inner 7"}
    assert select(None) == CASES and not select(["no such operator"])


def test_a_gradient_moves_more_bytes_than_the_forward_pass():
    handle = EngineHandle(1)
    forward, both = (prepare(Case("Softmax", [(8, 16)]), backward, handle).work.bytes for backward in (False, True))
    assert (forward, both) == (2 * 8 * 16 * 4, 5 * 8 * 16 * 4)           # x, y; then y again, dy and dx
    assert prepare(Case("Floor", [(3,)], gradients=()), True, handle) is None


def test_a_case_is_measured_with_its_bound():
    rows, failed, rates = measure_cases({"Relu 8x16": Case("Relu", [(8, 16)])}, threads=1, torch=TorchOperators(1, None), seconds=0.0, show_steps=False)
    assert [row.part for row in rows] == ["forward", "both"] and not failed and "GB/s" in rates
    assert all(row.seconds > 0 and row.bound > 0 for row in rows)


def test_the_row_farthest_from_its_bound_comes_first():
    rows = [Row("near", "forward", 10, 2e-6, 1e-6, "k", 4e-6), Row("far", "both", 10, 9e-6, 1e-6, "k", 4.5e-6), Row("alone", "forward", 10, 3e-6, 1e-6, "k")]
    lines = table(rows).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:5]] == ["far + gradient", "alone", "near"]
    assert lines[2] == "| far + gradient | 9.0 | 900.000 | 100.000 | 9.00 | 450.000 | 2.00 | k |"
    assert lines[-1] == "2 rows beside PyTorch: geometric mean 1.00, slower in 1; 0 whose gradient is a view in PyTorch"


class ReturnsViews(TorchOperators):
    """A peer whose gradients are all views of the incoming one."""

    def best_time(self, name, part, seconds):
        return PeerTime(1e-6, [True, True])


def test_a_view_counts_only_where_our_gradient_is_computed():
    cases = {"Add": Case("Add", [(8, 16), (8, 16)], lambda torch, a, b: a + b), "Scatter": Case(
        "ScatterElements", [(4, 4), np.zeros((4, 4), np.int64), (4, 4)], lambda torch, *x: x[0], {"reduction": "add"}, gradients=(0,)),
        "Transpose": Case("Transpose", [(8, 16)], lambda torch, x: x.T)}
    rows, failed, _ = measure_cases(cases, threads=1, torch=ReturnsViews(1, None), seconds=0.0, show_steps=False)
    assert not failed
    assert [(row.name.split()[0], row.part) for row in rows if row.view] == [("Transpose", "both")]
    assert all((row.over_peer is None) == row.view for row in rows)


class Tensor:
    """What the benchmark asks of a tensor of PyTorch, of an array."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def stride(self):
        return self.array.strides

    def untyped_storage(self):
        return self

    def data_ptr(self):
        base = self.array
        while base.base is not None:
            base = base.base
        return base.ctypes.data


def test_expanded_and_sliced_gradients_are_views():
    incoming = Tensor(np.ones((4, 6), np.float32))
    assert is_view(incoming, incoming) and is_view(Tensor(incoming.array.T), incoming) and is_view(Tensor(incoming.array[:, 1:]), incoming)
    assert is_view(Tensor(np.broadcast_to(np.ones((4, 1), np.float32), (4, 6))), incoming)
    assert not is_view(Tensor(np.ones((4, 1), np.float32)), incoming)


def test_recorded_operators_are_rendered_by_operator_and_the_slower_ones_by_case(tmp_path):
    rows = [Row("Relu rows", "forward", 10, 2e-6, 1e-6, "relu", 4e-6), Row("Relu rows", "both", 10, 9.00001e-6, 1e-6, "relu_grad", 4.5e-6),
            Row("Abs rows", "forward", 10, 3e-6, 1e-6, "abs")]
    view = Row("Transpose rows", "both", 10, 2e-6, 1e-6, "strided_copy", 1e-6, view=True)
    record(tmp_path / "chip.json", {"1": ([*rows, view], "rates", "2.13"), "2": (rows[:1], "rates", "2.13")})
    recorded = json.loads((tmp_path / "chip.json").read_text())
    assert recorded["PyTorch"] == "2.13" and recorded["threads"]["1"]["rows"][1]["seconds"] == 9e-6
    assert operators_table(recorded).splitlines()[2:] == [
        "| Abs | 1 | - | - | 3.0 | - | - |", "| Relu | 2 | 1.00 | 2.00 | 4.2 | 0.50 | 0.50 |",
        "| Transpose | 1 | - | - | 2.0 | - | - |", "| geometric mean of all cases | | 1.00 | | | 0.50 | |"]
    assert slower_operators_table(recorded).splitlines()[2:] == ["| Relu rows + gradient | 1 | 9.0 | 4.5 | 2.00 | 9.0 | `relu_grad` |"]
    assert view_operators_table(recorded).splitlines()[2:] == ["| Transpose rows + gradient | 1 | 2.0 | 1.0 | 2.0 | `strided_copy` |"]


def test_a_bound_is_the_largest_of_its_parts():
    roofline = Roofline(EngineHandle(1))
    roofline.stream_rate, roofline.product_rate, roofline.transcendental_seconds = (lambda size: 1e9), (lambda: 1e10), (lambda: 1e-9)
    case = prepare(Case("Relu", [(100,)]), False, EngineHandle(1)).work
    assert roofline.bound(case) == pytest.approx(800e-9)
    case.transcendentals = 1000
    assert roofline.bound(case) == pytest.approx(1e-6)
    case.products = 10**5
    assert roofline.bound(case) == pytest.approx(1e-5)
