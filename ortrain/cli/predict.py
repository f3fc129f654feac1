"""The command predict: writes what a run, or a model, predicts for a data set."""

from __future__ import annotations

import argparse
import csv
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.cli.common import count, session_options
from ortrain.cli.subjects import add_subject_options, data_options, run_of
from ortrain.data import DataLoader
from ortrain.data.files import kind_of
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError
from ortrain.formats.atomic_files import replace_file
from ortrain.loading.loader import load_model
from ortrain.runs import ModelInputs, Preprocessing, Run
from ortrain.runs.images import ImagePreprocessing
from ortrain.runs.loaders import fixed_batch, unlabelled_loader
from ortrain.runs.predictions import ClassPredictions, class_predictions
from ortrain.runs.tables import ArrayPreprocessing
from ortrain.runtime.inference_session import InferenceSession

MAX_COLUMNS = 2000
"""Columns of a CSV file with predictions, beyond which only an .npz file is written."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("path", metavar="DIR|model.onnx", help="A run, or a forward model.")
    command.add_argument("data", metavar="DATA", help="An image, a folder of images, a table or arrays; targets in them are not read.")
    command.add_argument("--out", default="predictions.csv", metavar="FILE", help="A .csv file with a row per sample, or an .npz file with the model's "
                         "outputs as arrays. Default: predictions.csv.")
    command.add_argument("--batch-size", type=count(1), default=256, metavar="N", help="Samples in a batch. Default: 256.")
    add_subject_options(command)


@dataclass(frozen=True, slots=True)
class Predictions:
    """The model's outputs by name, the predicted classes where there are such, and (heading, names) of the samples."""

    outputs: dict[str, np.ndarray]
    classes: ClassPredictions | None
    samples: tuple[str, list[str]] | None


def run(options: argparse.Namespace) -> None:
    """Predict, and write the file."""
    suffix = Path(options.out).suffix.lower()
    if suffix not in (".csv", ".npz"):
        options.parser.error(f"expected a .csv or .npz file as --out, got {options.out!r}")
    if not Path(options.out).resolve().parent.is_dir():
        raise ArtifactNotFoundError(f"expected an existing folder for --out, got {options.out!r}")
    found = run_of(options)
    made = _of_run(found, options) if found is not None else _of_model(options)
    content = _as_csv(made) if suffix == ".csv" else _as_npz(made)
    replace_file(options.out, content)
    print(f"written to {options.out}: {len(next(iter(made.outputs.values())))} predictions")


def _of_run(found: Run, options: argparse.Namespace) -> Predictions:
    with found.trainer(metrics=None, options=session_options(options.threads)) as trainer:
        results = trainer.predict(found.unlabelled(options.data, trainer, options.batch_size))
        names = trainer.roles.outputs
        outputs = dict(zip(names, results if isinstance(results, list) else [results], strict=True))
        classes = class_predictions(outputs[trainer.roles.predictions or names[0]], trainer, found.settings)
    return Predictions(outputs, classes, found.settings.preprocessing.samples(options.data))


def _of_model(options: argparse.Namespace) -> Predictions:
    model = load_model(options.path)
    inputs = ModelInputs(list(model.graph.inputs), [], model.graph.types)
    preprocessing: Preprocessing
    if Path(options.data).is_dir() or Path(options.data).suffix.lower() not in (".npz", ".npy", ".csv", ".parquet"):
        preprocessing = ImagePreprocessing.fit(options.data, inputs, data_options(options), labelled=False)
    else:
        kind_of(options.data)
        preprocessing = ArrayPreprocessing(options.target)
    batch_size = fixed_batch(model, inputs.forward) or options.batch_size
    loader = unlabelled_loader(preprocessing, options.data, inputs.forward, inputs.dtypes(), batch_size)
    return Predictions(_outputs(InferenceSession(options.path, session_options(options.threads)), loader), None, preprocessing.samples(options.data))


def _outputs(session: InferenceSession, loader: DataLoader) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    parts = [session.run(names, dict(zip(loader.names, batch, strict=True))) for batch in loader.epoch(0)]
    return {name: np.concatenate(arrays) for name, arrays in zip(names, zip(*parts, strict=True), strict=True)}


# ---- files


def _as_npz(made: Predictions) -> bytes:
    arrays = dict(made.outputs)
    if made.classes is not None:
        arrays |= {"prediction": np.array([str(name) for name in made.classes.names]), "prediction_number": made.classes.numbers}
    if made.samples is not None:
        arrays[made.samples[0]] = np.array(made.samples[1])
    content = io.BytesIO()
    # numpy.savez takes no array named "file"
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return content.getvalue()


def _as_csv(made: Predictions) -> bytes:
    rows = len(next(iter(made.outputs.values())))
    columns: dict[str, Any] = {"row": range(rows)} if made.samples is None else {made.samples[0]: made.samples[1]}
    if made.classes is not None:
        columns["prediction"] = made.classes.names
        if made.classes.probabilities is not None:
            columns["probability"] = [f"{value:.6g}" for value in made.classes.probabilities]
    for name, array in made.outputs.items():
        flat = array.reshape(rows, -1) if array.ndim and len(array) == rows else None
        if flat is None or flat.shape[1] + len(columns) > MAX_COLUMNS:
            raise InvalidArgumentError(f"expected outputs with a row per sample and at most {MAX_COLUMNS} numbers in it for a CSV file, got shape "
                                       f"{list(array.shape)} of {name!r}: write an .npz file")
        headings = [name] if flat.shape[1] == 1 else _headings(name, flat.shape[1], made.classes)
        columns |= {heading: flat[:, number].tolist() for number, heading in enumerate(headings)}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _headings(name: str, width: int, classes: ClassPredictions | None) -> list[str]:
    named = classes.class_names if classes is not None and classes.output_width == width else None
    return [f"{name}[{number if named is None or number >= len(named) else named[number]}]" for number in range(width)]
