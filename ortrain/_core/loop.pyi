from ortrain._core.program import Program

KERNELS: dict[str, int]

class Iteration:
    body: Program
    scratch: int
    address: int
    error: BaseException | None
    def __init__(self, body: Program, counts: bool, trips: int, states: list[int], scanned: list[int], collected: list[int],
                 backwards: list[int]) -> None: ...
