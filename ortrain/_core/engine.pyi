import numpy as np

from ortrain._core.program import Program
from ortrain._core.sweep import Call

class EngineHandle:
    arena: np.ndarray | None
    recording: list[tuple[Program | Call, np.ndarray]] | None
    def __init__(self, workers: int = 1, seed: int = 0) -> None: ...
    def close(self) -> None: ...
    @property
    def workers(self) -> int: ...
    def after_fork(self) -> None: ...
    bfloat16_tiles: bool
    seed: int
    direct_convolution: bool
    recomputation: float
    held_bytes: int
    run_index: int

def load_blas() -> None: ...
def load_products() -> None: ...
def call_kernel(address: int, inputs: list[np.ndarray | None], outputs: list[np.ndarray | None], ints: tuple[int, ...] = (),
                floats: tuple[float, ...] = (), scratch: int = 0, handle: EngineHandle | None = None) -> int: ...
