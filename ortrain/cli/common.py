"""Helpers of several commands: tables, folders, and the values of options."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortrain.distributed import MPI, Launcher, Strategy
from ortrain.errors import ArgumentTypeError, ArtifactNotFoundError, InvalidArgumentError
from ortrain.ir import Graph
from ortrain.runtime.differential_privacy import DifferentialPrivacy
from ortrain.runtime.options import SessionOptions


def running_statistics(graph: Graph) -> list[str]:
    """Return the initializers that hold running statistics of batch normalization, which training updates without gradients."""
    used = [name for node in graph.nodes if node.op_type == "BatchNormalization" for name in node.inputs[3:5]]
    return [name for name in dict.fromkeys(used) if name in graph.initializers]


def existing_folder(path: str) -> Path:
    """Return a folder with artifacts. Raises ArtifactNotFoundError."""
    folder = Path(path)
    if not folder.is_dir():
        raise ArtifactNotFoundError(f"expected a folder with artifacts, found none at {path!r}")
    return folder


def session_options(threads: int | None, strategy: Strategy | Launcher | None = None, precision: str = "float32",
                    parameter_dtype: str = "float32", privacy: DifferentialPrivacy | None = None) -> SessionOptions:
    """Return the options of a session with a precision, a dtype of parameters, and a number of threads, None for its default: one a core, and of workers that
    share a machine their part of that. privacy: the settings of private training."""
    if threads is None and isinstance(strategy, MPI) and strategy.size > 1:
        threads = strategy.threads()
    return SessionOptions(intra_op_num_threads=threads or 0, precision=precision, parameter_dtype=parameter_dtype,
                          differential_privacy=privacy)


def made_by_name(what: str, name: str, kinds: Mapping[str, Callable[..., Any]], options: Mapping[str, Any], internal: Collection[str] = ()) -> Any:
    """Return what a name stands for, made with options. internal: arguments that are no options.

    Raises InvalidArgumentError for options that it does not have, and its own errors for their values."""
    try:
        return kinds[name](**options)
    except ArgumentTypeError:
        raise
    except TypeError as error:
        known = [argument for argument in inspect.signature(kinds[name]).parameters if argument not in internal]
        raise InvalidArgumentError(f"expected options of the {what} {name} among {', '.join(known) or 'none'}, got {sorted(options)}") from error


# ---- values of options


def count(least: int) -> Callable[[str], int]:
    """Return a converter of options that are whole numbers of at least `least`."""
    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text!r}")
        return number

    return convert


def positive(text: str) -> float:
    """Convert an option that is a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def pair(text: str) -> tuple[str, Any]:
    """Convert NAME=VALUE, where the value is a number, true, false, a list with commas, or text."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name.replace("-", "_"), tuple(map(_value, value.split(","))) if "," in value else _value(value)


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def size(text: str) -> tuple[int, int]:
    """Convert HEIGHTxWIDTH, or one number for both."""
    height, separator, width = text.lower().partition("x")
    return count(1)(height), count(1)(width if separator else height)


def shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Convert NAME=DIMENSION,... into (name, dimensions); dimensions are numbers, or words for open ones."""
    name, separator, dimensions = text.partition("=")
    if not separator or not name or not all(dimensions.split(",")):
        raise argparse.ArgumentTypeError(f"expected NAME=DIMENSION,DIMENSION,... such as image=batch,3,224,224, got {text!r}")
    return name, tuple(int(part) if part.isdecimal() else part for part in dimensions.split(","))


# ---- printing


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


def figures_line(figures: Mapping[str, float]) -> str:
    """Return figures as a line: loss 0.1234, accuracy 97.50%."""
    return ", ".join(f"{name} {value:.2%}" if name == "accuracy" else f"{name} {value:.6f}" for name, value in figures.items())
