"""Facts that must be stated in two places, for two languages or tools, are the same in both."""

import re
import tomllib
from pathlib import Path

import ortrain
from ortrain import dtypes
from ortrain._core import kernel_table
from ortrain._core.program_builder import MAX_AXES
from ortrain.conformance.drivers import LANGUAGES
from ortrain.ops.registry.optimizers import ALGORITHMS
from ortrain.ops.training import GEMM_UPDATE_INTS
from ortrain.runtime.state import DEFAULT_LEARNING_RATE
from ortrain.training.flat_buffers import BUCKET_BYTES

PACKAGE = Path(ortrain.__file__).parent
ROOT = PACKAGE.parent
KERNEL_HEADER = (PACKAGE / "_core" / "kernel.h").read_text(encoding="utf-8")


def test_element_types_of_the_kernels_are_onnx_numbers():
    found = {name.lower(): int(number) for name, number in re.findall(r"DTYPE_(\w+) = (\d+)", KERNEL_HEADER)}
    assert found and found == {name: dtypes.NUMBERS[name] for name in found}


def test_the_planner_knows_the_largest_rank_of_the_kernels():
    found = re.search(r"#define ORTRAIN_MAX_RANK (\d+)", KERNEL_HEADER)
    assert found is not None and int(found[1]) == MAX_AXES


def test_every_instruction_set_that_is_built_can_be_chosen():
    tables = re.findall(r"^\w+_SETS = \{\n(.*?)^\}", (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = [name for table in tables for name in reversed(re.findall(r'^    "(\w+)":', table, re.MULTILINE))]
    assert len(tables) == 3 and tuple(names) == kernel_table.INSTRUCTION_SETS
    assert {path.name for path in (PACKAGE / "_core" / "instruction_sets").iterdir() if (path / "__init__.py").exists()} == set(names)


def test_every_module_that_is_compiled_for_size_exists():
    listed = re.search(r"^COMPACT_MODULES = \{(.*?)\}", (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert listed is not None
    names = re.findall(r'"(\w+)"', listed[1])
    assert names and set(names) <= {path.stem for folder in ("_core", "_native") for path in (PACKAGE / folder).glob("*.pyx")}


def test_the_specification_states_the_default_learning_rate():
    operations = tomllib.loads((ROOT / "bindings_spec" / "operations" / "training_session.toml").read_text(encoding="utf-8"))
    assert f"{DEFAULT_LEARNING_RATE:g}" in operations["get_learning_rate"]["doc"]


def test_the_specification_states_the_default_size_of_buckets():
    operations = tomllib.loads((ROOT / "bindings_spec" / "operations" / "training_session.toml").read_text(encoding="utf-8"))
    defaults = {re.search(r"bucket_bytes = (\d+)", operations["on_gradients_ready"][language]) for language in ("python", "csharp", "swift")}
    assert [int(found[1]) for found in defaults] == [BUCKET_BYTES] * 3


def test_every_language_of_the_specification_has_a_conformance_driver():
    drivers = {path.stem for path in (PACKAGE / "conformance" / "drivers").glob("*.py")} - {"__init__", "base"}
    assert drivers == set(LANGUAGES)


def test_the_version_is_stated_in_the_package_only():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ortrain.__version__"}


def test_every_optimizer_kernel_flushes_subnormal_numbers():
    assert {algorithm.kernel for algorithm in ALGORITHMS.values()} | {"gemm_update"} == kernel_table.OPTIMIZER_KERNELS


def test_fused_updates_number_optimizers_like_their_records():
    source = (PACKAGE / "_core" / "kernels" / "training" / "gemm_update.h").read_text(encoding="utf-8")
    table = re.search(r"GEMM_UPDATES\[\]\)\(const KernelArgs \*\) = \{(.*?)\};", source)
    assert table is not None
    numbered = sorted((algorithm.gemm_update, algorithm.kernel) for algorithm in ALGORITHMS.values() if algorithm.gemm_update is not None)
    assert numbered == list(enumerate(table[1].split(", ")))
    assert f"OPTIMIZER_INTS = {GEMM_UPDATE_INTS} }};" in source


def test_include_guards_of_the_kernels_are_named_after_their_files():
    wrong = {}
    for path in sorted((PACKAGE / "_core" / "kernels").rglob("*.h")):
        guards = re.findall(r"^#ifndef (\w+)\n#define \1$", path.read_text(encoding="utf-8"), re.MULTILINE)
        stem = path.stem.upper()
        if not set(guards) <= {f"ORTRAIN_{stem}_H", f"ORTRAIN_{path.parent.name.upper()}_{stem}_H"}:
            wrong[path.name] = guards
    assert wrong == {}
