from ortrain._core.program import Program

KERNELS: dict[str, int]

class LoopBody:
    body: Program
    scratch: int
    address: int
    error: BaseException | None
    def __init__(self, body: Program, is_loop: bool, trip_count: int, states: list[int], scan_inputs: list[int], scan_outputs: list[int],
                 is_reversed: list[int]) -> None: ...
