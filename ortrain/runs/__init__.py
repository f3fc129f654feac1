"""Folders of runs: what a run was trained on and with, stored so that it can be resumed, evaluated, reported on and used for predictions.

    run = Run.open("run")                     # a folder that `python -m ortrain train` has written
    with run.trainer() as trainer:
        trainer.predict(run.unlabelled("photos", trainer))"""

from ortrain.runs.folder import Run, RunSettings
from ortrain.runs.loaders import Split, TrainingData
from ortrain.runs.preprocessing import DataOptions, ModelInputs, Preprocessing

__all__ = ["DataOptions", "ModelInputs", "Preprocessing", "Run", "RunSettings", "Split", "TrainingData"]
