"""The checkpoint file of onnxruntime-training: a FlatBuffer with the identifier ODTC. The reader validates every byte; the writer replaces files
atomically.

Tables, with their fields in the order of the vtable's slots:
root (version, module state, optimizer groups, property bag);
module state (trainable, frozen, is nominal, has external data);
optimizer group (name, step, initial learning rate, parameter states);
parameter state (parameter, moments);
property bag (ints, floats, strings), each a property (name, value);
tensor (name, doc string, dims, element type, raw data, strings, external data offset)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import flatbuffers
import numpy as np

from ortrain.dtypes import NAMES, NUMBERS, name_of, numpy_dtype
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidCheckpointError
from ortrain.formats.atomic_files import replace_files
from ortrain.formats.checkpoint_contents import Checkpoint, OptimizerGroup, Property
from ortrain.formats.flatbuffer import Buffer, Table

IDENTIFIER = b"ODTC"
VERSIONS = (1, 2)
"""1: written by 1.16 and 1.17; 2: by 1.18 and 1.19. The layout is the same."""
MAX_INLINE = 2**31 - 2**24
"""Bytes: a FlatBuffer ends at 2 GiB."""

MAX_TENSOR = 2**56
"""Elements, not counting zero dimensions."""
MAX_DIMENSIONS = 32

LAST_TYPE = 20
"""The number of the last element type that the file supports; later ones are smaller than a byte, or newer than onnxruntime-training."""

T = TypeVar("T")

# ---- reading


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read the checkpoint in a file (and `<path>.data`, when it has external data), or in a folder that 1.15 wrote.

    Raises ArtifactNotFoundError when a file does not exist, InvalidCheckpointError when it is not a checkpoint."""
    source = Path(path)
    if source.is_dir():
        from ortrain.formats.checkpoint_folder import read_folder  # imported here because it is rare

        return read_folder(source)
    try:
        data = source.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ArtifactNotFoundError(f"expected a checkpoint file, found none that can be read at {str(source)!r}: {error}") from error

    def external() -> bytes:
        beside = Path(f"{source}.data")
        try:
            return beside.read_bytes()
        except OSError as error:
            raise ArtifactNotFoundError(f"Failed to open checkpoint's external data file: {str(beside)!r}: {error}") from error

    return parse_checkpoint(data, external)


def parse_checkpoint(data: bytes, external: Callable[[], bytes] | None = None) -> Checkpoint:
    """Parse the bytes of a checkpoint file; `external` returns the bytes of the external data file when they are needed.

    Raises InvalidCheckpointError when the bytes are not a checkpoint."""
    buffer = Buffer(data, InvalidCheckpointError, "Checkpoint verification failed")
    if len(data) < 8 or data[4:8] != IDENTIFIER:
        raise buffer.fail(f"the identifier {IDENTIFIER.decode()} at byte 4")
    root = Table(buffer, buffer.uint32(0))
    version = int(root.number(0, "<i"))
    if version not in VERSIONS:
        raise InvalidCheckpointError(f"Checkpoint is invalid. Checkpoint version {version} is not supported, expected one of {VERSIONS}")
    module = root.table(1)
    if module is None:
        raise buffer.fail("a module state")
    nominal, has_external = bool(module.number(2, "<B")), bool(module.number(3, "<B"))
    beside = None
    if has_external:
        if external is None:
            raise InvalidCheckpointError("expected the external data file beside the checkpoint, got the checkpoint's bytes alone")
        beside = external()
    trainable = _tensors(module.tables(0), nominal, beside)
    frozen = _tensors(module.tables(1), nominal, beside)
    twice = trainable.keys() & frozen.keys()
    if twice:
        raise InvalidCheckpointError(f"Duplicated tensor proto named {min(twice)}: expected every parameter once")
    groups = _once(map(_group, root.tables(2)), "optimizer group")
    return Checkpoint(trainable, frozen, _properties(root.table(3)), groups, nominal, version, has_external, bare=root.position(2) is None)


def _once(items: Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    """Return the items by name. Raises InvalidCheckpointError for a name that occurs twice."""
    found: dict[str, T] = {}
    for name, value in items:
        if name in found:
            raise InvalidCheckpointError(f"Duplicated {what} named {name}: expected every {what} once")
        found[name] = value
    return found


def _tensors(tables: Iterable[Table], nominal: bool, external: bytes | None) -> dict[str, np.ndarray]:
    return _once(((name := table.text(0), _tensor(table, name, nominal, external)) for table in tables), "tensor proto")


def _dtype(number: int, tensor: str) -> np.dtype:
    if number not in NAMES or number > LAST_TYPE:
        raise InvalidCheckpointError(f"expected a known element type, got {number} (tensor {tensor!r})")
    try:
        return numpy_dtype(NAMES[number])
    except TypeError as error:
        raise InvalidCheckpointError(f"{error} (tensor {tensor!r})") from error


def _dims(table: Table, name: str) -> tuple[int, ...]:
    buffer, at = table.buffer, table.target(2)
    start, rank = buffer.vector(at, 8) if at is not None else (0, 0)
    if rank > MAX_DIMENSIONS:
        raise InvalidCheckpointError(f"expected at most {MAX_DIMENSIONS} dimensions, got {rank} (tensor {name!r})")
    dims = struct.unpack_from(f"<{rank}q", buffer.data, start)
    # NumPy refuses shapes whose product without the zeros exceeds 64 bits
    if any(dim < 0 for dim in dims) or prod(dim for dim in dims if dim) > MAX_TENSOR:
        raise InvalidCheckpointError(f"expected dimensions >= 0 of a tensor that can exist, got {list(dims)} (tensor {name!r})")
    return dims


def _tensor(table: Table, name: str, nominal: bool, external: bytes | None) -> np.ndarray:
    buffer = table.buffer
    dtype = _dtype(int(table.number(3, "<i")), name)
    if nominal:
        return np.zeros((), dtype)
    dims = _dims(table, name)
    count = prod(dims)
    if dtype.hasobject:
        texts = [buffer.text(at) for at in table.targets(5)]
        if len(texts) != count:
            raise InvalidCheckpointError(f"expected {count} strings for shape {list(dims)}, got {len(texts)} (tensor {name!r})")
        return np.array(texts, object).reshape(dims)
    raw = _raw_data(table, count * dtype.itemsize, external)
    if len(raw) != count * dtype.itemsize:
        raise InvalidCheckpointError(f"expected {count * dtype.itemsize} bytes for {dtype}{list(dims)}, got {len(raw)} (tensor {name!r})")
    if dtype.kind == "b":
        return np.asarray(np.frombuffer(raw, np.uint8) != 0).reshape(dims)
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(dims)


def _raw_data(table: Table, size: int, external: bytes | None) -> memoryview:
    """Return the bytes of a tensor of a size, checked to exist."""
    if external is not None:
        offset = int(table.number(6, "<q", -1))
        if offset >= 0:
            # two parameters never share their bytes: together they are no larger than the file
            table.buffer.visit_external(size, len(external))
            return memoryview(external)[offset : offset + size]
    at = table.target(4)
    return table.buffer.bytes(at) if at is not None else memoryview(b"")


def _group(table: Table) -> tuple[str, OptimizerGroup]:
    momentums = _once(((state.text(0), _tensors(state.tables(1), False, None)) for state in table.tables(3)), "parameter state")
    return table.text(0), OptimizerGroup(int(table.number(1, "<q")), float(table.number(2, "<f")), momentums)


def _properties(bag: Table | None) -> dict[str, Property]:
    if bag is None:
        return {}
    ints = [(t.text(0), int(t.number(1, "<q"))) for t in bag.tables(0)]
    floats = [(t.text(0), float(t.number(1, "<f"))) for t in bag.tables(1)]
    texts = [(t.text(0), t.text(1)) for t in bag.tables(2)]
    return _once(sorted([*ints, *floats, *texts], key=lambda item: item[0]), "property")


# ---- writing


class _Writer:
    """Builds the tables in the order in which onnxruntime-training builds them, so that equal contents give equal bytes."""

    def __init__(self, external: bool) -> None:
        self.builder = flatbuffers.Builder(1 << 16)
        self.external: list[bytes] | None = [] if external else None
        self.external_size = 0

    def table(self, fields: int, *values: tuple[str, int, Any]) -> int:
        """Add a table of `fields` slots. Values are (kind, slot, value) in the order of writing; what offsets point to must exist already."""
        b = self.builder
        b.StartObject(fields)
        add = {"offset": b.PrependUOffsetTRelativeSlot, "int32": b.PrependInt32Slot, "int64": b.PrependInt64Slot,
               "float": b.PrependFloat32Slot, "bool": b.PrependBoolSlot}
        for kind, slot, value in values:
            if kind != "offset" or value:
                add[kind](slot, value, -1 if (fields, slot) == (7, 6) else 0)
        return int(b.EndObject())

    def vector(self, offsets: list[int]) -> int:
        b = self.builder
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return int(b.EndVector())

    def text(self, text: str) -> int:
        try:
            return int(self.builder.CreateString(text))
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"expected text that UTF-8 can hold, got {text!r}") from error

    def dims(self, shape: tuple[int, ...]) -> int:
        b = self.builder
        # an empty vector is not aligned to its items
        b.StartVector(8, len(shape), 8 if shape else 4)
        for dim in reversed(shape):
            b.PrependInt64(dim)
        return int(b.EndVector())

    def tensor(self, name: str, array: np.ndarray, nominal: bool = False, inline: bool = False) -> int:
        number = _number(array.dtype, name)
        shape = () if nominal else array.shape
        fields: list[tuple[str, int, Any]] = [("offset", 0, self.text(name)), ("offset", 2, self.dims(shape)), ("int32", 3, number)]
        if nominal:
            fields.append(("offset", 4, self.builder.CreateByteVector(b"")))
        elif NAMES.get(number) == "string":
            fields.append(("offset", 5, self.vector([self.text(str(text)) for text in array.ravel()])))
        elif self.external is not None and not inline:
            fields.append(("int64", 6, self._write_external(array)))
        else:
            fields.append(("offset", 4, self.builder.CreateByteVector(_little_endian(array))))
        return self.table(7, *fields)

    def _write_external(self, array: np.ndarray) -> int:
        assert self.external is not None
        gap = -self.external_size % max(4, array.itemsize)
        data = _little_endian(array)
        self.external += [bytes(gap), data]
        offset = self.external_size + gap
        self.external_size = offset + len(data)
        return offset

    def module(self, checkpoint: Checkpoint) -> int:
        trainable, frozen = ([self.tensor(name, array, checkpoint.nominal) for name, array in arrays.items()]
                             for arrays in (checkpoint.trainable, checkpoint.frozen))
        return self.table(4, ("offset", 0, self.vector(trainable)), ("offset", 1, self.vector(frozen)), ("bool", 2, checkpoint.nominal),
                          ("bool", 3, self.external is not None))

    def groups(self, groups: Mapping[str, OptimizerGroup]) -> list[int]:
        made = []
        for name, group in groups.items():
            states = []
            for parameter, moments in group.momentums.items():
                tensors = [self.tensor(moment, array, inline=True) for moment, array in moments.items()]
                states.append(self.table(2, ("offset", 0, self.text(parameter)), ("offset", 1, self.vector(tensors))))
            made.append(self.table(4, ("offset", 0, self.text(name)), ("float", 2, group.initial_learning_rate), ("int64", 1, group.step),
                                   ("offset", 3, self.vector(states))))
        return made

    def properties(self, properties: Mapping[str, Property]) -> int:
        kinds: dict[str, list[int]] = {"int64": [], "float": [], "offset": []}
        for name, value in properties.items():
            kind = "offset" if isinstance(value, str) else "float" if isinstance(value, float) else "int64"
            key = self.text(name)
            kinds[kind].append(self.table(2, ("offset", 0, key), (kind, 1, self.text(value) if isinstance(value, str) else value)))
        return self.table(3, *[("offset", slot, self.vector(made) if made else 0) for slot, made in enumerate(kinds.values())])


def _number(dtype: np.dtype, tensor: str) -> int:
    number = NUMBERS.get(name_of(dtype))
    if number is None or number > LAST_TYPE:
        raise InvalidArgumentError(f"expected a dtype that a checkpoint can hold, got {dtype} (tensor {tensor!r})")
    return number


def _little_endian(array: np.ndarray) -> bytes:
    return np.asarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def serialize_checkpoint(checkpoint: Checkpoint, version: int = 2) -> tuple[bytes, bytes | None]:
    """Return (the file's bytes, the external data file's bytes or None). Tensors keep the order of the dicts.

    Raises InvalidCheckpointError for a name that occurs twice, InvalidArgumentError for values that the file cannot hold."""
    twice = checkpoint.trainable.keys() & checkpoint.frozen.keys()
    if twice:
        raise InvalidCheckpointError(f"Duplicated tensor proto named {min(twice)}: expected every parameter once")
    parameters = sum(array.nbytes for array in (*checkpoint.trainable.values(), *checkpoint.frozen.values()))
    moments = sum(a.nbytes for g in checkpoint.optimizer_groups.values() for state in g.momentums.values() for a in state.values())
    external = version > 1 and not checkpoint.nominal and (checkpoint.external or parameters + moments > MAX_INLINE)
    writer = _Writer(external)
    try:
        module = writer.module(checkpoint)
        made = writer.groups(checkpoint.optimizer_groups)
        properties = writer.properties(checkpoint.properties) if checkpoint.properties else 0
        groups = writer.vector(made) if made or not checkpoint.bare else 0
        root = writer.table(4, ("int32", 0, version), ("offset", 1, module), ("offset", 2, groups), ("offset", 3, properties))
        writer.builder.Finish(root, file_identifier=IDENTIFIER)
    except (flatbuffers.builder.BuilderSizeError, struct.error, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"expected values that fit into a checkpoint file of less than 2 GiB, got: {error}") from error
    return bytes(writer.builder.Output()), None if writer.external is None else b"".join(writer.external)


def checkpoint_bytes(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as the bytes of one file. Raises InvalidArgumentError when it needs a second one (above 2 GB)."""
    data, external = serialize_checkpoint(replace(checkpoint, external=False))
    if external is not None:
        raise InvalidArgumentError("expected a checkpoint of less than 2 GB for one buffer: save it to a file, which may have a second one beside it")
    return data


def write_checkpoint(checkpoint: Checkpoint, path: str | os.PathLike[str], version: int = 2) -> None:
    """Write a checkpoint file (and `<path>.data`, if it has external data) atomically.

    Raises ArtifactNotFoundError when the folder does not exist."""
    data, external = serialize_checkpoint(checkpoint, version)
    files: dict[str | os.PathLike[str], Sequence[bytes]] = {}
    if external is not None:
        files[f"{os.fspath(path)}.data"] = (external,)
    files[path] = (data,)
    replace_files(files)
