"""The names of the package itself."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import ortrain
from ortrain import lora, quantization
from tests.documents import models


def test_every_public_name_is_there_without_further_imports():
    code = "import ortrain; print([name for name in ortrain.__all__ if getattr(ortrain, name, None) is None])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": str(Path(ortrain.__file__).parents[1])})
    assert found.stdout.strip() == "[]"


def test_write_model_writes_what_lora_and_quantization_return(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models.perceptron("model.onnx", [4, 3], "x", "y", ["fc"])
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    expected = ortrain.InferenceSession("model.onnx").run(None, {"x": x})[0]
    for model, tolerance in ((lora.add("model.onnx"), 0.0), (quantization.convert(quantization.prepare("model.onnx", [x])), 0.1)):
        ortrain.write_model(model, "written.onnx")
        np.testing.assert_allclose(ortrain.InferenceSession("written.onnx").run(None, {"x": x})[0], expected, atol=tolerance)
