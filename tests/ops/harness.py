"""Runs one sample through its record and its kernel, without a program."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain._core.memory_planner import keep_apart
from ortrain._core.program import Program
from ortrain.dtypes import name_of
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.ops.registry.decomposition import decompose
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import REGISTRY, Alias, InferenceContext, KernelCall, LoweringContext
from ortrain.ops.registry.shape_inference import Inference
from ortrain.ops.training import WRITTEN
from ortrain.plan import plan_program
from tests.ops.samples import Sample


def node_of(sample: Sample) -> Node:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(sample.inputs)]
    return Node(sample.op_type, names, [f"y{i}" for i in range(sample.outputs)], "sample", sample.domain, dict(sample.attributes))


def cast(sample: Sample, dtype: str) -> list[np.ndarray | None]:
    """The sample's inputs, contiguous, floats in the given dtype."""
    return [None if x is None else np.array(x, dtype if np.asarray(x).dtype.kind == "f" else None, order="C") for x in sample.inputs]


def contexts(sample: Sample, arrays):
    """(inference context, its node) of a sample: inputs listed in `constants` have known values."""
    node = node_of(sample)
    types = [None if x is None else TensorType.of(x) for x in arrays]
    values = [x if i in sample.constants else None for i, x in enumerate(arrays)]
    opset = sample.opset if not sample.domain else 1
    return node, types, values, opset


def expansion(sample: Sample, arrays) -> list[Node] | None:
    """The nodes that stand for the sample's, when its record says it in terms of others."""
    node, types, values, _ = contexts(sample, arrays)
    inference = Inference(opsets_of(sample), {n: t for n, t in zip(node.inputs, types, strict=True) if t is not None},
                          {n: v for n, v in zip(node.inputs, values, strict=True) if v is not None})
    inference.visit(node)
    return decompose(node, GraphBuilder(inference, NameSource({*node.inputs, *node.outputs}), inference.opsets[""]))


def opsets_of(sample: Sample) -> dict[str, int]:
    return {"": 17 if sample.domain else sample.opset, "com.microsoft": 1}


def program_of(sample: Sample, arrays, workers: int, type_of=TensorType.of, outputs: Sequence[str] | None = None) -> tuple[Program, tuple[np.ndarray, ...]]:
    """A program of the sample's node alone, and what it takes; what the node writes over is the program's own. type_of: what it is planned for in the place of
    an array. outputs: the node's, "" where absent, in the place of the sample's."""
    node, _, values, _ = contexts(sample, arrays)
    node.outputs = node.outputs if outputs is None else list(outputs)
    wanted = list(filter(None, node.outputs))
    graph = Graph(inputs=[n for n, v in zip(node.inputs, values, strict=True) if n and v is None], nodes=[node], outputs=wanted)
    graph.initializers = {n: v for n, v in zip(node.inputs, values, strict=True) if v is not None}
    fixed = {node.inputs[i]: arrays[i].copy() for i in WRITTEN.get(node.op_type, ()) if i < len(arrays) and arrays[i] is not None}
    given = {n: x for n, x in zip(node.inputs, arrays, strict=True) if n in graph.inputs and n not in fixed}
    kinds = {n: type_of(x) for n, x in given.items()}
    return plan_program(Model(graph, opsets_of(sample)), kinds, fixed, wanted, EngineHandle(workers)), tuple(given.values())


def run_program(sample: Sample, arrays, workers: int) -> list[np.ndarray]:
    """The outputs of a program of the sample's node alone."""
    program, given = program_of(sample, arrays, workers)
    program.bind_arena(arena_for(program))
    return program.try_run(given)


def arena_for(program) -> np.ndarray:
    raw = np.zeros(program.arena_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start:start + program.arena_bytes]


GAP = 256


@contextmanager
def kept_apart() -> Iterator[None]:
    """Programs that are made meanwhile have bytes of their own for every block, between gaps that no kernel may touch."""
    keep_apart(GAP)
    try:
        yield
    finally:
        keep_apart(0)


def gaps_of(program) -> list[slice]:
    """The bytes of its arena that belong to no block."""
    ends = [0, *(offset + size for offset, size in program.places)]
    starts = [*(offset for offset, _ in program.places), program.arena_bytes]
    return [slice(end, start) for end, start in zip(ends, starts, strict=True)]


def lowered(sample: Sample, arrays, tiles: bool = True) -> tuple[KernelCall | Alias, list[TensorType]]:
    """How the record of a sample that has a kernel lowers it, and the types of its outputs; without `tiles` as for a processor that has none."""
    node, types, values, opset = contexts(sample, arrays)
    record = REGISTRY[sample.domain, sample.op_type]
    out_types = record.infer(InferenceContext(node, types, values, opset))
    context = LoweringContext(node, types, values, opset, out_types)
    context.tiles = tiles and EngineHandle().amx
    return record.lower(context), out_types


def call_lowered(how: KernelCall, arrays, outputs, workers: int, tiles: bool = True) -> None:
    first = next((x for x in arrays if x is not None), outputs[0])
    address = kernels()[how.kernel, name_of(first.dtype)]
    handle = EngineHandle(workers)
    handle.amx &= tiles
    assert call_kernel(address, arrays, outputs, how.ints, how.floats, how.scratch, handle) == 0


def run_kernel(sample: Sample, dtype: str = "float64", workers: int = 1, tiles: bool = True) -> list[np.ndarray]:
    """The outputs of one kernel call, as the record lowers it, or of the program that it expands to; without `tiles` not on bfloat16 tiles."""
    arrays = cast(sample, dtype)
    if expansion(sample, arrays) is not None:
        return run_program(sample, arrays, workers)
    how, out_types = lowered(sample, arrays, tiles)
    if isinstance(how, Alias):
        return [arrays[how.input].reshape(out_types[0].shape).copy()]
    if how.function is not None:
        return [np.asarray(y) for y in how.function(*arrays)]
    outputs = [np.zeros(t.shape, t.dtype) for t in out_types]
    call_lowered(how, arrays, outputs, workers, tiles)
    return outputs


def written_over(sample: Sample, arrays) -> dict[int, int]:
    """Output -> input of its shape and type over which the sample's kernel may write it, as the record says."""
    if expansion(sample, arrays) is not None:
        return {}
    how, out_types = lowered(sample, arrays)
    if isinstance(how, Alias) or how.function is not None:
        return {}
    return {out: source for out, source in how.in_place.items() if out < len(out_types) and source < len(arrays) and arrays[source] is not None
            and TensorType.of(arrays[source]) == out_types[out]}


def run_in_place(sample: Sample, dtype: str) -> list[np.ndarray]:
    """The outputs of one kernel call that writes over its inputs wherever it says that it may."""
    arrays = cast(sample, dtype)
    over = written_over(sample, arrays)
    how, out_types = lowered(sample, arrays)
    outputs = [arrays[over[i]] if i in over else np.zeros(t.shape, t.dtype) for i, t in enumerate(out_types)]
    call_lowered(how, arrays, outputs, 2)
    return outputs


def expected(sample: Sample, arrays) -> list[np.ndarray | None]:
    result = sample.oracle(*arrays)
    return list(result) if isinstance(result, tuple) else [result]
