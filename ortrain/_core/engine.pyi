import numpy as np

from ortrain._core.optimizer_update import BoundKernel
from ortrain._core.program import Program

class EngineHandle:
    arena: np.ndarray | None
    recording: list[tuple[Program | BoundKernel, np.ndarray]] | None
    def __init__(self, workers: int = 1, seed: int = 0) -> None: ...
    def close(self) -> None: ...
    @property
    def workers(self) -> int: ...
    def after_fork(self) -> None: ...
    amx: bool
    seed: int
    winograd: bool
    elementwise_fusion: bool
    rematerialization: float
    retained_bytes: int
    run_index: int
    @property
    def n_runs(self) -> int: ...

def load_blas() -> None: ...
def load_gemm() -> None: ...
def call_kernel(address: int, inputs: list[np.ndarray | None], outputs: list[np.ndarray | None], ints: tuple[int, ...] = (),
                floats: tuple[float, ...] = (), scratch: int = 0, handle: EngineHandle | None = None) -> int: ...
