"""The tables of functions: no slot moves, none is null, and what is not done says so."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ortrain._native.installation import library
from ortrain.capi import OrtTrainingExtensions
from ortrain.errors import ArtifactNotFoundError
from tests.native.conftest import ARTIFACTS, compiler
from tests.native.published import INCLUDE, needs_published

ROOT = Path(__file__).resolve().parents[2]
SOURCE, OWN_INCLUDE = ROOT / "ortrain" / "_native" / "source", ROOT / "ortrain" / "_native" / "include"
NOT_IMPLEMENTED = 9


@pytest.fixture(scope="module")
def native():
    """The renderer of the tables, with the function that reads native.toml."""
    sys.path.insert(0, str(ROOT / "bindings_spec"))
    try:
        yield importlib.import_module("render.native")
    finally:
        sys.path.remove(str(ROOT / "bindings_spec"))
        for name in [name for name in sys.modules if name.split(".")[0] == "render"]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def facts(native):
    return native.load()


def compile_assertions(tmp_path, native, facts, include: Path, header: str, language: str) -> None:
    """Compile a source that asserts position and signature of every slot, and the value of every enumerator, against a header of ONNX Runtime's interface and
    that of ortrain's own table."""
    lines = ["#include <stddef.h>", f'#include "{header}"', f'#include "{OWN_INCLUDE / "ortrain_extensions.h"}"']
    if language == "c++":
        lines += ["#include <type_traits>", "#define SAME(a, b) std::is_same<a, b>::value", "#define ASSERT static_assert"]
    else:
        lines += ["#define SAME(a, b) __builtin_types_compatible_p(a, b)", "#define ASSERT _Static_assert"]
    for slot in native.slots(facts):
        kind = f"__typeof__((({slot.table} *)0)->{slot.name})" if language == "c" else f"decltype({slot.table}::{slot.name})"
        lines.append(f"typedef {slot.returns} (ORT_API_CALL *{slot.function})({slot.parameters or 'void'});")
        lines.append(f'ASSERT(offsetof({slot.table}, {slot.name}) == {slot.position} * sizeof(void *), "{slot.name}");')
        lines.append(f'ASSERT((SAME({kind}, {slot.function})), "the signature of {slot.name}");')
    for members in facts["enums"].values():
        lines += [f'ASSERT({member} == {value}, "{member}");' for member, value in members.items()]
    lines += [f'ASSERT(offsetof({name}, {member}) / sizeof(void *) == {place}, "{member}");' for name, parts in facts["structures"].items()
              for place, member in enumerate(parts)]
    source = tmp_path / ("slots.c" if language == "c" else "slots.cpp")
    source.write_text("\n".join([*lines, "int main(void) { return 0; }", ""]))
    tool, standard = ("cc", "-std=gnu11") if language == "c" else ("c++", "-std=c++17")
    done = subprocess.run([compiler(tool), standard, "-fsyntax-only", f"-I{include}", str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def test_the_order_of_the_slots_agrees_with_the_last_slot_of_every_version(facts):
    names = list(facts["OrtApi"])
    assert len(names) == 280 and len(facts["OrtTrainingApi"]) == 33
    for version, last in facts["last_slots"]["versions"].items():
        assert names.index(last) == facts["last_slots"]["offsets"][version], f"version {version} ends with {last}"


@pytest.mark.parametrize("language", ["c", "c++"])
def test_every_slot_of_the_own_header_has_its_place_and_signature(tmp_path, native, facts, language):
    compile_assertions(tmp_path, native, facts, OWN_INCLUDE, "ortrain_c_api.h", language)


@needs_published
def test_every_slot_of_the_published_header_has_its_place_and_signature(tmp_path, native, facts):
    compile_assertions(tmp_path, native, facts, INCLUDE, "onnxruntime_training_c_api.h", "c")


def test_the_tables_of_training_are_complete(native, facts):
    for table in ("OrtTrainingApi", "OrtTrainingExtensions"):
        assert {slot.state for slot in native.slots(facts, table)} == {"done"}


def test_the_table_of_extensions_has_the_functions_of_the_c_facade(native, facts):
    slots = {slot.name: slot.names for slot in native.slots(facts, "OrtTrainingExtensions")}
    functions = {name: list(inspect.signature(function).parameters) for name, function in inspect.getmembers(OrtTrainingExtensions, inspect.isfunction)}
    assert slots == functions


def test_the_page_on_the_native_library_counts_the_slots(native, facts):
    page = (ROOT / "docs" / "native.md").read_text(encoding="utf-8")
    for state in native.STATES:
        assert f"| {state} | {sum(slot.state == state for table in native.PUBLISHED for slot in native.slots(facts, table))} |" in page


def test_every_slot_that_is_done_has_a_function_in_the_sources(native, facts):
    text = "".join(path.read_text() for path in SOURCE.glob("*.c") if path.name != "tables.c")
    macros = ("Count", "Name", "TypeInfo", "GetProducerName", "GetGraphName", "GetDomain", "GetDescription", "GetGraphDescription")
    for slot in native.slots(facts):
        if slot.state == "done" and not slot.name.endswith(macros):
            assert f" {slot.function}(" in text, slot.name


class Tables:
    """The tables of the library in this process, which Python has loaded: the library joins the interpreter."""

    def __init__(self, path: Path, native, facts) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p)
        base = self.library.OrtGetApiBase()
        get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(base[0])
        self.slots = {slot.name: slot for slot in native.slots(facts)}
        self.addresses = self.read(get_api(19), native.slots(facts, "OrtApi"))
        training = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(self.addresses["GetTrainingApi"])
        self.addresses |= self.read(training(19), native.slots(facts, "OrtTrainingApi"))
        self.library.OrtGetTrainingExtensions.restype = ctypes.c_void_p
        self.addresses |= self.read(self.library.OrtGetTrainingExtensions(1), native.slots(facts, "OrtTrainingExtensions"))

    @staticmethod
    def read(table, slots) -> dict[str, int]:
        slots = list(slots)
        array = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        return {slot.name: array[slot.position] for slot in slots}

    def call(self, name: str, *arguments, result=ctypes.c_void_p):
        """Call a function; arguments are pointers or integers."""
        return ctypes.CFUNCTYPE(result, *[ctypes.c_void_p] * len(arguments))(self.addresses[name])(*arguments)

    def message(self, status) -> tuple[int, str]:
        """Return the code and message of a status, which is released."""
        code = self.call("GetErrorCode", status, result=ctypes.c_int)
        text = self.call("GetErrorMessage", status, result=ctypes.c_char_p).decode()
        self.call("ReleaseStatus", status)
        return code, text


@pytest.fixture(scope="module")
def tables(native, facts):
    try:
        return Tables(library(), native, facts)
    except ArtifactNotFoundError as error:
        pytest.skip(str(error))


def test_no_slot_is_null(tables):
    assert not [name for name, address in tables.addresses.items() if not address]


def test_every_refused_function_names_itself_in_its_status(tables):
    refused = [slot for slot in tables.slots.values() if slot.state == "refused"]
    assert len(refused) == 98
    for slot in refused:
        code, text = tables.message(tables.call(slot.name, *[None] * len(slot.names)))
        assert code == NOT_IMPLEMENTED and text == f"{slot.name} is not implemented: {slot.why}"


def test_every_function_that_takes_handles_refuses_null_pointers(tables):
    for slot in tables.slots.values():
        if slot.state == "refused" or slot.returns != "OrtStatus*" or not slot.parameters.lstrip("const ").startswith("Ort"):
            continue
        if slot.name in ("ReleaseAvailableProviders", "CreateStatus") or slot.parameters.startswith(("OrtLoggingLevel", "OrtAllocatorType", "OrtArenaCfg**")):
            continue
        status = tables.call(slot.name, *[None] * len(slot.names))
        assert status is not None, slot.name
        assert tables.message(status)[0] == 2, slot.name


def test_a_release_of_nothing_does_nothing(tables):
    for slot in tables.slots.values():
        if slot.returns == "void" and slot.name.startswith("Release"):
            tables.call(slot.name, *[None] * len(slot.names), result=None)


def test_the_library_joins_the_interpreter_of_a_python_host(tables):
    assert tables.call("SetSeed", 5) is None
    from ortrain.runtime.seed import current_seed, set_seed

    assert current_seed() == 5
    set_seed(0)


def test_threads_of_a_python_host_call_the_library_at_the_same_time(tables):
    failures = []

    def load() -> None:
        state = ctypes.c_void_p()
        path = ctypes.create_string_buffer(str(ARTIFACTS / "checkpoint").encode())
        for _ in range(20):
            status = tables.call("LoadCheckpoint", ctypes.addressof(path), ctypes.addressof(state))
            if status is not None:
                failures.append(tables.message(status))
            tables.call("ReleaseCheckpointState", state.value, result=None)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
