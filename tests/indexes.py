"""The indexes by which modules of kernels and of operators are imported on demand. `python -m tests.indexes` renders them from these modules."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter

from ortrain._core.kernel_table import instruction_set
from ortrain.ops.registry.record import REGISTRY
from tests.layers import PACKAGE, module_graph

KERNEL_INDEX = PACKAGE / "_core" / "kernel_modules.py"
OPERATOR_INDEX = PACKAGE / "ops" / "registry" / "operator_modules.py"
WIDTH = 152
"""Columns of a line after its indentation."""


def kernels_of_modules() -> dict[str, list[str]]:
    """Return module -> its kernels, for each module that has some."""
    names = sorted(path.stem for path in (PACKAGE / "_core" / "kernels").rglob("*.pyx"))
    found = {name: list(importlib.import_module(f"ortrain._core.instruction_sets.{instruction_set()}.{name}").KERNELS) for name in names}
    return {name: kernels for name, kernels in found.items() if kernels}


def operators_of_modules() -> dict[str, list[str]]:
    """Return module of ortrain.ops -> the operators that it registers, for each module that registers some. Needs a process that has imported none.

    A module is imported after those that it imports, so what its import adds is its own."""
    found = {}
    for module in TopologicalSorter(module_graph()).static_order():
        package, _, name = module.partition("ortrain.ops.")
        if package or not name:
            continue
        before = REGISTRY.registered()
        importlib.import_module(module)
        found[name] = sorted(f"{domain}::{op_type}" if domain else op_type for domain, op_type in REGISTRY.registered() - before)
    return {name: found[name] for name in sorted(found) if found[name]}


def kernel_index() -> str:
    """Return the text of ortrain/_core/kernel_modules.py."""
    return _text("The kernels of each module of an instruction set.", "KERNEL_MODULES", kernels_of_modules())


def operator_index() -> str:
    """Return the text of ortrain/ops/registry/operator_modules.py."""
    return _text("The operators that each module of ortrain.ops registers, with their domains.", "OPERATOR_MODULES", operators_of_modules())


def _text(summary: str, name: str, members: Mapping[str, Iterable[str]]) -> str:
    """Return a module that consists of one table: name -> several names."""
    lines = [f'"""{summary} Rendered by `python -m tests.indexes`."""', "", f"{name} = {{"]
    for key, values in members.items():
        lines += [f'    "{key}": (', *_wrapped(values), "    ),"]
    return "\n".join([*lines, "}", ""])


def _wrapped(values: Iterable[str]) -> list[str]:
    lines = [""]
    for value in values:
        if len(lines[-1]) + len(value) + 3 > WIDTH:
            lines.append("")
        lines[-1] += f'"{value}", '
    return [f"        {line.rstrip()}" for line in lines]


if __name__ == "__main__":
    KERNEL_INDEX.write_text(kernel_index(), encoding="utf-8")
    OPERATOR_INDEX.write_text(operator_index(), encoding="utf-8")
