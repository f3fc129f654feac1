from typing import Any

import numpy as np

from ortrain._core.builtin_kernels import PythonStep
from ortrain._core.engine import EngineHandle
from ortrain._core.loop import Iteration
from ortrain._core.program_template import ProgramTemplate

TERMINATED: int

class Program:
    keep_alive: list[Any]
    arena_bytes: int
    step_names: list[str]
    plan: Any
    python_steps: dict[int, PythonStep | Iteration]
    failed_step: int
    failed_status: int
    first_write: int
    stoppable: int
    deferred_updates: int
    deferred_gradients: int
    held_bytes: int
    first_lost: int
    deferred_names: frozenset[str]
    input_names: list[str]
    template: ProgramTemplate | None
    places: list[tuple[int, int]]
    layout: tuple[Any, ...]
    def __init__(self, handle: EngineHandle) -> None: ...
    def cause(self) -> BaseException | None: ...
    def bind_arena(self, arena: np.ndarray) -> None: ...
    def room(self) -> int: ...
    def try_run(self, values: tuple[Any, ...], overwrite: bool = False, terminate: np.ndarray | None = None,
                out: list[np.ndarray | None] | None = None, complete: bool = True) -> list[np.ndarray] | None: ...
    def misfit(self, out: list[np.ndarray | None]) -> tuple[int, str, tuple[int, ...]] | None: ...
