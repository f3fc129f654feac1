"""Running one model: input checks, planning for the inputs' shapes, and a cache of programs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ortrain._core.builtin_kernels import PYTHON_FAILED, PythonStep
from ortrain._core.engine import EngineHandle
from ortrain._core.program import TERMINATED, Program
from ortrain._core.program_template import ProgramTemplate, find_program
from ortrain._core.symbolic import SymbolicSizes
from ortrain.errors import (
    EmptyBatchError,
    IndexRangeError,
    InputCountError,
    InputNameError,
    InputRankError,
    InputShapeError,
    LabelRangeError,
    OperatorFailedError,
    OutputShapeError,
    TerminatedError,
)
from ortrain.ir import Model, Shape, TensorType
from ortrain.ops.shape import exposes_broadcast_axes
from ortrain.plan import InputValuesRequired, PartitionRequired, plan_program
from ortrain.plan.deferred_gradients import ParameterUpdates
from ortrain.runtime.options import RunOptions
from ortrain.runtime.segments import aligned_zeros
from ortrain.runtime.values import as_array, as_object

if TYPE_CHECKING:
    from ortrain.runtime.partitions import Flag, Partition

MIN_ARENA = 3 << 20
"""Bytes of the smallest arena. Untouched pages cost nothing, and an arena that is large enough need not grow for more rows, which takes 0.1 ms (30 steps
of a tiny network). From 4 MiB on NumPy requests huge pages: 2 MB more than a dense network uses."""
MAX_PROGRAMS = 32
"""Programs without a template that are kept per model; the least recently used is dropped first."""


def _opening_advice(name: str, wanted: Shape, given: Sequence[int], axis: int) -> str:
    """Return how to open a fixed batch, where an input differs from the model's in nothing but the size along an axis that may be the batch."""
    differing = [place for place, (want, have) in enumerate(zip(wanted, given, strict=True)) if isinstance(want, int) and want != have]
    if axis > (1 if len(wanted) > 2 else 0) or differing != [axis]:
        return ""
    shape = ["batch" if place == axis else size for place, size in enumerate(wanted)]
    return (f". If axis {axis} is the batch, which the model fixes, make the session or the artifacts from the forward model with "
            f"input_shapes={{{name!r}: {shape}}} to open it")


def _one_hot_advice(kind: TensorType, given: np.ndarray) -> str:
    """Return how to pass labels, where integers have one axis more than the input."""
    is_one_hot = kind.dtype == "int64" and kind.shape is not None and given.ndim == len(kind.shape) + 1 and given.shape[-1] > 1
    return ". One-hot labels are passed as class numbers: labels.argmax(-1)" if is_one_hot else ""


def _is_object(value: Any) -> bool:
    """Whether a value cannot be a tensor of a program: a sequence, an absent optional, text."""
    return not isinstance(value, np.ndarray) or value.dtype.kind in "OUS"


def bind_arena(program: Program, handle: EngineHandle) -> None:
    """Bind a program to the arena that all programs of a session share, growing it if necessary; other programs are bound again when they run.

    Raises MemoryError, leaving the arena as it was, when memory is exhausted."""
    room = program.required_arena_bytes()
    if handle.arena is not None and room <= handle.arena.size:
        program.bind_arena(handle.arena)
        return
    size, held = (0, b"") if handle.arena is None else (handle.arena.size, handle.arena[: handle.retained_bytes].tobytes())
    handle.arena = None                     # freed before the larger one is allocated: together they would be the peak of the process
    try:
        arena = aligned_zeros(max(room, MIN_ARENA), np.dtype(np.uint8))
    except MemoryError:                     # the former size fitted
        handle.arena = aligned_zeros(size, np.dtype(np.uint8))
        handle.arena[: len(held)] = np.frombuffer(held, np.uint8)
        raise
    arena[: len(held)] = np.frombuffer(held, np.uint8)
    program.bind_arena(arena)


class Watch(NamedTuple):
    """Arrays that a run writes, and what is called with the number of each as soon as the run needs it no more."""

    arrays: list[np.ndarray]
    ready: Callable[[int], None]


class Runner:
    """Computes some outputs of a model for user inputs.

    inputs: names of the user inputs in the order of a call. fixed: parameters and other arrays whose addresses do not change."""

    def __init__(self, model: Model, inputs: Sequence[str], outputs: Sequence[str], fixed: Mapping[str, np.ndarray], handle: EngineHandle,
                 where: str, commits: Mapping[str, np.ndarray] | None = None, empty: bool = False, known: Sequence[str] = (),
                 deferred: ParameterUpdates | None = None) -> None:
        self.model = model
        self.deferred = deferred
        """The optimizer updates that gradients may be deferred to; None to compute all gradients in the train step."""
        self.empty = empty
        """Whether inputs without elements are accepted; only for inference, since the mean over an empty batch is undefined."""
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.fixed = fixed
        self.handle = handle
        self.where = where
        self.commits = dict(commits or {})
        self.known = list(known)
        """Inputs whose values a program is planned for (sizes, axes, conditions); found when planning requires them."""
        self.partition: Partition | None = None
        """The partition that runs before the rest of the model where one program cannot run all; found when planning requires it."""
        self.last: Program | None = None
        self._programs: OrderedDict[tuple[Any, ...], Program] = OrderedDict()
        self._templates: list[ProgramTemplate] = []
        """The most recently used template is last."""
        self.uses_templates = not exposes_broadcast_axes(model.graph, outputs)
        """Whether plans use symbolic sizes. False where that failed but planning with plain numbers succeeded, or where programs for other sizes would
        differ in structure."""

    def run(self, values: tuple[Any, ...], overwrite: bool = False, run_options: RunOptions | None = None,
            out: Sequence[Any] | None = None, complete: bool = True, watch: Watch | None = None) -> list[np.ndarray]:
        """Return the outputs for these inputs, written into the caller's arrays where `out` has any. complete: do not defer gradients. watch: gradients whose
        completion is to be told, which defers none either.

        Raises an input error when the inputs do not fit, OutputShapeError when `out` does not, LabelRangeError or IndexRangeError from a guard,
        TerminatedError when run_options request it."""
        terminate = None if run_options is None else run_options.terminate_flag
        program = self.repeatable
        targets = None if out is None else list(out)
        if program is not None and (targets is None or program.fits_outputs(targets)):
            result = self._try_run(program, values, overwrite, terminate, targets, complete, watch)
            if result is not None:
                return result
        return self._run_partitions(dict(zip(self.inputs, self.check(values), strict=True)), overwrite, terminate, out, complete, watch)

    def _try_run(self, program: Program, values: tuple[Any, ...], overwrite: bool, terminate: np.ndarray | None, out: list[np.ndarray | None] | None,
                 complete: bool, watch: Watch | None, given: tuple[Any, ...] | None = None) -> list[np.ndarray] | None:
        """Run a program; None if it does not accept the values. given: this runner's inputs where they are not the program's, to be named in errors."""
        if watch is None:
            try:
                return program.try_run(values, overwrite, terminate, out, complete)
            except RuntimeError:
                pass
        else:
            result = program.try_run_watched(values, overwrite, terminate, out, watch.arrays, watch.ready)
            if result is not False:
                return result
        raise self.refusal(program, values if given is None else given) from program.python_error()

    @property
    def repeatable(self) -> Program | None:
        """The program that ran last, if another run with inputs of the same types needs nothing else; otherwise None."""
        return self.last if not self.known and self.partition is None else None

    def compute(self, given: Mapping[str, Any], terminate: Flag) -> list[Any]:
        """Return the outputs for inputs that need no check, as a part of a longer run. Raises TerminatedError when the flag is set."""
        return self._run_partitions(dict(given), False, terminate, None, True, None)

    def _run_partitions(self, given: dict[str, Any], overwrite: bool, terminate: Flag, out: Sequence[Any] | None,
                    complete: bool, watch: Watch | None) -> list[Any]:
        runner = self
        self.last = None
        while True:
            if runner.partition is None:
                try:
                    program = runner._program_for(given)
                    break
                except PartitionRequired as cut:
                    from ortrain.runtime.partitions import Partition

                    constants = {**runner.model.graph.initializers, **runner.fixed}
                    runner.partition = Partition.of(runner.model, runner.inputs, runner.outputs, list(runner.commits), constants, cut, runner._part)
            given = runner.partition.run(given, terminate)
            runner = runner.partition.rest
        self.last = program
        tensors = runner._tensors(given)
        targets = None if out is None else self._targets(program, tensors, out)
        result = runner._try_run(program, tuple(given[name] for name in program.input_names), overwrite, terminate, targets, complete, watch,
                                 tuple(given[name] for name in runner.inputs))
        assert result is not None, "a program refused the inputs it was planned for"
        if len(tensors) == len(self.outputs):
            return result
        made = dict(zip(tensors, result, strict=True))
        return [made[name] if name in made else given[name] for name in self.outputs]

    def _part(self, model: Model, inputs: Sequence[str], outputs: Sequence[str], known: Sequence[str] = (), last: bool = False) -> Runner:
        """Create a runner for a part of the model; the last part commits running statistics."""
        return Runner(model, inputs, outputs, self.fixed, self.handle, self.where, self.commits if last else None, True, known)

    def _tensors(self, given: Mapping[str, Any]) -> list[str]:
        """The outputs that a program computes: all except text, sequences and optionals among the inputs of the last partition."""
        return [name for name in self.outputs if name not in given or not _is_object(given[name])]

    def _targets(self, program: Program, tensors: Sequence[str], out: Sequence[Any]) -> list[np.ndarray | None]:
        """Return the arrays that receive the outputs of a program, unwrapping OrtValues."""
        if len(out) != len(self.outputs):
            raise OutputShapeError(f"expected {len(self.outputs)} outputs {self.outputs}, got {len(out)} ({self.where})")
        given = [value for name, value in zip(self.outputs, out, strict=True) if name in tensors]
        targets = [value if value is None or isinstance(value, np.ndarray) else value.numpy() if hasattr(value, "numpy") else value for value in given]
        wrong = program.find_output_mismatch(targets)
        if wrong is not None:
            number, dtype, shape = wrong
            got = targets[number]
            said = f"{got.dtype}{list(got.shape)}" if isinstance(got, np.ndarray) else type(got).__name__
            raise OutputShapeError(f"expected a writable C-contiguous array {dtype}{list(shape)} for output {tensors[number]!r}, "
                                   f"got {said} ({self.where})")
        return targets

    def arguments(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return positional and named inputs in the order of the model. Raises InputNameError or InputCountError."""
        if not named:
            return values
        rest = self.inputs[len(values) :]
        unknown = [name for name in named if name not in rest]
        if unknown:
            raise InputNameError(f"expected inputs named {rest}, got {unknown} ({self.where})")
        missing = [name for name in rest if name not in named]
        if missing:
            raise InputCountError(f"expected inputs {self.inputs}, {missing} missing ({self.where})")
        return (*values, *(named[name] for name in rest))

    def check(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs as arrays, checked against the model's types."""
        if len(values) != len(self.inputs):
            raise InputCountError(f"expected {len(self.inputs)} inputs {self.inputs}, got {len(values)} ({self.where})")
        symbols: dict[str, tuple[int, str]] = {}
        return tuple(self._check_one(name, value, symbols) for name, value in zip(self.inputs, values, strict=True))

    def _check_one(self, name: str, value: Any, symbols: dict[str, tuple[int, str]]) -> Any:
        kind = self.model.graph.types[name]
        if kind.sequence or kind.optional:
            return as_object(value, kind, f"input {name!r} of the {self.where}")
        array = as_array(value, kind.dtype, f"input {name!r} of the {self.where}")
        if kind.shape is None:
            return array
        if array.ndim != len(kind.shape):
            raise InputRankError(f"expected {len(kind.shape)} dimensions {list(kind.shape)} for input {name!r}, got {array.ndim} "
                                 f"{list(array.shape)} ({self.where}){_one_hot_advice(kind, array)}")
        for axis, (want, have) in enumerate(zip(kind.shape, array.shape, strict=True)):
            known = (want, name) if isinstance(want, int) else symbols.setdefault(want, (have, name))
            if not self.empty and (have == 0 and known[0] != 0 or array.size == 0 and have == 0):
                raise EmptyBatchError(f"expected at least one element, got shape {list(array.shape)} for input {name!r} ({self.where})")
            if known[0] != have:
                origin = "" if isinstance(want, int) else f" (as {want!r} of input {known[1]!r})"
                raise InputShapeError(f"expected size {known[0]}{origin} along axis {axis} of input {name!r}, got {have} in {list(array.shape)} "
                                      f"({self.where}){_opening_advice(name, kind.shape, array.shape, axis)}")
        return array

    def _program_for(self, given: Mapping[str, Any]) -> Program:
        objects = [name for name in self.inputs if _is_object(given[name])]
        key: tuple[Any, ...] = tuple(None if name in objects else (given[name].shape, given[name].dtype) for name in self.inputs)
        if self.known:
            key += tuple(given[name].tobytes() for name in self.known)
        program = self._programs.get(key) or find_program(self._templates, tuple(given[name] for name in self.inputs))
        if program is None:
            try:
                program = self._plan(given, objects)
            except InputValuesRequired as error:
                if set(error.names) <= set(self.known):
                    raise
                self.known += [name for name in error.names if name not in self.known]
                self.forget()
                return self._program_for(given)
        if program.template is None:
            self._programs[key] = program
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
            self._programs.move_to_end(key)
        self.handle.retained_bytes = max(self.handle.retained_bytes, program.retained_bytes)
        bind_arena(program, self.handle)
        return program

    def _plan(self, given: Mapping[str, Any], objects: Sequence[str]) -> Program:
        kinds = {name: TensorType.of(given[name]) for name in self.inputs if name not in self.known and name not in objects}
        axes = self._open_axes(kinds)
        tried = bool(axes) and not objects and not self.known and self.uses_templates
        if tried:
            try:
                program = self._plan_for_all(kinds, axes)
            except Exception:  # errors are reported by planning with plain numbers below, which also succeeds where only symbolic sizes fail
                program = None
            if program is not None:
                return program
        known = {name: given[name].copy() for name in self.known}
        program = plan_program(self.model, kinds, self.fixed, self._tensors(given), self.handle, self.commits, known, objects=objects, deferred=self.deferred)
        self.uses_templates = self.uses_templates and not tried
        return program

    def _open_axes(self, kinds: Mapping[str, TensorType]) -> dict[tuple[str, int], str]:
        """Return (input, axis) -> symbol for the dynamic dimensions of the inputs; nothing where a rank is unknown or an input is empty."""
        declared = {name: self.model.graph.types.get(name, kind).shape for name, kind in kinds.items()}
        if None in declared.values() or any(kind.count == 0 for kind in kinds.values()):
            return {}
        return {(name, axis): size for name, shape in declared.items() for axis, size in enumerate(shape or ()) if isinstance(size, str)}

    def _plan_for_all(self, kinds: Mapping[str, TensorType], axes: Mapping[tuple[str, int], str]) -> Program | None:
        """Plan a program for these sizes together with the template for other sizes; None for a program that calls Python, which needs plain numbers."""
        symbols = list(dict.fromkeys(axes.values()))
        numbers = {symbol: kinds[name].sizes[axis] for (name, axis), symbol in axes.items()}
        sizes = SymbolicSizes(tuple(numbers[symbol] for symbol in symbols))
        number_of = {place: symbols.index(symbol) for place, symbol in axes.items()}
        types = {name: TensorType(kind.dtype, tuple(sizes.symbol(number_of[name, axis]) if (name, axis) in axes else size
                                                    for axis, size in enumerate(kind.sizes))) for name, kind in kinds.items()}
        program = plan_program(self.model, types, self.fixed, self.outputs, self.handle, self.commits, deferred=self.deferred)
        if any(isinstance(step, PythonStep) for step in program.python_steps.values()):
            return None
        open_axes = [(list(kinds).index(name), axis, number) for (name, axis), number in number_of.items()]
        ProgramTemplate(program, sizes, open_axes, program.plan.at_sizes, self._templates)
        return program

    def forget(self) -> None:
        """Drop all programs."""
        self._programs.clear()
        self._templates.clear()
        self.last = None

    def refusal(self, program: Program, values: tuple[Any, ...]) -> Exception:
        """Return the error to raise when a step of one of this runner's programs failed on these inputs."""
        given = dict(zip(self.inputs, values, strict=True))
        step = program.plan.steps[program.failed_step]
        while step.iteration is not None and program.failed_status != TERMINATED:
            program = step.iteration.body
            step = program.plan.steps[program.failed_step]
        if program.failed_status == TERMINATED:
            return TerminatedError(f"expected to finish, the run was terminated by its RunOptions before node {step.node.name!r} ({self.where})")
        if program.failed_status == PYTHON_FAILED:
            cause = program.python_error()
            return OperatorFailedError(f"expected {step.node.domain}::{step.node.op_type} to run, got {type(cause).__name__}: {cause} "
                                        f"(node {step.node.name!r}, {self.where})")
        step = step.checks or step
        guard = step.guard
        name = step.inputs[0]
        found = ""
        if guard is not None and name in given:
            array = np.asarray(given[name])
            bad = array[(array < guard.low) | (array >= guard.high)]
            if guard.ignored is not None:
                bad = bad[bad != guard.ignored]
            found = f", got {bad.ravel()[0]}" if bad.size else ""
        limits = f"[{guard.low}, {guard.high})" if guard is not None else "its axis"
        kind = LabelRangeError if guard is not None and guard.is_label else IndexRangeError
        return kind(f"expected every element of {name!r} in {limits}{found} (operator {step.node.op_type}, node {step.node.name!r}, {self.where})")
