"""The networks of `python -m benchmarks networks`: their graphs are complete and train, and the table says whether a step meets its target."""

import ast
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import measure, one
from benchmarks.floor import PRODUCTS
from benchmarks.networks import ALL, HELD_OUT, NETWORKS, floor, instruction_sets, run
from benchmarks.networks.builder import NetworkBuilder
from benchmarks.networks.tables import instruction_sets_table, networks_table
from ortrain import SessionOptions, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.ir import Node
from ortrain.ops.registry.operator_modules import OPERATOR_MODULES
from ortrain.ops.registry.record import record_of

ROOT = Path(__file__).resolve().parents[1]
each_network = pytest.mark.parametrize("name", ALL)


def tiny_session(name):
    """Return (session of the network with tiny sizes, a batch)."""
    network, made = ALL[name], ALL[name].make(name, tiny=True)
    loss = LossType.MSELoss if network.loss == measure.MEAN_SQUARED_ERROR else LossType.CrossEntropyLoss
    session = TrainingSession.from_model(made.model, loss=loss, optimizer=OptimType.AdamW, requires_grad=made.trained, frozen_params=made.frozen,
                                         learning_rate=1e-3, options=SessionOptions(intra_op_num_threads=1))
    return session, network.batches(made, 1)[0]


def test_there_are_networks_of_twenty_four_kinds_and_ten_of_others():
    assert (len(NETWORKS), len(HELD_OUT)) == (24, 10)
    assert len({network.kind for network in ALL.values()}) == 34


@each_network
def test_shapes_of_a_network_are_known_and_its_names_are_those_of_torch(name):
    made = ALL[name].make(name)
    onnx.checker.check_model(made.model, full_check=True)
    assert made.output_shape and all(size > 0 for size in made.output_shape)
    assert made.trained and len(set(made.trained)) == len(made.trained)
    size = sum(made.torch_state[key].size for key in made.torch_state)
    stored = {weight.name: math.prod(weight.dims) for weight in made.model.graph.initializer}
    assert size == sum(stored[key] for key in (*made.trained, *made.frozen))
    batch, answers = ALL[name].batches(made, 1)[0]
    assert batch.shape == made.input_shape
    assert answers.shape == (made.output_shape if ALL[name].loss == measure.MEAN_SQUARED_ERROR else (made.output_shape[0], *made.output_shape[2:]))


@each_network
def test_a_tiny_network_trains(name):
    session, batch = tiny_session(name)
    losses = []
    with session:
        for _ in range(12):                            # batches of two make losses rise at first, and rounding decides when they fall
            losses.append(float(session.train_step(*batch)[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_torch_has_a_module_of_every_network():
    tree = ast.parse((ROOT / "benchmarks" / "peers" / "networks" / "__init__.py").read_text(encoding="utf-8"))
    modules = next(node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MODULES")
    assert isinstance(modules, ast.Dict)
    assert [ast.literal_eval(key) for key in modules.keys if key is not None] == list(ALL)


@pytest.mark.parametrize(("op_type", "order"), [("LSTM", (0, 3, 1, 2)), ("GRU", (1, 0, 2))])
def test_gates_of_recurrent_layers_follow_the_order_of_onnx(op_type, order):
    g, hidden = NetworkBuilder(), 3
    g.recurrent(op_type, g.input((5, 2, 4)), "rnn", 4, hidden, bidirectional=True)
    gates = len(order)
    for position, gate in enumerate(order):
        rows, torch_rows = slice(position * hidden, (position + 1) * hidden), slice(gate * hidden, (gate + 1) * hidden)
        np.testing.assert_array_equal(g.weights["rnn.W0"][0, rows], g.torch_state["rnn.weight_ih_l0"][torch_rows])
        np.testing.assert_array_equal(g.weights["rnn.R0"][1, rows], g.torch_state["rnn.weight_hh_l0_reverse"][torch_rows])
        second_half = slice((gates + position) * hidden, (gates + position + 1) * hidden)
        np.testing.assert_array_equal(g.weights["rnn.B0"][1, second_half], g.torch_state["rnn.bias_hh_l0_reverse"][torch_rows])


def test_a_network_is_prepared_with_its_loss_and_the_weights_of_the_torch_module(tmp_path, monkeypatch):
    monkeypatch.setitem(ALL, "flow", replace(NETWORKS["flow"], sizes=NETWORKS["flow"].tiny))
    assert one.prepare("flow", tmp_path) == {"status": "ok"}
    meta = measure.load_meta(tmp_path)
    assert meta["loss"] == measure.MEAN_SQUARED_ERROR and meta["sizes"] == NETWORKS["flow"].tiny
    with np.load(tmp_path / measure.WEIGHTS) as weights:
        assert sorted(weights) == sorted(meta["requires_grad"])


def test_lower_bounds_count_every_operator_whose_operands_products_multiply():
    """Products take operands of bfloat16; those that a plan replaces by others have no kernel of their own."""
    records = [record_of(Node(name.rpartition("::")[2], [], [], "", name.rpartition("::")[0])) for names in OPERATOR_MODULES.values() for name in names]
    assert {record.op_type for record in records if record is not None and record.takes_bfloat16} == PRODUCTS


@pytest.mark.parametrize("name", ["inception", "llama", "physics-informed", "gru-seq2seq"])
def test_the_lower_bound_counts_products_updates_and_memory(name):
    session, batch = tiny_session(name)
    with session:
        found = floor.measure_floor(session, [batch], 0.0)
    json.dumps(found)
    assert found["operations"] > 0 and found["optimizer_bytes"] > 0 and found["exchanged_bytes"] > 0
    assert len(found["top"]) == floor.TOP_KERNELS and sum(found["top"].values()) <= 1.0 + 1e-9
    assert 0 < floor.lower_bound_ms(found, 2 * found["rate"]) < floor.lower_bound_ms(found, found["rate"])


def test_the_lower_bound_counts_a_program_once_that_the_optimizer_step_goes_on_with(monkeypatch):
    sizes = {**NETWORKS["llama"].sizes, "layers": 1}                 # large enough for gradients to be deferred
    monkeypatch.setitem(ALL, "llama", replace(NETWORKS["llama"], tiny=sizes))
    session, (x, labels) = tiny_session("llama")
    with session:
        found = floor.measure_floor(session, [(x, labels)], 0.0)
        with session.profile() as profile:
            session.train_step(x, labels)
            session.optimizer_step()
            session.lazy_reset_grad()
        deferred = session._train_runner.last.deferred_names
    assert deferred
    assert found["operations"] == sum(row.operations or 0 for row in profile.steps if row.operator in PRODUCTS)


def row_of(ours, peer, loss, monkeypatch, tmp_path):
    """Return the row of a network measured with these times in ms, this loss of the peer beside 2.0, and a lower bound of 1 ms."""
    results = {"ortrain": {"status": "ok", "median_ms": ours, "min_ms": ours, "first_loss": 2.0},
               "torch-eager": {"status": "ok", "median_ms": peer, "min_ms": peer, "first_loss": loss},
               "onnxruntime": {"status": "unsupported", "reason": "no gradient"}}
    bound = {"status": "ok", "operations": 1e6, "rate": 1e9, "optimizer_bytes": 0, "exchanged_bytes": 0, "bandwidth": 1e9, "strided_copy": 0.25,
             "top": {"gemm": 0.5}}
    monkeypatch.setattr(run.run, "measure", lambda *_: {})
    monkeypatch.setattr(run.run, "summarize", lambda _: {"vit": {"1": results}})
    monkeypatch.setattr(run.run, "run_process", lambda *_: dict(bound))
    options = run.argparse.Namespace(limit=1.0, seconds=0.0, instruction_set=None, precision="float32")
    found = {"vit": run.network_rows(options, "vit", {}, tmp_path)}
    run.judge(found)
    return found["vit"]


@pytest.mark.parametrize(("ours", "peer", "met"), [(2.0, 3.0, True), (2.0, 2.5, False), (1.09, 1.0, True), (1.2, 1.0, False)])
def test_a_step_meets_the_target_by_its_ratio_or_by_the_lower_bound(ours, peer, met, monkeypatch, tmp_path):
    rows = row_of(ours, peer, 2.0, monkeypatch, tmp_path)
    assert rows["1"]["met"] is met
    line = run.table_row("vit", "1", rows["1"], ["ortrain", "torch-eager"])
    assert line.startswith(f"| vit | 1 | {ours:.3f} | {peer:.3f} | {ours / peer:.2f} | 1.000 | {ours:.2f} | {'yes' if met else 'no'} | 25% | gemm 50% |")
    assert line.count("|") == run.title(["ortrain", "torch-eager"]).splitlines()[0].count("|")


def test_the_fastest_step_is_compared_with_the_lower_bound(monkeypatch, tmp_path):
    rows = row_of(2.0, 2.5, 2.0, monkeypatch, tmp_path)
    rows["1"]["fastest_ms"]["ortrain"] = 1.05
    run.judge({"vit": rows})
    assert rows["1"]["met"] and rows["1"]["over_floor"] == 1.05 and rows["1"]["ratio"] == 0.8


def test_the_report_says_that_first_losses_differ_and_what_was_not_measured(monkeypatch, tmp_path):
    assert run.notes("vit", row_of(1.0, 2.0, 2.0001, monkeypatch, tmp_path)) == ["- vit, onnxruntime, unsupported: no gradient"]
    assert run.notes("vit", row_of(1.0, 2.0, 2.001, monkeypatch, tmp_path))[1].startswith("- vit: the first losses differ: ")


def test_recorded_networks_are_rendered_with_their_best_peer(monkeypatch, tmp_path):
    rows = row_of(2.0, 3.00001234, 2.0, monkeypatch, tmp_path)
    run.record(tmp_path / "chip.json", {"processor": "chip"}, 1, {"vit": rows})
    recorded = json.loads((tmp_path / "chip.json").read_text())
    assert recorded["networks"]["vit"]["1"]["step_ms"]["torch-eager"] == 3.0 and recorded["rounds"] == 1
    lines = networks_table(recorded).splitlines()
    assert lines[2] == "| vit | 2.00 | 3.00 (eager) | 0.67 | 2.00 | - | - | - | - | 25% | `gemm` 50% |"
    assert lines[3] == "| geometric mean | | | 0.67 | | | | - | | | |"
    assert {line.count("|") for line in lines} == {12}


def test_instruction_sets_are_measured_in_turns_and_recorded(monkeypatch, tmp_path):
    bound = {"status": "ok", "operations": 1e6, "rate": 1e9, "optimizer_bytes": 0, "exchanged_bytes": 0, "bandwidth": 1e9}
    seen = []

    def rows(options, network, pythons, cache):
        seen.append((network, options.instruction_set))
        times = {"ortrain": {None: 2.0, "avx2": 3.0, "baseline": 8.0}[options.instruction_set]}
        return {"1": {"step_ms": times, "fastest_ms": times, "floor": dict(bound)}}

    monkeypatch.setattr(instruction_sets, "network_rows", rows)
    monkeypatch.setattr(instruction_sets.documents, "RESULTS", tmp_path)
    monkeypatch.setattr(instruction_sets.run, "describe_machine", lambda *_: {"processor": "chip", "instruction set": "avx512"})
    instruction_sets.main(["--only", "vit", "flow", "--record", "chip"])
    assert seen == [(network, name) for network in ("vit", "flow") for name in (None, "avx2", "baseline")]
    recorded = json.loads((tmp_path / "instruction-sets-chip.json").read_text())
    lines = instruction_sets_table(recorded).splitlines()
    assert lines[0].split("|")[2:8] == [" avx512, ms ", " over floor ", " avx2, ms ", " over floor ", " baseline, ms ", " over floor "]
    assert lines[2] == "| vit | 2.00 | 2.00 | 3.00 | 3.00 | 8.00 | 8.00 | 1.50 | 4.00 |"
    assert lines[4] == "| geometric mean | | | | | | | 1.50 | 4.00 |"
