"""Modules import only from lower layers and their own package, no imports are circular, and importing the API stays light."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import layers
from tests.layers import NEVER, PACKAGE, ROOT, imported_packages, package_of

ROW_OF = {package: number for number, row in enumerate(layers.layers()) for package in row}
MAX_MODULES_AT_THE_TOP = 12


@pytest.mark.parametrize("path", layers.sources(), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_from_lower_layers(path):
    package = package_of(path)
    assert package in ROW_OF, f"{package} has no layer: add it to the block in docs/architecture.md"
    for imported in imported_packages(path) - {package}:
        assert imported in ROW_OF, f"{imported} has no layer"
        assert ROW_OF[imported] < ROW_OF[package], f"{package} may not import {imported}"
        assert imported not in NEVER.get(package, ()), f"{package} may not import {imported}"


def test_no_modules_import_each_other_in_a_cycle():
    assert layers.cycles(layers.module_graph()) == []


def test_a_cycle_is_found():
    assert layers.cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_every_layer_of_the_map_exists():
    packages = {package_of(path) for path in layers.sources()}
    assert {package for row in layers.layers() for package in row} == packages


def test_few_modules_are_directly_in_the_package():
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_MODULES_AT_THE_TOP


def test_the_map_can_be_printed(capsys):
    layers.print_map()
    assert "_core" in capsys.readouterr().out


def test_cimports_are_found(tmp_path):
    source = tmp_path / "x.pyx"
    lines = ["from ortrain._core.kernel cimport (Engine,", "    Tensor)", "from ortrain cimport dtypes as d", "cimport ortrain.ir.graph",
             "import a, ortrain.ops"]
    source.write_text("\n".join(lines))
    assert imported_packages(source) == {"_core", "dtypes", "ir", "ops"}


# ---- loaded modules

HEAVY = ("onnx.checker", "onnx.helper", "onnx.reference", "onnx.shape_inference", "onnx.version_converter", "scipy", "matplotlib", "tqdm", "onnxruntime")
ALLOWED = {"numpy", "onnx", "google", "ml_dtypes", "flatbuffers", "typing_extensions", "ortrain", "cython_runtime"}


def module_level_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the imports that run when a module is imported: those outside of functions and of `if TYPE_CHECKING`."""
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


def test_modules_that_the_api_loads_import_heavy_packages_lazily():
    """The test reads the sources, because some versions of onnx import their checker and helper themselves."""
    for module in modules_after("import ortrain.api"):
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        if not module.startswith("ortrain.") or not path.exists():
            continue
        for name in module_level_imports(ast.parse(path.read_text(encoding="utf-8"))):
            assert not any(f"{name}.".startswith(f"{heavy}.") for heavy in HEAVY), f"{module} imports {name} at once"


def test_importing_the_api_is_light():
    # counted are modules that ortrain loads in addition to numpy and onnx
    base = modules_after("import numpy, onnx, onnx.numpy_helper, onnx.external_data_helper, flatbuffers")
    added = modules_after("import ortrain.api") - base
    packages = {name.partition(".")[0] for name in added} - sys.stdlib_module_names
    packages = {name for name in packages if not name.startswith("_cython_")}
    assert packages <= ALLOWED
    assert not {name for name in added if name.startswith(("onnx.", "scipy"))}


def test_importing_the_package_loads_neither_numpy_nor_onnx():
    assert not {"numpy", "onnx", "scipy"} & modules_after("import ortrain")
