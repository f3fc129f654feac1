"""The digits program of examples/native in seven languages: what it needs, how it is run, and what it should do, scenario by scenario."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ortrain.runtime.inference_session import InferenceSession
from ortrain.runtime.options import SessionOptions
from ortrain.runtime.state import TrainingState
from ortrain.training.schedules import LinearSchedule
from ortrain.training.session import TrainingSession
from tests.native.published import CSHARP, FOLDER

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "native"
"""The programs, and the Makefile by which they are built and run."""
BATCH, PIXELS = 32, 64


@dataclass(frozen=True)
class Language:
    """title: as tables print it. tools: the programs it needs. published: whether it is compiled with ONNX Runtime's published sources."""

    title: str
    tools: tuple[str, ...]
    published: bool = False

    @property
    def missing(self) -> str | None:
        """Why the program cannot be built here, None if it can."""
        absent = [tool for tool in ("make", *self.tools) if shutil.which(tool) is None]
        if "gnustep-config" in self.tools and not absent and not _compiles_objective_c():
            absent = ["gobjc"]
        if absent:
            return f"expected {' and '.join(absent)}, found none on PATH"
        if self.published and not CSHARP.is_dir():
            return "expected the published sources, found none: python -m tests.native.published fetches them"
        return None


LANGUAGES = {
    "c": Language("C", ("cc",)),
    "cpp": Language("C++", ("c++",), published=True),
    "csharp": Language("C#", ("mcs", "mono")),
    "java": Language("Java", ("javac", "java", "cc"), published=True),
    "rust": Language("Rust", ("rustc", "cc")),
    "go": Language("Go", ("go", "cc")),
    "objc": Language("Objective-C", ("gnustep-config", "cc")),
}
SCENARIOS = ("train", "evaluate", "save", "export", "infer", "read others' checkpoints", "error as status")


def _compiles_objective_c() -> bool:
    command = [os.environ.get("CC", "cc"), "-x", "objective-c", "-fsyntax-only", "-"]
    return subprocess.run(command, input="@class NSObject;\n", text=True, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Epoch:
    """What an epoch leaves behind: the files, flat parameters, loss of the whole data, learning rate, accuracy of the exported model, number of epochs."""

    folder: Path
    loss: float
    rate: float
    accuracy: float
    epochs: float

    @property
    def checkpoint(self) -> Path:
        """The path of the saved checkpoint."""
        return self.folder / "trained.checkpoint"

    @property
    def model(self) -> Path:
        """The path of the exported model."""
        return self.folder / "trained.onnx"

    @cached_property
    def parameters(self) -> bytes:
        """The flat parameters in the checkpoint."""
        return TrainingState.load(self.checkpoint).to_buffer(False).tobytes()


def write_artifacts(folder: Path) -> None:
    """Write the artifacts and the data of the programs by the script that users run."""
    settings = os.environ | {"PYTHONPATH": str(EXAMPLES.parents[1])}
    subprocess.run([sys.executable, str(EXAMPLES / "make_artifacts.py"), str(folder)], env=settings, check=True, timeout=300)


def data(artifacts: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels."""
    return np.fromfile(artifacts / "images.bin", np.float32).reshape(-1, PIXELS), np.fromfile(artifacts / "labels.bin", np.int64)


def train_in_python(artifacts: Path, checkpoint: Path, folder: Path) -> Epoch:
    """Do what the programs do by the Python API."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = data(artifacts)
    state = TrainingState.load(checkpoint)
    with TrainingSession(artifacts / "training_model.onnx", state, artifacts / "eval_model.onnx", artifacts / "optimizer_model.onnx",
                         options=SessionOptions(intra_op_num_threads=1)) as session:
        session.register_schedule(LinearSchedule(10, 100, float(np.float32(0.01))))
        for start in range(0, len(labels) - BATCH + 1, BATCH):
            session.train_step(images[start : start + BATCH], labels[start : start + BATCH])
            session.optimizer_step()
            session.schedule_step()
            session.lazy_reset_grad()
        epochs = float(state.properties.get("epochs", 0)) + 1
        state.set_property("epochs", epochs)
        state.save(folder / "trained.checkpoint", True)
        session.export(folder / "trained.onnx", ["logits"])
        loss, rate = float(session.eval_step(images, labels)[0]), session.learning_rate
    (logits,) = InferenceSession(folder / "trained.onnx").run(["logits"], {"pixels": images})
    return Epoch(folder, loss, rate, float(np.mean(logits.argmax(1) == labels)), epochs)


class Programs:
    """The programs built into a folder against an installation of the library."""

    def __init__(self, library: Path, folder: Path, artifacts: Path) -> None:
        self.library, self.folder, self.artifacts = library, folder, artifacts

    def make(self, target: str, arguments: str = "", **variables: object) -> str:
        """Run a target of examples/native/Makefile with other values of its variables; return what it printed. Raises AssertionError where it fails."""
        settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ORTRAIN", "MAKE", "MFLAGS"))}
        command = ["make", "-s", "-C", str(EXAMPLES), target, f"LIB={self.library}", f"OUT={self.folder}", f"PUBLISHED={FOLDER}", f"PYTHON={sys.executable}",
                   f"ARGS={arguments}", *(f"{name}={value}" for name, value in variables.items())]
        done = subprocess.run(command, env=settings | {"OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{target}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def train(self, language: str, checkpoint: Path, folder: Path) -> tuple[Epoch, str]:
        """Build and run the program of a language from a checkpoint; return its epoch and the error that it received."""
        folder.mkdir(parents=True, exist_ok=True)
        printed = self.make(f"run-{language}", f"{self.artifacts} {checkpoint} {folder}")
        lines = dict(line.split(" ", 1) for line in printed.splitlines() if " " in line)
        return Epoch(folder, *(float(lines[name]) for name in ("loss", "rate", "accuracy", "epochs"))), lines.get("refused", "")

    def outcomes(self, language: str, first: Epoch, second: Epoch, folder: Path) -> Mapping[str, bool]:
        """Run the program from the artifacts and from a checkpoint of Python's; compare with Python's first and second epoch, bit for bit."""
        began, refused = self.train(language, self.artifacts / "checkpoint", folder / "first")
        went_on, _ = self.train(language, first.checkpoint, folder / "second")
        results = (began.parameters == first.parameters, _same(began.loss, first.loss) and _same(began.rate, first.rate),
                   began.checkpoint.read_bytes() == first.checkpoint.read_bytes(), began.model.read_bytes() == first.model.read_bytes(),
                   _same(began.accuracy, first.accuracy),
                   went_on.checkpoint.read_bytes() == second.checkpoint.read_bytes() and went_on.epochs == 2, "no such checkpoint" in refused)
        return dict(zip(SCENARIOS, results, strict=True))


def _same(printed: float, expected: float) -> bool:
    return np.float32(printed) == np.float32(expected)
