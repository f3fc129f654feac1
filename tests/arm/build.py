"""Cross-compiles ortrain for arm64 into a folder beside the environment of tests.arm.environment.

    python -m tests.arm.build FOLDER [ENVIRONMENT_VARIABLE=VALUE ...]"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.arm.environment import COMPILER, ROOT, VERSION

CONFIGURATION = "_sysconfigdata__aarch64-linux-gnu"
"""The module in which Debian's arm64 Python keeps how it was compiled: names of compilers and of modules."""
PLATFORM = "linux-aarch64"
COPIED = ["ortrain", "bindings_spec", "tests", "benchmarks", "docs", "examples", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md",
          "pyproject.toml", "setup.py", "mkdocs.yml", "Makefile"]


def package(folder: Path) -> Path:
    """Return where the package and the tests are in the folder of an environment."""
    return folder.resolve() / "ortrain"


def copy_sources(target: Path) -> None:
    """Copy what the build and the tests read, without compiled modules; unchanged files keep their times, so that only changed modules are compiled again."""
    for name in COPIED:
        for source in [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")):
            copy = target / source.relative_to(ROOT)
            if source.is_dir() or "__pycache__" in source.parts or source.suffix == ".so" or source.name.startswith("libonnxruntime.so"):
                continue
            if copy.exists() and (copy.stat().st_mtime, copy.stat().st_size) == (source.stat().st_mtime, source.stat().st_size):
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def run_setup(folder: Path, sources: Path, *command: str, **variables: str) -> None:
    """Run a command of setup.py in `sources` for the environment in `folder`."""
    configuration, headers = folder / "configuration", folder / "root" / "usr" / "include"
    configuration.mkdir(exist_ok=True)
    shutil.copy2(folder / "root" / "usr" / "lib" / f"python{VERSION}" / f"{CONFIGURATION}.py", configuration)
    environment = os.environ | variables | {
        "_PYTHON_SYSCONFIGDATA_NAME": CONFIGURATION, "_PYTHON_HOST_PLATFORM": PLATFORM, "PYTHONPATH": str(configuration), "CC": COMPILER,
        "LDSHARED": f"{COMPILER} -shared", "CFLAGS": f"-I{headers}/python{VERSION} -I{headers}"}
    subprocess.run([sys.executable, "setup.py", "-q", *command], cwd=sources, env=environment, check=True)


def build(folder: Path, **variables: str) -> Path:
    """Compile ortrain for the environment in `folder` and return the folder with the package and the tests."""
    folder = folder.resolve()
    target = package(folder)
    copy_sources(target)
    run_setup(folder, target, "build_ext", "--inplace", **variables)
    return target


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), **dict(argument.split("=", 1) for argument in sys.argv[2:])))
