"""The layers of ortrain and the imports between its top-level packages. `python -m tests.layers` prints them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ortrain"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
NEVER = {"ops": {"_core"}, "formats": {"_core"}}
"""Imports that are forbidden although the rows allow them: operators name kernels by string, and the plan looks them up."""

CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+c?import\s+(.+)|c?import\s+(.+))$", re.MULTILINE)


def layers() -> list[set[str]]:
    """Return the rows of the block `layers` in docs/architecture.md, lowest first."""
    block = re.search(r"^```layers\n(.*?)^```", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None, "docs/architecture.md has no block ```layers"
    return [set(row.split()) for row in block[1].splitlines()]


def sources() -> list[Path]:
    """Return all source files except ortrain/__init__.py, which imports everything lazily."""
    found = (path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pxi"))
    return sorted(path for path in found if path.with_suffix("") != PACKAGE / "__init__")


def package_of(path: Path) -> str:
    """Return the module or package directly below ortrain that contains a source file."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(path.suffix)


def module_of(path: Path) -> str:
    """Return the dotted module name of a source file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path, typing_too: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (module, imported name or "") of all imports and cimports, also in functions. typing_too: include those under `if TYPE_CHECKING`."""
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


def imported_packages(path: Path) -> set[str]:
    """Return the top-level packages that a source file imports from, including imports for types only."""
    found = set()
    for module, name in imports_of(path):
        parts = module.split(".")
        if parts[0] == "ortrain":
            found.add(parts[1] if len(parts) > 1 else name)
    return {package for package in found if package and not package.startswith("__version")}


def module_graph() -> dict[str, set[str]]:
    """Return module -> the modules of ortrain that it imports at run time; a package's __init__ has the name of the package."""
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


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other: strongly connected components with several modules (Tarjan's algorithm)."""
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
    """Print the rows, highest first: each top-level package with its files, lines and the packages that it imports from."""
    imported: dict[str, set[str]] = {}
    size: dict[str, tuple[int, int]] = {}
    for path in (path for path in [*sources(), *PACKAGE.rglob("*.h")] if path.suffix != ".pyi"):
        package = package_of(path)
        modules, lines = size.get(package, (0, 0))
        size[package] = modules + 1, lines + len(path.read_text(encoding="utf-8").splitlines())
        if path.suffix != ".h":
            imported.setdefault(package, set()).update(imported_packages(path) - {package})
    rows = layers()
    for number in range(len(rows), 0, -1):
        for package in sorted(rows[number - 1], key=str.lower):
            modules, lines = size.get(package, (0, 0))
            print(f"{number:3d}  {package:18s} {modules:4d} files {lines:6d} lines  -> {', '.join(sorted(imported.get(package, ())))}")


if __name__ == "__main__":
    print_map()
