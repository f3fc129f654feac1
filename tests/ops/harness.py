"""Helpers that run one operator sample: through its record and kernel alone, or as a program of one node."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain._core.memory_planner import set_redzone_bytes
from ortrain._core.program import Program
from ortrain.dtypes import name_of
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.ops.registry.decomposition import decompose
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import REGISTRY, Alias, InferenceContext, KernelCall, LoweringContext
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.training import WRITTEN
from ortrain.plan import plan_program
from ortrain.runtime.segments import aligned_zeros
from tests.ops.samples import Sample


def node_of(sample: Sample) -> Node:
    """Return the sample's node, with inputs x0, x1, … and outputs y0, y1, …"""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(sample.inputs)]
    return Node(sample.op_type, names, [f"y{i}" for i in range(sample.outputs)], "sample", sample.domain, dict(sample.attributes))


def cast(sample: Sample, dtype: str) -> list[np.ndarray | None]:
    """Return the sample's inputs as contiguous arrays, floating-point ones in `dtype`."""
    return [None if x is None else np.array(x, dtype if np.asarray(x).dtype.kind == "f" else None, order="C") for x in sample.inputs]


def context_arguments(sample: Sample, arrays):
    """Return the arguments of the sample's InferenceContext: (node, types, values, opset); only inputs listed in `constants` have values."""
    node = node_of(sample)
    types = [None if x is None else TensorType.of(x) for x in arrays]
    values = [x if i in sample.constants else None for i, x in enumerate(arrays)]
    opset = sample.opset if not sample.domain else 1
    return node, types, values, opset


def decomposed_nodes(sample: Sample, arrays) -> list[Node] | None:
    """Return the nodes into which the sample's node is decomposed, None if it is not."""
    node, types, values, _ = context_arguments(sample, arrays)
    inference = ShapeInference(opsets_of(sample), {n: t for n, t in zip(node.inputs, types, strict=True) if t is not None},
                          {n: v for n, v in zip(node.inputs, values, strict=True) if v is not None})
    inference.visit(node)
    return decompose(node, GraphBuilder(inference, NameSource({*node.inputs, *node.outputs}), inference.opsets[""]))


def runs_as_program(sample: Sample, arrays) -> bool:
    """Return whether the sample's operator has no kernel of its own: it is decomposed, or replaced by another one while planning."""
    return bool(REGISTRY[sample.domain, sample.op_type].planned_as) or decomposed_nodes(sample, arrays) is not None


def opsets_of(sample: Sample) -> dict[str, int]:
    """Return the opset imports of a model that contains the sample."""
    return {"": 17 if sample.domain else sample.opset, "com.microsoft": 1}


def program_of(sample: Sample, arrays, workers: int, type_of=TensorType.of, outputs: Sequence[str] | None = None) -> tuple[Program, tuple[np.ndarray, ...]]:
    """Return a program of the sample's node alone, and the arrays to run it with; inputs that the node overwrites belong to the program.

    type_of: returns the type to plan for, given an array. outputs: names of the node's outputs, "" where absent; None for the sample's."""
    node, _, values, _ = context_arguments(sample, arrays)
    node.outputs = node.outputs if outputs is None else list(outputs)
    output_names = list(filter(None, node.outputs))
    graph = Graph(inputs=[n for n, v in zip(node.inputs, values, strict=True) if n and v is None], nodes=[node], outputs=output_names)
    graph.initializers = {n: v for n, v in zip(node.inputs, values, strict=True) if v is not None}
    fixed = {node.inputs[i]: arrays[i].copy() for i in WRITTEN.get(node.op_type, ()) if i < len(arrays) and arrays[i] is not None}
    given = {n: x for n, x in zip(node.inputs, arrays, strict=True) if n in graph.inputs and n not in fixed}
    kinds = {n: type_of(x) for n, x in given.items()}
    return plan_program(Model(graph, opsets_of(sample)), kinds, fixed, output_names, EngineHandle(workers)), tuple(given.values())


def run_program(sample: Sample, arrays, workers: int) -> list[np.ndarray]:
    """Return the outputs of a program of the sample's node alone."""
    program, given = program_of(sample, arrays, workers)
    program.bind_arena(arena_for(program))
    return program.try_run(given)


def arena_for(program) -> np.ndarray:
    """Return zeroed memory of the size of the program's arena, aligned to 64 bytes."""
    return aligned_zeros(program.arena_bytes, np.dtype(np.uint8))


REDZONE_BYTES = 256
"""Bytes of each redzone: memory before, between and after the blocks of an arena that no kernel may touch."""


@contextmanager
def redzones() -> Iterator[None]:
    """Plan programs whose memory blocks share no bytes and are separated by redzones."""
    set_redzone_bytes(REDZONE_BYTES)
    try:
        yield
    finally:
        set_redzone_bytes(0)


def redzone_ranges(program) -> list[slice]:
    """Return the byte ranges of the redzones in the program's arena."""
    ends = [0, *(offset + size for offset, size in program.block_extents)]
    starts = [*(offset for offset, _ in program.block_extents), program.arena_bytes]
    return [slice(end, start) for end, start in zip(ends, starts, strict=True)]


def lowered(sample: Sample, arrays, tiles: bool = True, precision: str = "float32") -> tuple[KernelCall | Alias, list[TensorType]]:
    """Return the lowered form of a sample that is not decomposed, and the types of its outputs. tiles: whether the lowering may use AMX tiles. precision: that
    of operands of matrix multiplications."""
    node, types, values, opset = context_arguments(sample, arrays)
    record = REGISTRY[sample.domain, sample.op_type]
    out_types = record.infer(InferenceContext(node, types, values, opset))
    context = LoweringContext(node, types, values, opset, out_types)
    context.may_use_amx = tiles and EngineHandle().amx
    context.takes_bfloat16 = precision == "bfloat16"
    return record.lower(context), out_types


def run_call(call: KernelCall, arrays, outputs, workers: int, tiles: bool = True, precision: str = "float32") -> None:
    """Run the kernel of a call on arrays, writing `outputs`; the dtype of the first array selects the kernel."""
    first = next((x for x in arrays if x is not None), outputs[0])
    address = kernels()[call.kernel, name_of(first.dtype)]
    handle = EngineHandle(workers)
    handle.amx &= tiles
    handle.precision = precision
    assert call_kernel(address, arrays, outputs, call.ints, call.floats, call.scratch, handle) == 0


def run_kernel(sample: Sample, dtype: str = "float64", workers: int = 1, tiles: bool = True, precision: str = "float32") -> list[np.ndarray]:
    """Return the outputs of the sample's kernel, or of a program if the sample is decomposed. tiles: whether the kernel may use AMX tiles. precision: that of
    operands of matrix multiplications."""
    arrays = cast(sample, dtype)
    if runs_as_program(sample, arrays):
        return run_program(sample, arrays, workers)
    call, out_types = lowered(sample, arrays, tiles, precision)
    if isinstance(call, Alias):
        return [arrays[call.input].reshape(out_types[0].shape).copy()]
    if call.function is not None:
        return [np.asarray(y) for y in call.function(*arrays)]
    outputs = [np.zeros(t.shape, t.dtype) for t in out_types]
    run_call(call, arrays, outputs, workers, tiles, precision)
    return outputs


def in_place_outputs(sample: Sample, arrays) -> dict[int, int]:
    """Return output index -> index of the input of the same type whose memory the sample's kernel may overwrite with it."""
    if runs_as_program(sample, arrays):
        return {}
    call, out_types = lowered(sample, arrays)
    if isinstance(call, Alias) or call.function is not None:
        return {}
    return {out: source for out, source in call.in_place.items() if out < len(out_types) and source < len(arrays) and arrays[source] is not None
            and TensorType.of(arrays[source]) == out_types[out]}


def run_in_place(sample: Sample, dtype: str) -> list[np.ndarray]:
    """Return the outputs of a kernel call in which every output that may overwrite an input does."""
    arrays = cast(sample, dtype)
    sources = in_place_outputs(sample, arrays)
    call, out_types = lowered(sample, arrays)
    outputs = [arrays[sources[i]] if i in sources else np.zeros(t.shape, t.dtype) for i, t in enumerate(out_types)]
    run_call(call, arrays, outputs, 2)
    return outputs


def expected_outputs(sample: Sample, arrays) -> list[np.ndarray | None]:
    """Return what the sample's oracle computes; None for an output that is not compared."""
    result = sample.oracle(*arrays)
    return list(result) if isinstance(result, tuple) else [result]


MARGIN = 4096
"""Guard bytes before and after each array between guards."""


def between_guards(shape: Sequence[int], dtype: np.dtype, pattern: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an array whose address is a multiple of its element size only, and the memory around it; all bytes are `pattern`."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.full(nbytes + 2 * MARGIN + 64, pattern, np.uint8)
    start = MARGIN + -(raw.ctypes.data + MARGIN) % 64 + dtype.itemsize
    return raw[start : start + nbytes].view(dtype).reshape(shape), raw


def run_between_guards(program: Program, given: tuple[np.ndarray, ...], usual: Sequence[np.ndarray], pattern: int) -> list[bytes]:
    """Run a program with outputs in arrays between guard bytes, which it must leave as they are; return the outputs as bytes.

    usual: arrays like the outputs."""
    arrays, memory = zip(*(between_guards(y.shape, y.dtype, pattern) for y in usual), strict=True)
    assert all(mine is theirs for mine, theirs in zip(program.try_run(given, out=list(arrays)), arrays, strict=True))
    found = [array.tobytes() for array in arrays]
    for array, raw in zip(arrays, memory, strict=True):
        array.reshape(-1).view(np.uint8)[...] = pattern
        assert (raw == pattern).all(), "wrote outside the array of an output"
    return found
