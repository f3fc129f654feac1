"""Creates a virtual environment with the last release of onnxruntime-training, without PyTorch, which it imports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ["onnxruntime-training-cpu==1.19.2", "onnx==1.16.2", "numpy<2"]
STUB = '"""Replaced: the original imports PyTorch, which on-device training does not need."""\n'


def interpreter() -> str:
    """Return a Python 3.11 interpreter, the newest that wheels of onnxruntime-training exist for. Raises SystemExit when there is none."""
    found = os.environ.get("ORTRAIN_PEER_BASE_PYTHON") or shutil.which("python3.11")
    if not found:
        raise SystemExit("expected a python3.11 on PATH (or in ORTRAIN_PEER_BASE_PYTHON) for the wheels of onnxruntime-training, found none")
    return found


def make(folder: Path) -> Path:
    """Return the Python interpreter of the environment in `folder`, creating the environment if necessary."""
    python = folder / "bin" / "python"
    marker = folder / "ready"
    if not marker.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreter(), "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        packages = subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], check=True,
                                  capture_output=True, text=True).stdout.strip()
        (Path(packages) / "onnxruntime" / "training" / "__init__.py").write_text(STUB)
        marker.write_text("ok\n")
    return python
