"""Data files by path: .npy, .npz, .csv, .parquet, and folders of images."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from ortrain.data.columns import Columns, all_columns
from ortrain.data.sources import MappedFile
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError

KINDS = ".npz, .npy, .csv, .parquet or a folder with one subfolder of images per class"


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of a data file: its suffix in lower case, or "folder".

    Raises ArtifactNotFoundError when there is none, InvalidArgumentError for a kind that cannot be read."""
    where = Path(path)
    if where.is_dir() and os.fspath(path):
        return "folder"
    if not where.exists() or not os.fspath(path):
        raise ArtifactNotFoundError(f"expected a data file ({KINDS}), found nothing at {os.fspath(path)!r}")
    suffix = where.suffix.lower()
    if suffix not in (".npz", ".npy", ".csv", ".parquet"):
        raise InvalidArgumentError(f"expected a data file ({KINDS}), got {str(where)!r}")
    return suffix


def read_npz(path: str | os.PathLike[str]) -> Columns:
    """Read the arrays of an .npz file. Raises ArtifactNotFoundError when there is none, InvalidArgumentError when it cannot be read."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise InvalidArgumentError(f"expected an .npz file with arrays by name in {os.fspath(path)!r}, got a single array")
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except FileNotFoundError as error:
        raise ArtifactNotFoundError(f"expected a data file, found none at {os.fspath(path)!r}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError, OSError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"expected an .npz file of plain arrays in {os.fspath(path)!r}, got one that cannot be read{_reason(error)}") from error
    if not arrays:
        raise InvalidArgumentError(f"expected at least one array in {os.fspath(path)!r}, got none")
    return arrays


def map_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """Map the array of an .npy file into memory, read-only. Raises InvalidArgumentError when it cannot be read."""
    try:
        file = open(path, "rb")                                 # noqa: SIM115 - it stays open as long as the map
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("Python objects")
        mapped = MappedFile(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")      # type: ignore[no-untyped-call]
    except (ValueError, EOFError, OSError) as error:
        raise InvalidArgumentError(f"expected an .npy file of a plain array in {os.fspath(path)!r}, got one that cannot be read{_reason(error)}") from error
    mapped.file = file
    return mapped


def _reason(error: Exception) -> str:
    # NumPy recommends allow_pickle for whatever it does not recognize, which would run code from the file
    return "" if "pickle" in str(error).lower() else f": {error}"


def read_arrays(path: str | os.PathLike[str]) -> Columns:
    """Read named arrays: the columns of a .csv or .parquet file, text as object arrays, and of any other file the arrays that an .npz file has.

    Raises ArtifactNotFoundError when there is no file, InvalidArgumentError for a folder and for a file that cannot be read."""
    if os.path.isdir(path):
        raise InvalidArgumentError(f"expected a data file with named arrays or columns (.npz, .csv or .parquet), got a folder: {os.fspath(path)!r}")
    if os.path.exists(path) and os.fspath(path).lower().endswith((".csv", ".parquet")):
        return all_columns(path)
    return read_npz(path)
