"""Modules of kernels and operators are imported when a plan needs them, and the indexes by which they are found are complete."""

import subprocess
import sys

from ortrain._core.kernel_table import instruction_set
from ortrain.ops import REGISTRY
from tests import indexes
from tests.layers import ROOT

CODE_OF_A_NETWORK = """
import sys
import numpy as np
from onnx import TensorProto, helper, numpy_helper
import ortrain
from ortrain.artifacts import LossType, OptimType, build_artifacts
from ortrain.runtime.state import TrainingState

ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in "xy"]
weights = [numpy_helper.from_array(np.ones((4, 4), np.float32), name) for name in "vw"]
nodes = [helper.make_node("Gemm", ["x", "v"], ["z"]), helper.make_node("Relu", ["z"], ["r"]), helper.make_node("Gemm", ["r", "w"], ["y"])]
model = helper.make_model(helper.make_graph(nodes, "small", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 17)])
artifacts = build_artifacts(model, requires_grad=["v", "w"], loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)
session = ortrain.TrainingSession(artifacts.training, TrainingState(artifacts.checkpoint))
session.load_optimizer(artifacts.optimizer)

def step():
    session.train_step(np.ones((2, 4), np.float32), np.array([0, 1]))
    session.optimizer_step()
    session.lazy_reset_grad()

step()
"""
CODE_OF_THREADS = """
import threading
from ortrain.ops.registry.record import MODULE_OF, REGISTRY

found, start = [], threading.Barrier(4)

def look_up():
    start.wait()
    found.append([REGISTRY[key] for key in MODULE_OF])

threads = [threading.Thread(target=look_up) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), all(one is other for records in found for one, other in zip(records, found[0], strict=True)))
"""


def output_of(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_index_of_kernels_is_up_to_date():
    assert indexes.KERNEL_INDEX.read_text(encoding="utf-8") == indexes.kernel_index(), "render it again: python -m tests.indexes"


def test_the_index_of_operators_is_up_to_date():
    rendered = output_of("-c", "from tests.indexes import operator_index; print(operator_index(), end='')")
    assert indexes.OPERATOR_INDEX.read_text(encoding="utf-8") == rendered, "render it again: python -m tests.indexes"


def test_every_operator_of_the_index_has_its_own_record():
    for domain, op_type in REGISTRY:
        record = REGISTRY[domain, op_type]
        assert (record.domain, record.op_type) == (domain, op_type)


def test_threads_that_look_up_operators_at_once_find_the_same_records():
    assert output_of("-c", CODE_OF_THREADS).split() == ["4", "True"]


def imported_by_the_network(prefix: str) -> set[str]:
    """Return the modules below `prefix` that training a small network imports."""
    names = output_of("-c", f"{CODE_OF_A_NETWORK}\nprint(*sys.modules)").split()
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def test_a_small_network_imports_only_the_kernels_that_it_needs():
    imported = imported_by_the_network(f"ortrain._core.instruction_sets.{instruction_set()}.")
    assert imported >= {"gemm", "linear", "loss", "training"}
    assert not imported & {"attention", "channels_last", "norm", "recurrent", "softmax"}


def test_a_small_network_imports_only_the_operators_that_it_needs():
    imported = imported_by_the_network("ortrain.ops.")
    assert imported >= {"linear", "activation", "loss", "training"}
    assert not imported & {"attention", "recurrent", "resize", "sampling", "contrib.quantized"}


def test_a_small_network_imports_only_the_passes_that_it_needs():
    imported = imported_by_the_network("ortrain.plan.")
    assert imported >= {"rewriting", "epilogue_fusion.dense"}
    assert not imported & {"epilogue_fusion.conv", "epilogue_fusion.extremes", "layout", "promotion", "strided_products", "transposes"}


def test_steps_import_nothing():
    code = f"{CODE_OF_A_NETWORK}\nbefore = set(sys.modules)\nfor _ in range(3):\n    step()\nprint(*(set(sys.modules) - before))"
    assert output_of("-c", code).split() == []
