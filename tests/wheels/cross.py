"""Cross-compiles wheels for macOS and Windows, which nothing here can run.

    python -m tests.wheels.cross FOLDER [macos-arm64 macos-x86_64 windows-x86_64]

The compiler is Clang with the C libraries' headers and symbols of these systems, from the package ziglang; numpy's headers are those of its wheels. Python's
are those of this interpreter, whose types are as large on macOS; on Windows they take the configuration of Python's sources, which Debian's package manager
downloads. A wheel shows that all sources compile, and that what they call exists: Python's functions are looked up in this interpreter's, which on other
systems exports the same, and those of the system in the package."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.debian import unpack_source
from tests.wheels.checks import EPOCH, ROOT, SOURCES, copy, output

VERSION = f"{sys.version_info.major}{sys.version_info.minor}"
CONFIGURATION = "_sysconfigdata_cross"
COMPILER = """#!/bin/bash
# Clang for {triple}, to which processors have names with underscores.
arguments=("${{@/#-march=x86-64-v/-march=x86_64_v}}")
arguments=("${{arguments[@]/#-march=x86-64/-march=x86_64}}")
exec {python} -m ziglang cc -target {triple} {includes} "${{arguments[@]/#-march=armv8-a/-mcpu=generic}}"
"""


@dataclass(frozen=True)
class Target:
    """A system and a processor: the compiler's name of them, setuptools's, that of numpy's wheels, how modules are linked, and the end of their names."""

    triple: str
    platform: str
    numpy: str
    link: tuple[str, ...]
    suffix: str


MACOS_LINK = ("-shared", "-undefined", "dynamic_lookup")
TARGETS = {
    "macos-arm64": Target("aarch64-macos.11.0", "macosx-11.0-arm64", "macosx_14_0_arm64", MACOS_LINK, f".cpython-{VERSION}-darwin.so"),
    "macos-x86_64": Target("x86_64-macos.11.0", "macosx-11.0-x86_64", "macosx_14_0_x86_64", MACOS_LINK, f".cpython-{VERSION}-darwin.so"),
    "windows-x86_64": Target("x86_64-windows-gnu", "win-amd64", "win_amd64", ("-shared", f"-lpython{VERSION}"), f".cp{VERSION}-win_amd64.pyd"),
}


def write_python_headers(folder: Path, target: Target) -> Path:
    """Copy Python's headers, with the configuration of the target."""
    headers = folder / "python"
    shutil.copytree(sysconfig.get_path("include"), headers)
    if target.platform.startswith("win"):
        source = unpack_source("python3.13", "trixie", folder / "source")
        shutil.copy2(source / "PC" / "pyconfig.h.in", headers / "pyconfig.h")
    return headers


def write_import_library(folder: Path) -> None:
    """Write the library by which the linker of Windows learns what Python exports: what this interpreter does."""
    interpreter = Path(sysconfig.get_config_var("LIBDIR")) / sysconfig.get_config_var("INSTSONAME")
    listed = output(["nm", "-D", "--defined-only", str(interpreter if interpreter.suffix != ".a" else Path(sys.executable).resolve())])
    names = sorted(name for name in (line.split()[-1].split("@")[0] for line in listed.splitlines()) if name.startswith(("Py", "_Py")))
    definition = folder / "python.def"
    definition.write_text("\n".join([f"LIBRARY python{VERSION}.dll", "EXPORTS", *names, ""]))
    subprocess.run([sys.executable, "-m", "ziglang", "dlltool", "-m", "i386:x86-64", "-d", definition, "-l", folder / f"libpython{VERSION}.a"], check=True)


def make(folder: Path, target: Target) -> None:
    """Create what the build of a target needs in `folder`."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "numpy", "--no-deps", "--only-binary=:all:",
                    f"--platform={target.numpy}", "numpy>=2.0"], check=True)
    includes = [f"-I{write_python_headers(folder, target)}", f"-I{folder / 'numpy' / 'numpy' / '_core' / 'include'}"]
    if target.platform.startswith("win"):
        write_import_library(folder)
        includes.append(f"-L{folder}")
    compiler = folder / "compiler"
    compiler.write_text(COMPILER.format(triple=target.triple, python=sys.executable, includes=" ".join(includes)))
    compiler.chmod(0o755)
    variables = sysconfig.get_config_vars() | {
        "CC": str(compiler), "CFLAGS": "", "CCSHARED": "" if target.platform.startswith("win") else "-fPIC", "LDFLAGS": "", "OPT": "-DNDEBUG",
        "LDSHARED": " ".join([str(compiler), *target.link]), "EXT_SUFFIX": target.suffix, "SOABI": target.suffix.split(".")[1]}
    (folder / f"{CONFIGURATION}.py").write_text(f"build_time_vars = {variables!r}\n")


def build(folder: Path, target: Target) -> Path:
    """Compile the wheel of a target in `folder` and return it."""
    sources = copy(SOURCES, folder / "sources")
    subprocess.run([sys.executable, "setup.py", "-q", "bdist_wheel", f"--plat-name={target.platform}", f"--dist-dir={folder}"], cwd=sources, check=True,
                   env=os.environ | {"_PYTHON_SYSCONFIGDATA_NAME": CONFIGURATION, "_PYTHON_HOST_PLATFORM": target.platform, "PYTHONPATH": str(folder),
                                     "SOURCE_DATE_EPOCH": EPOCH})
    return next(folder.glob("*.whl"))


def run_thread_pool(folder: Path) -> str:
    """Return what the thread pool prints when Wine, which has the functions of Windows, runs it. Raises CalledProcessError if it is wrong."""
    wine = shutil.which("wine64", path=f"{os.environ['PATH']}:/usr/lib/wine")
    if wine is None:
        return "not run without wine64"
    program = folder / "thread_pool.exe"
    subprocess.run([folder / "compiler", "-O2", f"-I{folder / 'sources' / 'ortrain' / '_core'}", ROOT / "tests" / "wheels" / "thread_pool.c", "-o", program],
                   check=True)
    return output([wine, str(program)], env=os.environ | {"WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all"}).strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.wheels.cross", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    options = parser.parse_args()
    for name in options.targets:
        folder = options.folder.resolve() / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder, TARGETS[name])
        wheel = build(folder, TARGETS[name])
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        if name.startswith("windows"):
            print(f"the thread pool in Wine: {run_thread_pool(folder)}", flush=True)


if __name__ == "__main__":
    main()
