"""What ortrain takes in a fresh environment: on the disk, at its import, and in the memory of a tiny training.

    python -m benchmarks footprint WHEEL [--python python3.12]

Installs a wheel into an environment of its own with what it needs, and trains 100 steps of the smallest workload there from artifacts, without onnx."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

from benchmarks import one

WORKLOAD, STEPS, RUNS = "mlp-tiny-b1", 100, 5
IMPORT = """
import json, time
started = time.perf_counter()
import numpy
numpy_ms = (time.perf_counter() - started) * 1e3
def memory(field):
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(field + ":"))
numpy_mb, started = memory("VmRSS"), time.perf_counter()
from ortrain.api import CheckpointState, Module, Optimizer
figures = {"numpy_ms": numpy_ms, "numpy_mb": numpy_mb, "api_ms": (time.perf_counter() - started) * 1e3, "api_mb": memory("VmRSS") - numpy_mb}
"""
TRAIN = IMPORT + f"""
import sys
folder = sys.argv[1]
data = dict(numpy.load(f"{{folder}}/batches.npz"))
state = CheckpointState.load_checkpoint(f"{{folder}}/checkpoint")
module = Module(f"{{folder}}/training_model.onnx", state)
optimizer = Optimizer(f"{{folder}}/optimizer_model.onnx", module)
module.train()
for _ in range({STEPS}):
    module(data["x0"], data["y0"])
    optimizer.step()
    module.lazy_reset_grad()
print(json.dumps(figures | {{"train_mb": memory("VmHWM")}}))
"""


def variables() -> dict[str, str]:
    """Return the environment without PYTHONPATH, through which pip and the new interpreter would find the ortrain that measures."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def install(folder: Path, python: str, wheel: Path) -> Path:
    """Return the interpreter of a new environment with a wheel and what it needs."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inner = folder / "bin" / "python"
    subprocess.run([str(inner), "-m", "pip", "install", "--quiet", str(wheel)], check=True, env=variables())
    return inner


def sizes(folder: Path) -> dict[str, tuple[float, float]]:
    """Return package -> the megabytes of its files without and with the bytecode that pip compiles, for what an environment has besides its tools."""
    (site,) = folder.glob("lib/python*/site-packages")
    found = {}
    for package in distributions(path=[str(site)]):
        files = [Path(str(file.locate())) for file in package.files or []]
        counted = [[file for file in files if file.exists() and (bytecode or file.suffix != ".pyc")] for bytecode in (False, True)]
        found[package.name] = tuple(sum(file.stat().st_size for file in part) / 1e6 for part in counted)
    return {name: size for name, size in found.items() if name not in ("pip", "setuptools")}          # type: ignore[misc]


def measure(inner: Path, folder: Path) -> dict[str, float]:
    """Return the medians of what processes of an environment print that train in `folder`."""
    command = [str(inner), "-c", TRAIN, str(folder)]
    answers = [json.loads(subprocess.run(command, cwd=folder, env=variables(), check=True, capture_output=True, text=True).stdout) for _ in range(RUNS)]
    return {name: statistics.median(answer[name] for answer in answers) for name in answers[0]}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks footprint", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="of the environment (default: this one)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ortrain_footprint_") as name:
        folder = Path(name)
        one.prepare(WORKLOAD, folder / "model")
        inner = install(folder / "venv", options.python, options.wheel)
        found = sizes(folder / "venv")
        for package, (plain, compiled) in found.items():
            print(f"{package}: {plain:.1f} MB installed, {compiled:.1f} with bytecode")
        print(f"together: {sum(plain for plain, _ in found.values()):.1f} MB, {sum(compiled for _, compiled in found.values()):.1f} with bytecode")
        figures = measure(inner, folder / "model")
    print(f"import of numpy: {figures['numpy_ms']:.0f} ms, a process of {figures['numpy_mb']:.1f} MB")
    print(f"import of ortrain.api adds {figures['api_ms']:.0f} ms and {figures['api_mb']:.1f} MB")
    print(f"{STEPS} steps of {WORKLOAD}: a process of {figures['train_mb']:.1f} MB at most")
