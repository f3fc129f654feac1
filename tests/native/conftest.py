"""The native library installed into a folder, and programs compiled against it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ortrain._native.installation import flags, install, library
from ortrain.errors import ArtifactNotFoundError
from tests.native.languages import EXAMPLES, write_artifacts
from tests.native.published import INCLUDE

NATIVE = Path(__file__).resolve().parents[2] / "ortrain" / "_native"
PROGRAMS = Path(__file__).resolve().parent / "programs"
ARTIFACTS = Path(__file__).resolve().parents[2] / "ortrain" / "conformance" / "artifacts" / "classifier"
SANITIZER = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g"]

Build = Callable[..., Path]
Run = Callable[..., str]


@pytest.fixture(scope="session")
def installation(tmp_path_factory) -> Path:
    """The folder of an installation."""
    try:
        library()
    except ArtifactNotFoundError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("native")
    install(folder)
    return folder


def compiler(name: str) -> str:
    """Return a compiler, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"the compiler {name} is not there")
    return found


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory) -> Path:
    """A folder with the artifacts and the data of the digits programs."""
    folder = tmp_path_factory.mktemp("artifacts")
    write_artifacts(folder)
    return folder


@pytest.fixture(scope="session")
def sanitizer(tmp_path_factory) -> list[str]:
    """The compiler's flags for the address sanitizer, none where it does not have one."""
    source = tmp_path_factory.mktemp("sanitizer") / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    program = source.with_suffix("")
    tried = subprocess.run([compiler("cc"), *SANITIZER, str(source), "-o", str(program)], capture_output=True, check=False)
    return SANITIZER if tried.returncode == 0 and subprocess.run([str(program)], check=False).returncode == 0 else []


@pytest.fixture(scope="session")
def sanitized(installation, sanitizer, tmp_path_factory) -> Path:
    """The folder of an installation whose library is compiled with the address sanitizer, so that its own errors of memory are found too."""
    headers = Path(sysconfig.get_paths()["include"])
    if not sanitizer or not (headers / "Python.h").exists():
        pytest.skip("the compiler has no address sanitizer, or Python's headers are not there")
    folder = tmp_path_factory.mktemp("sanitized")
    shutil.copytree(installation, folder, symlinks=True, dirs_exist_ok=True)
    source = NATIVE / "source"
    command = [compiler("cc"), "-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", *SANITIZER, f"-I{NATIVE / 'include'}", f"-I{headers}",
               *map(str, sorted(source.glob("*.c"))), "-shared", "-Wl,-soname,libonnxruntime.so.1", f"-Wl,--version-script={source / 'exports.map'}",
               "-o", str(folder / library().name), "-ldl", "-lpthread", "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def build(installation, tmp_path_factory) -> Build:
    """A function that compiles a program of the folder programs, or an example: build(name, published=False, folder=installation, extra=[...])."""

    def compiled(name: str, published: bool = False, folder: Path | None = None, extra: Sequence[str] = ()) -> Path:
        output = tmp_path_factory.mktemp("program") / Path(name).stem
        tool, standard = (compiler("c++"), "-std=c++17") if name.endswith(".cpp") else (compiler("cc"), "-std=gnu11")
        headers = ["-DPUBLISHED", f"-I{INCLUDE}"] if published else []
        linked = flags(folder or installation).split()
        source = next(place / name for place in (PROGRAMS, EXAMPLES) if (place / name).exists())
        command = [tool, standard, "-O1", "-Wall", *headers, str(source), "-o", str(output), *(SANITIZER if folder else []), *extra, *linked,
                   "-lpthread", "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        return output

    return compiled


@pytest.fixture
def run(tmp_path) -> Run:
    """A function that runs a program in a temporary folder and returns its output; it fails with the error output of the program."""

    def output_of(program: Path, *arguments: object, environment: dict[str, str] | None = None) -> str:
        # what Python allocates for its life is no leak
        settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ORTRAIN"))}
        settings |= {"ASAN_OPTIONS": "detect_leaks=0", "OPENBLAS_NUM_THREADS": "1"} | (environment or {})
        done = subprocess.run([str(program), *map(str, arguments)], cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
        return done.stdout

    return output_of
