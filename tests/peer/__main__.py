"""`python -m tests.peer [case …]`: exchanges artifacts and checkpoints between ortrain and onnxruntime-training 1.19.2.

For every recorded case: the recordings of 1.15 to 1.19 in ortrain; artifacts that ortrain made, trained by both step by step; the checkpoint that either
saved half way, optimizer state included, trained on by the other. Prints a table of the largest deviations; exits with 1 when one is too large."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.peer.environment import make
from tests.peer.models import MODELS, ModelCase
from tests.recordings import CASES, NEWEST, VERSIONED_CASES, Recording

ROOT = Path(__file__).resolve().parents[2]
LOSS_TOLERANCE = 1e-5
OURS, THEIRS = "ortrain", "onnxruntime.training"


class Trial:
    """One case in its own folder, and its jobs."""

    def __init__(self, case: str, folder: Path) -> None:
        self.recording = ModelCase(case, folder / f"{case}.model") if case in MODELS else Recording(NEWEST, case)
        self.folder = folder / case
        self.folder.mkdir()
        self.steps = self.recording.meta["train_steps"]
        self.middle = self.steps // 2 // self.recording.updates_after * self.recording.updates_after
        self.recording.make_artifacts(self.folder, ort_format=True)

    def job(self, name: str, checkpoint: str, first: int, last: int, suffix: str = "onnx") -> dict:
        return {"suffix": suffix, "artifacts": str(self.folder), "checkpoint": str(self.folder / checkpoint), "inputs": str(self.recording.file("inputs.npz")),
                "learning_rate": self.recording.meta["learning_rate"], "updates_after": self.recording.updates_after, "first": first, "last": last,
                "out": str(self.folder / f"{name}.npz"), "save": str(self.folder / f"{name}.checkpoint")}

    def first_jobs(self, who: str) -> list[dict]:
        """Return the jobs of the whole run, of the same with models in the ORT format, and of its first half."""
        return [self.job(f"{who}.whole", "checkpoint", 0, self.steps), self.job(f"{who}.ort", "checkpoint", 0, self.steps, "ort"),
                self.job(f"{who}.half", "checkpoint", 0, self.middle)]

    def second_jobs(self, who: str, other: str) -> list[dict]:
        """Return the jobs of the second half, from the checkpoint of the other package."""
        return [self.job(f"{who}.resumed", f"{other}.half.checkpoint", self.middle, self.steps)]

    def compare(self, name: str, wanted: str, first: int = 0) -> float:
        """Return the largest relative difference of a loss. Raises AssertionError if parameters exceed their tolerance."""
        a, b = (np.load(self.folder / f"{run}.npz") for run in (name, wanted))
        deviation = relative(np.append(a["losses"], a["evaluation"]), np.append(b["losses"][first:], b["evaluation"]))
        assert deviation <= LOSS_TOLERANCE, f"{self.recording.case}: losses of {name} and {wanted} differ by {deviation:.1e}"
        self.recording.check_parameters([(key.removeprefix("param."), a[key]) for key in a.files if key.startswith("param.")],
                                        {key.removeprefix("param."): b[key] for key in b.files})
        return deviation


def relative(actual: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.max(np.abs(np.ravel(actual) / np.ravel(wanted) - 1)))


def run_jobs(python: str, package: str, jobs: list[dict]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(jobs, file)
        file.flush()
        # from the root of the checkout for ortrain; onnxruntime-training must not import from the checkout
        where = ROOT if package == OURS else Path(file.name).parent
        subprocess.run([python, str(Path(__file__).with_name("train.py")), package, file.name], cwd=where, check=True)


def recorded(case: str, folder: Path) -> dict[str, float]:
    """Return version -> the largest relative difference between a loss of its recording and of ortrain."""
    found = {}
    for version in sorted({version for version, name in VERSIONED_CASES if name == case}):
        recording = Recording(version, case)
        place = folder / f"{case}.{version}"
        place.mkdir()
        for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"):
            (place / name).symlink_to(recording.file(name))
        meta = recording.meta
        job = {"suffix": "onnx", "artifacts": str(place), "checkpoint": str(place / "checkpoint"), "inputs": str(recording.file("inputs.npz")), "first": 0,
               "last": meta["train_steps"], "learning_rate": meta["learning_rate"], "updates_after": recording.updates_after,
               "out": str(place / "ours.npz"), "save": str(place / "ours.checkpoint")}
        run_jobs(sys.executable, OURS, [job])
        found[version] = relative(np.load(job["out"])["losses"], recording.expected["loss"])
        assert found[version] <= LOSS_TOLERANCE, f"{case} of {version}: losses differ by {found[version]:.1e}"
    return found


def main(cases: list[str]) -> None:
    theirs = str(make(ROOT / ".venv-peer"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trials = [Trial(case, folder) for case in cases or [*CASES, *MODELS]]
        for python, package, who in ((sys.executable, OURS, "ours"), (theirs, THEIRS, "theirs")):
            run_jobs(python, package, [job for trial in trials for job in trial.first_jobs(who)])
        for python, package, who, other in ((sys.executable, OURS, "ours", "theirs"), (theirs, THEIRS, "theirs", "ours")):
            run_jobs(python, package, [job for trial in trials for job in trial.second_jobs(who, other)])
        columns = ["case", "their artifacts here", "our artifacts there", "our .ort there", "our checkpoint there", "their checkpoint here"]
        print(f"| {' | '.join(columns)} |\n|---|---|---:|---:|---:|---:|")
        for trial in trials:
            versions = ", ".join(f"{version} {deviation:.1e}" for version, deviation in recorded(trial.recording.case, folder).items())
            figures = [trial.compare("theirs.whole", "ours.whole"), trial.compare("theirs.ort", "ours.whole"),
                       trial.compare("theirs.resumed", "ours.whole", trial.middle),
                       trial.compare("ours.resumed", "theirs.whole", trial.middle)]
            print(f"| {trial.recording.case} | {versions} | {' | '.join(f'{figure:.1e}' for figure in figures)} |", flush=True)
    print("Largest relative difference of a loss or of the evaluation; parameters agree within 1e-4 of their tensor's largest entry + 1e-6.")


if __name__ == "__main__":
    main(sys.argv[1:])
