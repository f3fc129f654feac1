"""The map of the package: which room stands on which. `python -m tests.layers` prints it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ortrain"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
NEVER = {"ops": {"_core"}, "formats": {"_core"}}
"""Stricter than the rows: operators name kernels by string, and the plan joins the two."""

CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+c?import\s+(.+)|c?import\s+(.+))$", re.MULTILINE)


def layers() -> list[set[str]]:
    """The rows of the block `layers` of docs/architecture.md, lowest first."""
    block = re.search(r"^```layers\n(.*?)^```", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None, "docs/architecture.md has no block ```layers"
    return [set(row.split()) for row in block[1].splitlines()]


def sources() -> list[Path]:
    """All sources of the package but its own __init__, which loads everything lazily."""
    found = (path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pxi"))
    return sorted(path for path in found if path.with_suffix("") != PACKAGE / "__init__")


def room_of(path: Path) -> str:
    """The module or package directly below ortrain."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(path.suffix)


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path, typing_too: bool = True) -> Iterator[tuple[str, str]]:
    """(module, imported name or "") of every import and cimport, wherever it stands; those under `if TYPE_CHECKING` only if wanted."""
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".py", ".pyi"):
        yield from _cython_imports(text)
        return
    for node in _nodes(ast.parse(text), typing_too):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: expected absolute imports"
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def _cython_imports(text: str) -> Iterator[tuple[str, str]]:
    for module, names, plain in CYTHON_IMPORT.findall(text):
        if module:
            yield from ((module, name.split()[0]) for name in names.strip("( \\").split(",") if name.split())
        else:
            yield from ((name.split()[0], "") for name in plain.split(","))


def _nodes(tree: ast.AST, typing_too: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not typing_too:
            continue
        yield node
        yield from _nodes(node, typing_too)


def rooms_imported(path: Path) -> set[str]:
    """The rooms of ortrain that a source imports from, for types alone or in earnest."""
    found = set()
    for module, name in imports_of(path):
        parts = module.split(".")
        if parts[0] == "ortrain":
            found.add(parts[1] if len(parts) > 1 else name)
    return {room for room in found if room and not room.startswith("__version")}


def module_graph() -> dict[str, set[str]]:
    """Module -> the modules of ortrain that it imports when it runs, a package's __init__ under the package's name."""
    known = {module_of(path) for path in sources()}
    graph: dict[str, set[str]] = {name: set() for name in known}
    for path in sources():
        if path.suffix == ".pyi":
            continue
        for module, name in imports_of(path, typing_too=False):
            target = f"{module}.{name}" if f"{module}.{name}" in known else module
            if target in known and target != module_of(path):
                graph[module_of(path)].add(target)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other (Tarjan's strongly connected components of more than one module)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return found


def print_map() -> None:
    """Print each row, highest first: its rooms with their modules and lines, and the rooms that each imports from."""
    imported: dict[str, set[str]] = {}
    size: dict[str, tuple[int, int]] = {}
    for path in (path for path in [*sources(), *PACKAGE.rglob("*.h")] if path.suffix != ".pyi"):
        room = room_of(path)
        modules, lines = size.get(room, (0, 0))
        size[room] = modules + 1, lines + len(path.read_text(encoding="utf-8").splitlines())
        if path.suffix != ".h":
            imported.setdefault(room, set()).update(rooms_imported(path) - {room})
    rows = layers()
    for number in range(len(rows), 0, -1):
        for room in sorted(rows[number - 1], key=str.lower):
            modules, lines = size.get(room, (0, 0))
            print(f"{number:3d}  {room:18s} {modules:4d} files {lines:6d} lines  -> {', '.join(sorted(imported.get(room, ())))}")


if __name__ == "__main__":
    print_map()
