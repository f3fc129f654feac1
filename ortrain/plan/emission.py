"""Emission: lays out the memory of ordered steps and writes them into a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import flushes_subnormals
from ortrain._core.program import Program
from ortrain._core.program_builder import MAX_AXES, ProgramBuilder
from ortrain.dtypes import numpy_dtype
from ortrain.errors import InvalidModelError, MissingKernelError
from ortrain.ir import Node, TensorType
from ortrain.ops.registry.constants import ConstantValues
from ortrain.ops.registry.record import record_of
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.training import UPDATED
from ortrain.plan.deferred_gradients import DeferredGradients
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Plan, Step

OF_A_NODE = "_Grad/|::"
"""What follows the name of a node in those of its gradient and of its recomputation."""


def takes_bfloat16(node: Node, float32_nodes: Sequence[str]) -> bool:
    """Return whether the products of a node take bfloat16 operands in sessions of that precision: by the record of its operator, unless a pattern among
    float32_nodes is that of its node, of the node whose gradient it computes, or of its operator."""
    record = record_of(node)
    return record is not None and record.takes_bfloat16 and not _is_exempt(node, float32_nodes)


def may_read_rounded(node: Node, index: int, float32_nodes: Sequence[str]) -> bool:
    """Return whether input `index` of a node may be an activation that was kept in bfloat16: by the record of its operator, with the same exceptions."""
    record = record_of(node)
    return record is not None and record.may_read_rounded(index) and not _is_exempt(node, float32_nodes)


def _is_exempt(node: Node, float32_nodes: Sequence[str]) -> bool:
    names = node.name, re.split(OF_A_NODE, node.name)[0], node.op_type
    return any(fnmatchcase(name, pattern) for name in names for pattern in float32_nodes)


class Emission:
    """Emits one program.

    deferred: the steps. lifetimes, inference: of the plan. inputs, fixed, outputs, commits: as in plan_program.
    has_effect: whether a node writes to a parameter or gradient buffer. is_accumulation: whether a step accumulates a
    gradient."""

    def __init__(self, deferred: DeferredGradients, lifetimes: Lifetimes, inference: ShapeInference, inputs: Mapping[str, TensorType],
                 fixed: Mapping[str, np.ndarray], outputs: Sequence[str], commits: Mapping[str, np.ndarray], has_effect: Callable[[Node], bool],
                 is_accumulation: Callable[[Step], bool]) -> None:
        self.deferred, self.steps, self.lifetimes, self.inference = deferred, deferred.steps, lifetimes, inference
        self.inputs, self.fixed, self.outputs, self.commits = inputs, fixed, outputs, commits
        self.has_effect, self.is_accumulation = has_effect, is_accumulation

    def run(self, handle: EngineHandle) -> Program:
        """Return the finished program."""
        builder = ProgramBuilder(handle)
        program = builder.program
        blocks = self._add_blocks(builder)
        tensor_ids: dict[str, int] = {}

        def tensor_id_of(name: str) -> int:
            if not name:
                return -1
            if name not in tensor_ids:
                tensor_ids[name] = self._add_tensor(builder, name, blocks)
            return tensor_ids[name]

        positions: dict[int, int] = {}
        scratch = {index: builder.add_block(step.call.scratch, index, index) for index, step in enumerate(self.steps) if step.call.scratch}
        rounds = handle.precision == "bfloat16"
        for index, step in enumerate(self.steps):
            if step.call.function is not None:
                positions[id(step)] = builder.add_python_step(f"python of {step.node.name or step.node.op_type}", step.call.function,
                                                              [tensor_id_of(n) for n in step.inputs], [tensor_id_of(n) for n in step.outputs])
                continue
            if step.iteration is not None:
                program.python_steps[len(positions)] = step.iteration
                program.keep_alive.append(step.iteration)
            positions[id(step)] = builder.add_step(
                f"{step.call.kernel} of {step.node.name or step.node.op_type}", step.address, [tensor_id_of(n) for n in step.inputs],
                [tensor_id_of(n) for n in step.outputs], tuple(step.call.ints), tuple(map(float, step.call.floats)),
                scratch.get(index, -1), flushes_subnormals(step.call.kernel), rounds and takes_bfloat16(step.node, handle.float32_nodes))
        builder.set_inputs([tensor_id_of(name) for name in self.inputs])
        builder.set_outputs([tensor_id_of(name) for name in self.outputs])
        same_memory: dict[str, list[int]] = {}
        for name, tensor_id in tensor_ids.items():
            same_memory.setdefault(self.lifetimes.root(name), []).append(tensor_id)
        in_place = self._gradients_computed_in_place(blocks)
        for step, value in in_place:
            builder.add_elidable_accumulation(positions[id(step)], same_memory[self.lifetimes.root(value)], self.fixed[step.inputs[0]].ctypes.data)
        program.first_write_step = self._first_write({self.lifetimes.root(value) for _, value in in_place})
        if any(step.guard is None and step.node.op_type in UPDATED for step in self.deferred.train_step):
            program.n_interruptible_steps = program.first_write_step + 1
        program.deferred_updates_start = len(self.deferred.train_step)
        program.deferred_gradients_start = program.deferred_updates_start + len(self.deferred.updates)
        program.deferred_names, program.input_names = frozenset(self.deferred.names), list(self.inputs)
        program.keep_alive.extend([self.inference.values, dict(self.fixed), dict(self.commits)])
        builder.finish()
        program.plan = Plan(self.steps, self.inference.types, program.arena_bytes, list(self.outputs))
        return program

    def _add_blocks(self, builder: ProgramBuilder) -> dict[str, int]:
        """Return root value -> the id of its block. Values read by deferred steps are placed at the beginning of the
        arena."""
        kept = set(map(self.lifetimes.root, self.lifetimes.kept))
        return {name: builder.add_block(block.size, block.first, block.last, name in kept) for name, block in self.lifetimes.blocks(self.steps).items()}

    def _add_tensor(self, builder: ProgramBuilder, name: str, blocks: Mapping[str, int]) -> int:
        if name.endswith("::committed"):
            target = self.commits[name.removesuffix("::committed")]
            return builder.add_tensor(target.dtype.name, tuple(target.shape), address=target.ctypes.data)
        root = self.lifetimes.root(name)
        kind = self.inference.types[name]
        if kind.dtype == "string":
            raise MissingKernelError(f"expected a tensor of an element type that programs support, got {kind.dtype} for {name!r}")
        shape = kind.sizes
        if len(shape) > MAX_AXES:
            raise MissingKernelError(f"expected a tensor of at most {MAX_AXES} axes, the maximum of the kernels, got {list(shape)} for {name!r}")
        if root in self.inputs:
            return builder.add_tensor(kind.dtype, shape, input=list(self.inputs).index(root))
        if root in self.fixed:
            return builder.add_tensor(kind.dtype, shape, address=self.fixed[root].ctypes.data)
        if root in self.inference.values:
            values = self.inference.values
            elements = values.symbolic_elements(root) if isinstance(values, ConstantValues) and kind.dtype == "int64" else None
            if elements is not None:
                return builder.add_tensor(kind.dtype, shape, elements=elements)
            array = values[root]
            array = np.require(array, numpy_dtype(kind.dtype), ["C", "A"])
            values[root] = array
            return builder.add_tensor(kind.dtype, shape, address=array.ctypes.data)
        if root not in blocks:
            raise InvalidModelError(f"expected {name!r} to be an input, a parameter or the output of a node, got an undefined name")
        return builder.add_tensor(kind.dtype, shape, block=blocks[root])

    def _first_write(self, gradients: Collection[str]) -> int:
        """Return the index of the first step whose effect outlives the run: an accumulation, an update, a commit, or
        a step that computes one of `gradients` in its buffer. If an earlier step refuses the run, nothing has
        changed."""
        for index, step in enumerate(self.deferred.train_step):
            if self.has_effect(step.node) or any(name.endswith("::committed") or self.lifetimes.root(name) in gradients for name in step.outputs if name):
                return index
        return len(self.deferred.train_step)

    def _gradients_computed_in_place(self, blocks: Collection[str]) -> list[tuple[Step, str]]:
        """Return (accumulation, value) for each value that may be computed directly in its gradient buffer when the
        gradient is overwritten.

        Such a value has the size of the buffer and one writer, and is not an output of the program."""
        writers: dict[str, int] = {}
        for step in self.steps:
            for name in step.outputs:
                if name:
                    root = self.lifetimes.root(name)
                    writers[root] = writers.get(root, 0) + 1
        outputs = {self.lifetimes.root(name) for name in self.outputs}
        found, taken = [], set()
        for step in self.steps:
            if not self.is_accumulation(step) or any(n in self.outputs for n in step.outputs):
                continue
            root = self.lifetimes.root(step.inputs[1])
            if (root in blocks and writers.get(root) == 1 and root not in outputs and root not in taken
                    and self.lifetimes.nbytes(root) == self.lifetimes.nbytes(step.inputs[0])):
                taken.add(root)
                found.append((step, step.inputs[1]))
        return found
