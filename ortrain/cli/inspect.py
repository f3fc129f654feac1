"""The command inspect: shows what a model, a folder with artifacts or a checkpoint holds, and whether ortrain can run and train it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ortrain.cli.common import running_statistics, table
from ortrain.dtypes import FLOATS
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError
from ortrain.formats.artifact_names import MODELS
from ortrain.formats.checkpoint import IDENTIFIER, read_checkpoint
from ortrain.formats.checkpoint_contents import Checkpoint
from ortrain.formats.onnx_files import read_model
from ortrain.ir import Model, Node, TensorType
from ortrain.ops import REGISTRY, OpRecord, record_of
from ortrain.ops.registry.record import ORTRAIN

LONGEST = 60
"""Characters of a property that are shown at most."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("path", metavar="PATH", help="A model, a folder with artifacts, or a checkpoint.")


def run(options: argparse.Namespace) -> None:
    """Print the tables."""
    path = Path(options.path)
    if path.is_dir():
        inspect_folder(path)
    elif is_checkpoint(path):
        inspect_checkpoint(path)
    else:
        inspect_model(path)


def is_checkpoint(path: Path) -> bool:
    """Whether a file has the identifier of a checkpoint. Raises ArtifactNotFoundError."""
    try:
        with path.open("rb") as file:
            return file.read(8)[4:] == IDENTIFIER
    except OSError as error:
        raise ArtifactNotFoundError(f"expected a model, a folder or a checkpoint, found none that can be read at {str(path)!r}") from error


def inspect_folder(folder: Path) -> None:
    """Inspect every model and checkpoint of a folder, whatever their prefix."""
    found = 0
    for path in sorted(folder.iterdir()):
        if path.name.endswith(MODELS) or path.is_file() and path.suffix != ".onnx" and is_checkpoint(path):
            print(f"==== {path}\n")
            inspect_model(path) if path.suffix == ".onnx" else inspect_checkpoint(path)
            found += 1
    if not found:
        raise InvalidArgumentError(f"expected artifacts in {str(folder)!r}, found none")


def inspect_model(path: Path) -> None:
    """Print the inputs, outputs, operators and parameters of a model."""
    model = read_model(str(path))
    graph = model.graph
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(model.opsets.items()))
    print(f"model {graph.name}: IR version {model.ir_version}, opsets {opsets}, {len(graph.nodes)} nodes, "
          f"{sum(array.size for array in graph.initializers.values()):,} initializer elements\n")
    values = [("input", name) for name in graph.inputs] + [("output", name) for name in graph.outputs]
    rows = [(kind, name, *_typed(graph.types.get(name))) for kind, name in values]
    print(table("inputs and outputs", ("", "name", "dtype", "shape"), rows))
    print(table("operators", ("operator", "domain", "count", "kernel", "gradient", "bfloat16"), list(_operators(model))))
    statistics = set(running_statistics(graph))
    kinds = {name: "running statistic" if name in statistics else "weight" if str(array.dtype) in FLOATS else "constant"
             for name, array in graph.initializers.items()}
    print(table("initializers", ("name", "dtype", "shape", "kind"), [
        (name, array.dtype, _dims(array.shape), kinds[name]) for name, array in graph.initializers.items()]))


def _operators(model: Model) -> Iterator[tuple[str, str, int, str, str, str]]:
    examples: dict[tuple[str, str], Node] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for node in model.graph.all_nodes():
        counts[node.domain, node.op_type] += 1
        examples.setdefault((node.domain, node.op_type), node)
    for (domain, op_type), count in sorted(counts.items()):
        record = record_of(examples[domain, op_type])
        if record is None:
            kernel = gradient = narrow = "no"
        else:
            kernel = "yes" if record.lower or record.evaluate or record.decompose or record.planned_as else "no"
            gradient = "yes" if record.gradient or record.decompose and record.differentiable else "no" if record.differentiable else "none needed"
            narrow = _takes_bfloat16(record)
        yield op_type, domain or "ai.onnx", count, kernel, gradient, narrow


def _takes_bfloat16(record: OpRecord) -> str:
    """Return whether an operator's matrix multiplications take bfloat16 operands where a session's precision says so."""
    if record.planned_as:
        record = REGISTRY[ORTRAIN, record.planned_as]
    return "yes" if record.takes_bfloat16 else "as its parts" if record.lower is None and record.decompose is not None else "no"


def _typed(kind: TensorType | None) -> tuple[str, str]:
    if kind is None:
        return "?", "?"
    return ("sequence of " if kind.sequence else "") + kind.dtype, "?" if kind.shape is None else _dims(kind.shape)


def _dims(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def inspect_checkpoint(path: Path) -> None:
    """Print the version, optimizer, properties and parameters of a checkpoint."""
    checkpoint = read_checkpoint(str(path))
    sizes = [sum(array.size for array in group.values()) for group in (checkpoint.trainable, checkpoint.frozen)]
    print(f"checkpoint: version {checkpoint.version}{', nominal (no values)' if checkpoint.nominal else ''}, "
          f"{sizes[0]:,} trainable and {sizes[1]:,} frozen elements\n")
    groups = []
    for name, group in checkpoint.optimizer_groups.items():
        moments = sorted({moment for moments in group.momentums.values() for moment in moments})
        groups.append((name, group.step, f"{group.initial_learning_rate:g}", ", ".join(moments)))
    print(table("optimizer groups", ("name", "step", "initial learning rate", "moments"), groups))
    print(table("properties", ("name", "type", "value"), [
        (name, type(value).__name__, f"{value:g}" if isinstance(value, float) else _short(str(value)))
        for name, value in checkpoint.properties.items()]))
    print(table("parameters", ("name", "dtype", "shape", ""), list(_parameters(checkpoint))))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def _parameters(checkpoint: Checkpoint) -> Iterator[tuple[str, np.dtype, str, str]]:
    for kind, group in (("trainable", checkpoint.trainable), ("frozen", checkpoint.frozen)):
        for name, array in group.items():
            yield name, array.dtype, "?" if checkpoint.nominal else _dims(array.shape), kind
