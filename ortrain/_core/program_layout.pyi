from typing import Any

from ortrain._core.program import Program

def layout_of(p: Program) -> tuple[Any, ...]: ...
