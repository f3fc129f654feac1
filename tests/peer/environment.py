"""Makes the environment of the old package: a virtual environment with its last release, and without its need of PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ["onnxruntime-training-cpu==1.19.2", "onnx==1.16.2", "numpy<2"]
STUB = '"""Replaced: the original imports PyTorch, which on-device training does not need."""\n'


def interpreter() -> str:
    """A Python 3.11, the last that the old package's wheels fit besides 3.8 to 3.10. Raises SystemExit when there is none."""
    found = os.environ.get("ORTRAIN_PEER_BASE_PYTHON") or shutil.which("python3.11")
    if not found:
        raise SystemExit("expected a python3.11 on PATH (or in ORTRAIN_PEER_BASE_PYTHON) for the old package's wheels, found none")
    return found


def make(folder: Path) -> Path:
    """The Python of the peer's environment in `folder`, made there unless it exists."""
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
