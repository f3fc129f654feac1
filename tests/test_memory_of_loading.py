"""Memory that a session takes when an optimizer is loaded, and that its steps add."""

import subprocess
import sys
from pathlib import Path

import pytest

WEIGHTS = 2048 * 2048 * 4
"""Size of the only parameter in bytes."""
SCRIPT = """
import numpy as np
from onnx import TensorProto, helper, numpy_helper
import ortrain
from ortrain.artifacts import LossType, OptimType, build_artifacts
from ortrain.runtime.state import TrainingState

def resident():                          # anonymous pages only: those of libraries depend on other processes
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon:"))

ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 2048]) for name in "xy"]
weights = numpy_helper.from_array(np.full((2048, 2048), 1e-3, np.float32), "w")
graph = helper.make_graph([helper.make_node("Gemm", ["x", "w"], ["y"])], "wide", ends[:1], ends[1:], [weights])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
artifacts = build_artifacts(model, requires_grad=["w"], loss=LossType.MSELoss, optimizer=OptimType.{optimizer})
# one thread: how much of its packing buffer a second one touches varies
session = ortrain.TrainingSession(artifacts.training, TrainingState(artifacts.checkpoint), options=ortrain.SessionOptions(intra_op_num_threads=1))
before = resident()
session.load_optimizer(artifacts.optimizer)
loaded = resident()
x, y = np.ones((2, 4, 2048), np.float32)
for _ in range(2):
    session.train_step(x, y)
    session.optimizer_step()
    session.lazy_reset_grad()
print(loaded - before, resident() - loaded)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize(("optimizer", "moments"), [("AdamW", 2), ("SGD", 0)])
def test_optimizer_allocates_moments_and_steps_add_less_than_half_a_gradient(optimizer, moments):
    done = subprocess.run([sys.executable, "-c", SCRIPT.replace("{optimizer}", optimizer)], capture_output=True, text=True, check=True)
    by_loading, by_steps = map(int, done.stdout.split())
    assert moments * WEIGHTS <= by_loading < (moments + 0.25) * WEIGHTS
    assert by_steps < 0.5 * WEIGHTS
