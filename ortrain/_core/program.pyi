from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ortrain._core.builtin_kernels import PythonStep
from ortrain._core.engine import EngineHandle
from ortrain._core.loop import LoopBody
from ortrain._core.program_template import ProgramTemplate

TERMINATED: int

class Program:
    keep_alive: list[Any]
    arena_bytes: int
    step_names: list[str]
    plan: Any
    python_steps: dict[int, PythonStep | LoopBody]
    failed_step: int
    failed_status: int
    first_write_step: int
    n_interruptible_steps: int
    deferred_updates_start: int
    deferred_gradients_start: int
    retained_bytes: int
    first_clobbering_step: int
    deferred_names: frozenset[str]
    input_names: list[str]
    template: ProgramTemplate | None
    block_extents: list[tuple[int, int]]
    def __init__(self, handle: EngineHandle) -> None: ...
    def python_error(self) -> BaseException | None: ...
    def bind_arena(self, arena: np.ndarray) -> None: ...
    def required_arena_bytes(self) -> int: ...
    def try_run(self, values: tuple[Any, ...], overwrite: bool = False, terminate: np.ndarray | None = None,
                out: list[np.ndarray | None] | None = None, all_gradients: bool = True) -> list[np.ndarray] | None: ...
    def try_run_watched(self, values: tuple[Any, ...], overwrite: bool, terminate: np.ndarray | None, out: list[np.ndarray | None] | None,
                        watched: list[np.ndarray], ready: Callable[[int], None]) -> list[np.ndarray] | Literal[False] | None: ...
    def end_of_use(self, array: np.ndarray) -> int: ...
    def fits_outputs(self, out: list[Any]) -> bool: ...
    def find_output_mismatch(self, out: list[np.ndarray | None]) -> tuple[int, str, tuple[int, ...]] | None: ...
