"""A module imports only from lower layers and its own room, nothing imports in a circle, and importing the API stays light."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import layers
from tests.layers import NEVER, PACKAGE, ROOT, room_of, rooms_imported

ROW_OF = {room: number for number, row in enumerate(layers.layers()) for room in row}
MAX_MODULES_AT_THE_TOP = 12


@pytest.mark.parametrize("path", layers.sources(), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_module_imports_only_from_lower_layers(path):
    room = room_of(path)
    assert room in ROW_OF, f"{room} has no layer: give it one in docs/architecture.md"
    for imported in rooms_imported(path) - {room}:
        assert imported in ROW_OF, f"{imported} has no layer"
        assert ROW_OF[imported] < ROW_OF[room], f"{room} may not import {imported}"
        assert imported not in NEVER.get(room, ()), f"{room} may not import {imported}"


def test_no_modules_import_each_other_in_a_circle():
    assert layers.circles(layers.module_graph()) == []


def test_a_circle_is_found():
    assert layers.circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_every_layer_of_the_map_exists():
    rooms = {room_of(path) for path in layers.sources()}
    assert {room for row in layers.layers() for room in row} == rooms


def test_few_modules_lie_at_the_top():
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_MODULES_AT_THE_TOP


def test_the_map_can_be_printed(capsys):
    layers.print_map()
    assert "_core" in capsys.readouterr().out


def test_the_reader_of_imports_sees_cimports(tmp_path):
    source = tmp_path / "x.pyx"
    lines = ["from ortrain._core.kernel cimport (Engine,", "    Tensor)", "from ortrain cimport dtypes as d", "cimport ortrain.ir.graph",
             "import a, ortrain.ops"]
    source.write_text("\n".join(lines))
    assert rooms_imported(source) == {"_core", "dtypes", "ir", "ops"}


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
