"""A module imports only from lower layers and from its own package; importing the API stays light."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ortrain"

# lowest first; the design's table, with the rows that building needed between them
LAYERS = [
    {"errors", "enums", "dtypes", "seed"},
    {"ir", "_core"},
    {"ops", "formats"},
    {"sequences"},
    {"loading", "fusion", "gradient"},
    {"specialising", "widening", "fused_training"},
    {"onnxblock", "plan"},
    {"artifacts", "state", "schedule", "values", "options"},
    {"parameters", "stages", "inference_model", "input_gradients", "binding"},
    {"optimizer", "runner", "profiling"},
    {"updates"},
    {"session", "inference_session"},
    {"doctor", "catalogue", "_facade_runtime", "backend"},
    {"api", "csharp", "swift", "objc", "capi"},
    {"drop_in"},
    {"trainer", "conformance"},
    {"cli"},
    {"__main__"},
]
LAYER_OF = {name: number for number, row in enumerate(LAYERS) for name in row}
# stricter than the table: operators name kernels by string, the plan joins the two
NEVER = {"ops": {"_core"}, "formats": {"_core"}}
# the package's own __init__ loads everything lazily
SOURCES = sorted(p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pxi") and p.parent / p.stem != PACKAGE / "__init__")

CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+c?import\s+(.+)|c?import\s+(.+))$", re.MULTILINE)


def unit_of(path: Path) -> str:
    """The module or package directly below ortrain."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(path.suffix)


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """(module, imported name or "") of every import and cimport, wherever it stands."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".pyi"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: expected absolute imports"
                yield from ((node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
    else:
        for module, names, plain in CYTHON_IMPORT.findall(text):
            if module:
                yield from ((module, name.split()[0]) for name in names.strip("( \\").split(",") if name.split())
            else:
                yield from ((name.split()[0], "") for name in plain.split(","))


def units_imported(path: Path) -> set[str]:
    found = set()
    for module, name in imports_of(path):
        parts = module.split(".")
        if parts[0] == "ortrain":
            found.add(parts[1] if len(parts) > 1 else name)
    return {unit for unit in found if unit and not unit.startswith("__version")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_from_lower_layers(path):
    unit = unit_of(path)
    assert unit in LAYER_OF, f"{unit} has no layer: give it one"
    for imported in units_imported(path) - {unit}:
        assert imported in LAYER_OF, f"{imported} has no layer"
        assert LAYER_OF[imported] < LAYER_OF[unit], f"{unit} may not import {imported}"
        assert imported not in NEVER.get(unit, ()), f"{unit} may not import {imported}"


def test_the_reader_of_imports_sees_cimports(tmp_path):
    source = tmp_path / "x.pyx"
    lines = ["from ortrain._core.kernel cimport (Engine,", "    Tensor)", "from ortrain cimport dtypes as d", "cimport ortrain.ir.graph",
             "import a, ortrain.ops"]
    source.write_text("\n".join(lines))
    assert units_imported(source) == {"_core", "dtypes", "ir", "ops"}


# ---- weight

HEAVY = ("onnx.checker", "onnx.helper", "onnx.reference", "onnx.shape_inference", "onnx.version_converter", "scipy", "matplotlib", "tqdm", "onnxruntime")
ALLOWED = {"numpy", "onnx", "google", "ml_dtypes", "flatbuffers", "typing_extensions", "ortrain", "cython_runtime"}


def module_level_imports(tree: ast.Module) -> Iterator[str]:
    """What runs when the module is imported: imports outside of functions and of `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def modules_after(code: str) -> set[str]:
    result = subprocess.run([sys.executable, "-c", f"{code}\nimport sys\nprint(*sorted(sys.modules))"], cwd=ROOT, capture_output=True, text=True,
                            check=True)
    return set(result.stdout.split())


def test_what_the_api_loads_imports_heavy_modules_only_where_they_are_used():
    """Looks at the sources: some versions of onnx import their checker and helper themselves."""
    for module in modules_after("import ortrain.api"):
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        if not module.startswith("ortrain.") or not path.exists():
            continue
        for name in module_level_imports(ast.parse(path.read_text(encoding="utf-8"))):
            assert not any(f"{name}.".startswith(f"{heavy}.") for heavy in HEAVY), f"{module} imports {name} at once"


def test_importing_the_api_is_light():
    # what counts is what ortrain adds to numpy and onnx
    base = modules_after("import numpy, onnx, onnx.numpy_helper, onnx.external_data_helper, flatbuffers")
    added = modules_after("import ortrain.api") - base
    packages = {name.partition(".")[0] for name in added} - sys.stdlib_module_names
    packages = {name for name in packages if not name.startswith("_cython_")}
    assert packages <= ALLOWED
    assert not {name for name in added if name.startswith(("onnx.", "scipy"))}


def test_importing_the_package_costs_nothing():
    assert not {"numpy", "onnx", "scipy"} & modules_after("import ortrain")
