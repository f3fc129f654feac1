"""Helpers of several commands: losses and optimizers by name, data files, tables."""

from __future__ import annotations

import argparse
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ortrain.artifacts import LossType, OptimType
from ortrain.dtypes import numpy_dtype
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError
from ortrain.ir import Graph, Model

LOSSES = {"mse": LossType.MSELoss, "cross-entropy": LossType.CrossEntropyLoss, "bce-with-logits": LossType.BCEWithLogitsLoss,
          "l1": LossType.L1Loss}
OPTIMIZERS = {"adamw": OptimType.AdamW, "sgd": OptimType.SGD}
TARGET_NAMES = ("labels", "target", "targets", "label", "y")
"""Names of arrays in a data file that are taken as the target."""



def add_weight_arguments(command: argparse.ArgumentParser) -> None:
    """Add --requires-grad and --frozen."""
    command.add_argument("--requires-grad", nargs="+", metavar="NAME", help="weights to train (default: all that reach the loss)")
    command.add_argument("--frozen", nargs="+", default=[], metavar="NAME", help="weights that keep their values")


def running_statistics(graph: Graph) -> list[str]:
    """Return the initializers that hold running statistics of batch normalization, which training updates without gradients."""
    used = [name for node in graph.nodes if node.op_type == "BatchNormalization" for name in node.inputs[3:5]]
    return [name for name in dict.fromkeys(used) if name in graph.initializers]


def read_data(path: str) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file. Raises ArtifactNotFoundError or InvalidArgumentError."""
    if not Path(path).exists():
        raise ArtifactNotFoundError(f"expected a data file, found none at {path!r}")
    if Path(path).is_dir():
        raise InvalidArgumentError(f"expected an .npz file of arrays, got the folder {path!r}")
    try:
        if not zipfile.is_zipfile(path):
            raise InvalidArgumentError(f"expected an .npz file of arrays by name, as numpy.savez writes them, got another kind of file: {path!r}")
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"expected an .npz file of plain arrays in {path!r}, got one that cannot be read: {error}") from error


def choose_target(data: Mapping[str, np.ndarray], inputs: Sequence[str], named: str | None) -> str:
    """Return the name of the target among the arrays. Raises InvalidArgumentError when it is ambiguous."""
    candidates = [name for name in data if name not in inputs]
    if named is None:
        known = [name for name in TARGET_NAMES if name in candidates]
        if known or len(candidates) == 1:
            return (known or candidates)[0]
        raise InvalidArgumentError(f"expected a target named 'labels' or 'target' (or --target NAME), got arrays {sorted(data)}")
    if named not in data:
        raise InvalidArgumentError(f"expected the target {named!r} among the arrays, got {sorted(data)}")
    return named


def fitted(data: Mapping[str, np.ndarray], name: str, model: Model, value: str) -> np.ndarray:
    """Return array `name` converted to the dtype of the model's input `value`. Raises InvalidArgumentError when the kinds of numbers differ."""
    if name not in data:
        raise InvalidArgumentError(f"expected an array {name!r} (an input of the model) in the data, got {sorted(data)}")
    array, kind = data[name], model.graph.types.get(value)
    if kind is None:
        return array
    wanted = numpy_dtype(kind.dtype)
    if array.dtype == wanted:
        return array
    if wanted.kind == "f" and array.dtype.kind in "fiub" or wanted.kind in "iu" and array.dtype.kind in "iub":
        converted = array.astype(wanted)
        if wanted.kind == "f" or np.array_equal(converted, array):
            return converted
    raise InvalidArgumentError(f"expected {name!r} with dtype {wanted}, got {array.dtype}")


def session_arrays(data: Mapping[str, np.ndarray], inputs: Sequence[str], target: str | None,
                   model: Model) -> tuple[list[np.ndarray], np.ndarray]:
    """Return (the model's inputs in order, the target) for a training or eval model whose last input is the target."""
    name = choose_target(data, inputs[:-1], target)
    return [fitted(data, value, model, value) for value in inputs[:-1]], fitted(data, name, model, inputs[-1])


def check_lengths(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidArgumentError unless all arrays have samples along axis 0, and equally many."""
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        listed = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
        raise InvalidArgumentError(f"expected the same number of samples in all arrays, and at least one, got {listed}")


def fixed_batch(model: Model, inputs: Sequence[str]) -> int | None:
    """Return the fixed batch size of a model, None when it accepts any."""
    for name in inputs:
        kind = model.graph.types.get(name)
        if kind is not None and kind.shape and isinstance(kind.shape[0], int):
            return kind.shape[0]
    return None


def existing_folder(path: str) -> Path:
    """Return a folder with artifacts. Raises ArtifactNotFoundError."""
    folder = Path(path)
    if not folder.is_dir():
        raise ArtifactNotFoundError(f"expected a folder with artifacts, found none at {path!r}")
    return folder


def shown(text: object) -> str:
    """Escape whatever is not printable in a name."""
    raw = str(text)
    return raw if raw.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in raw)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format rows as aligned columns under a title, numbers to the right."""
    if not rows:
        return f"{title}: none\n"
    cells = [list(header), *([shown(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [all(isinstance(row[i], int) for row in rows) for i in range(len(header))]
    lines = ["  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join([title, *(f"  {line}" for line in lines)]) + "\n"
