"""Compiles a Python for musl, builds ortrain's wheel with it, and runs tests with what the wheel installs, away from the sources.

    python -m tests.wheels.musl [FOLDER] [--tests test_recorded_runs.py ...]

Needs auditwheel, patchelf and Debian's musl-tools, build-essential and package manager. Python and zlib are compiled from Debian's sources, because no package
has a Python for musl; numpy and Cython have wheels for it, which run from musl 1.2.4, so the dynamic linker is a newer one than that of musl-tools. onnx has no
wheel, so the tests are those that need no onnx."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tests.debian import download_package, unpack_source
from tests.wheels.checks import EPOCH, ROOT, SOURCES, copy, passes_installed, repair
from tests.wheels.interpreters import RELEASE, VERSION, install_python, run

COMPILER = "musl-gcc"
NAME_OF_LIBRARY = "libc.musl-x86_64.so.1"
"""The name by which wheels for musl refer to the C library, as on Alpine, where they are made; Debian's has another."""
WRAPPER = """#!/bin/sh
exec {compiler} -L{names} "$@"
"""
LINKER = "usr/lib/x86_64-linux-musl/libc.so"
"""Of the package musl, with the library itself."""
PLATFORM = "musllinux_1_2_x86_64"
BUILD_REQUIREMENTS = ["setuptools>=77", "wheel", "cython>=3.1", "numpy>=2.0"]
REQUIREMENTS = ["numpy", "flatbuffers", "pytest", "pytest-xdist", "hypothesis", "jsonschema"]
DEFAULT_TESTS = ["core/test_optimizer_kernels.py", "core/test_optimizer_algorithms.py", "core/test_symbolic.py", "conformance/test_facades.py",
                 "conformance/test_protocol.py", "conformance/test_runner.py", "formats/test_checkpoint.py", "formats/test_checkpoint_folder.py",
                 "test_values.py", "test_input_gradients.py", "test_recorded_runs.py"]


def compile_python(folder: Path) -> None:
    """Compile zlib and Python, and install them in `folder` with the dynamic linker."""
    (folder / "apt").mkdir()
    subprocess.run(["dpkg-deb", "-x", download_package("musl", RELEASE, folder / "apt"), folder], check=True)
    zlib = unpack_source("zlib", RELEASE, folder / "zlib")
    run("./configure", "--static", f"--prefix={folder}", folder=zlib, CC=COMPILER, CFLAGS="-O2 -fPIC")
    run("make", "install", folder=zlib)
    source = unpack_source(f"python{VERSION}", RELEASE, folder / "python")
    configure = source / "configure"           # the compiler is Debian's, and answers with the name of another platform
    configure.write_text(configure.read_text().replace("$($CC --print-multiarch 2>/dev/null)", "x86_64-linux-musl"))
    install_python(source, folder, "--without-ensurepip", CC=COMPILER, CPPFLAGS=f"-I{folder / 'include'}",
                   LDFLAGS=f"-L{folder / 'lib'} -Wl,-dynamic-linker,{folder / LINKER}", PKG_CONFIG_LIBDIR=str(folder / "lib" / "pkgconfig"))


def write_compiler(folder: Path) -> Path:
    """Return a compiler that links with a library of Alpine's name, which has no functions: shared libraries find those when they are loaded."""
    compiler = folder / "alpine" / COMPILER
    compiler.parent.mkdir(exist_ok=True)
    run(COMPILER, "-shared", "-nostdlib", f"-Wl,-soname,{NAME_OF_LIBRARY}", "-x", "c", "/dev/null", "-o", compiler.parent / "libc.so", folder=folder)
    compiler.write_text(WRAPPER.format(compiler=COMPILER, names=compiler.parent))
    compiler.chmod(0o755)
    return compiler


def install(target: Path, *requirements: str | Path, platform: str = PLATFORM) -> None:
    """Install packages for the Python for musl in `target`."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", target, "--only-binary=:all:", "--implementation=cp",
                    f"--python-version={VERSION}", f"--platform={platform}", *requirements], check=True)


def make(folder: Path) -> Path:
    """Return the Python for musl, with what builds and tests need beside it, creating them in `folder` if necessary."""
    marker = folder / "ready"
    if not marker.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        compile_python(folder)
        install(folder / "build_site", *BUILD_REQUIREMENTS)
        install(folder / "site", *REQUIREMENTS)
        marker.write_text("ok\n")
    return folder / "bin" / f"python{VERSION}"


def build(python: Path, folder: Path) -> Path:
    """Build the wheel in `folder` and return it."""
    sources, wheels = folder / "sources", folder / "wheels"
    for old in (sources, wheels):
        shutil.rmtree(old, ignore_errors=True)
    copy(SOURCES, sources)
    compiler = write_compiler(folder)
    run(python, "setup.py", "-q", "bdist_wheel", f"--dist-dir={wheels}", folder=sources, PYTHONPATH=str(folder / "build_site"), SOURCE_DATE_EPOCH=EPOCH,
        CC=str(compiler), LDSHARED=f"{compiler} -shared")
    return next(wheels.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.wheels.musl", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "musl")
    parser.add_argument("--tests", nargs="*", default=DEFAULT_TESTS, help="files and folders of tests/ (default: %(default)s)")
    options = parser.parse_args()
    if missing := [tool for tool in (COMPILER, "apt-get", "make") if shutil.which(tool) is None]:
        raise SystemExit(f"expected {', '.join(missing)} on PATH")
    folder = options.folder.resolve()
    python = make(folder)
    wheel = repair(Path(sys.executable), build(python, folder), folder / "repaired")
    shutil.rmtree(folder / "installed", ignore_errors=True)
    install(folder / "installed", "--no-deps", wheel)
    sys.exit(not passes_installed(python, folder, wheel, f"{VERSION}, musl", options.tests))


if __name__ == "__main__":
    main()
