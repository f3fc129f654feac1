from collections.abc import Callable
from typing import Any

KERNELS: dict[str, int]
PYTHON_FAILED: int

class PythonStep:
    error: BaseException
    def __init__(self, function: Callable[..., Any]) -> None: ...
