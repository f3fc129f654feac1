"""Packs what tests.arm.build compiles as a wheel for arm64, installs it beside an emulated Python, and runs tests there, away from the sources.

    python -m tests.arm.wheel [FOLDER] [--tests core/test_threads.py ...]

Needs auditwheel and patchelf. Prints the table of python -m tests.wheels with a row for the wheel."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tests.arm import environment
from tests.arm.build import build, run_setup
from tests.wheels.checks import EPOCH, passes_installed, repair

DEFAULT_TESTS = ["core/test_threads.py", "test_session.py"]


def pack(folder: Path, package: Path) -> Path:
    """Return a wheel of what was compiled in `package` for the environment in `folder`."""
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    run_setup(folder, package, "bdist_wheel", f"--dist-dir={wheels}", SOURCE_DATE_EPOCH=EPOCH)
    return next(wheels.glob("*.whl"))


def install(wheel: Path, target: Path) -> None:
    """Install a wheel in `target`. Raises CalledProcessError where its tags are not those of the environment."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={target}", "--only-binary=:all:", "--implementation=cp",
                    f"--python-version={environment.VERSION}", f"--platform={wheel.stem.rsplit('-', 1)[1]}", str(wheel)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.arm.wheel", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=environment.FOLDER)
    parser.add_argument("--tests", nargs="*", default=DEFAULT_TESTS, help="files and folders of tests/ (default: %(default)s)")
    options = parser.parse_args()
    folder = options.folder.resolve()
    python = environment.make(folder)
    wheel = repair(Path(sys.executable), pack(folder, build(folder)), folder / "repaired")
    install(wheel, folder / "installed")
    sys.exit(not passes_installed(python, folder, wheel, f"{environment.VERSION}, emulated", options.tests))


if __name__ == "__main__":
    main()
