"""The checkpoints of 1.15, read only: folders of protobuf sequences (`*.pbseq`).

A sequence is the number of messages, then each message (ONNX's TensorProto) preceded by its length, both as varints. `paramtrain_tensors.pbseq` and
`paramfrozen_tensors.pbseq` hold the parameters, `custom_properties.pbseq` the user's properties, `optim_<group>_<moment>_tensors.pbseq` and
`optim_<group>_properties.pbseq` the optimizer's state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ortrain.errors import InvalidCheckpointError, InvalidModelError
from ortrain.formats.checkpoint_contents import Checkpoint, OptimizerGroup, Property
from ortrain.formats.onnx_messages import TensorProto
from ortrain.formats.onnx_tensors import to_array, uses_external_data
from ortrain.formats.protobuf_reader import Reader, parse

TENSORS = "tensors.pbseq"
PROPERTIES = "properties.pbseq"
MOMENT_FILE = re.compile(rf"optim_(?P<group>.+)_(?P<moment>momentum\d+)_{re.escape(TENSORS)}")
STEP, INITIAL_LEARNING_RATE = "builtin.step", "builtin.initial_learning_rate"


def read_folder(folder: Path) -> Checkpoint:
    """Read the checkpoint in a folder that 1.15 wrote. Raises InvalidCheckpointError when it is not one."""
    if not (folder / f"paramtrain_{TENSORS}").exists() and not (folder / f"paramfrozen_{TENSORS}").exists():
        raise InvalidCheckpointError(f"Loading checkpoint from {str(folder)!r} failed: expected a checkpoint file, or a folder of 1.15 with "
                                     f"paramtrain_{TENSORS}, got {sorted(path.name for path in folder.iterdir())[:5]}")
    frozen = _tensors(folder / f"paramfrozen_{TENSORS}")
    return Checkpoint(_tensors(folder / f"paramtrain_{TENSORS}"), frozen, _properties(folder / f"custom_{PROPERTIES}"), _groups(folder))


def _groups(folder: Path) -> dict[str, OptimizerGroup]:
    moments: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for path in sorted(folder.iterdir()):
        match = MOMENT_FILE.fullmatch(path.name)
        if match:
            tables = moments.setdefault(match["group"], {})
            for name, array in _tensors(path).items():
                tables.setdefault(name, {})[match["moment"]] = array
    groups = {}
    for group, tables in moments.items():
        found = _properties(folder / f"optim_{group}_{PROPERTIES}")
        groups[group] = OptimizerGroup(int(found.get(STEP, 0)), float(found.get(INITIAL_LEARNING_RATE, 0.0)), tables)
    return groups


def _tensors(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for tensor in _messages(path):
        if tensor.name in found:
            raise InvalidCheckpointError(f"Duplicated tensor proto named {tensor.name} in {path.name!r}: expected every tensor once")
        found[tensor.name] = _array(tensor, path)
    return found


def _properties(path: Path) -> dict[str, Property]:
    found: dict[str, Property] = {}
    for tensor in _messages(path):
        value = _array(tensor, path)
        if value.size != 1:
            raise InvalidCheckpointError(f"expected one value for the property {tensor.name!r} in {path.name!r}, got {value.size}")
        item = value.reshape(-1)[0]
        found[tensor.name] = item.decode("utf-8") if isinstance(item, bytes) else str(item) if isinstance(item, str) else item.item()
    return found


def _array(tensor: TensorProto, path: Path) -> np.ndarray:
    if uses_external_data(tensor):
        raise InvalidCheckpointError(f"expected tensor {tensor.name!r} in {path.name!r} with its data inside, got a reference to another file")
    try:
        return np.array(to_array(tensor, None))
    except (InvalidModelError, MemoryError) as error:
        raise InvalidCheckpointError(f"expected a tensor {tensor.name!r} that can be read in {path.name!r}: {error}") from error


def _messages(path: Path) -> Iterator[TensorProto]:
    """Yield the messages of a sequence; none when the file does not exist."""
    if not path.exists():
        return
    data = path.read_bytes()

    def fail(what: str) -> InvalidCheckpointError:
        return InvalidCheckpointError(f"expected {what} of {path.name!r}, the file has {len(data)} bytes")

    sizes = Reader(memoryview(data), fail)
    count, at = sizes.varint(0, len(data))
    for _ in range(count):
        size, at = sizes.varint(at, len(data))
        if size > len(data) - at:
            raise InvalidCheckpointError(f"expected a message of {size} bytes at byte {at} of {path.name!r}, the file has {len(data)}")
        yield parse(TensorProto, memoryview(data)[at : at + size], fail)
        at += size
    if at != len(data):
        raise InvalidCheckpointError(f"expected {path.name!r} to end after {count} tensors at byte {at}, it has {len(data)} bytes")
