"""Makes a folder with an arm64 Python and the wheels that the tests need, in which an emulator runs them.

    python -m tests.arm.environment FOLDER

Needs Debian's package manager, aarch64-linux-gnu-gcc and qemu-aarch64-static, but neither root nor binfmt: packages are unpacked, not installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "arm"
"""Where `make arm` keeps the environment and the build."""
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
VERSION = "3.11"
"""Of the Python in Debian stable."""
PACKAGES = [f"python{VERSION}", f"libpython{VERSION}-dev", "libstdc++6"]
WHEELS = ["numpy", "scipy", "onnx", "flatbuffers", "pytest", "pytest-xdist", "hypothesis", "scikit-learn", "tqdm"]
PLATFORMS = ["manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"]
APT_FOLDERS = ["lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "etc/trusted.gpg.d"]
WRAPPER = """#!/bin/sh
# A program of the host, so that emulated programs can start it, too.
exec {emulator} -L {root} -0 {python} {root}/usr/bin/python{version} "$@"
"""


def missing_tools() -> list[str]:
    """Return the programs that are needed and not on PATH."""
    return [tool for tool in (COMPILER, EMULATOR, "apt-get", "dpkg-deb") if shutil.which(tool) is None]


def unpack_packages(folder: Path, root: Path) -> None:
    """Download the packages of arm64 with what they depend on, and unpack them into `root`."""
    state = folder / "apt"
    for name in APT_FOLDERS:
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    options = {"APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::State": state, "Dir::State::status": state / "status",
               "Dir::State::lists": state / "lists", "Dir::Cache": state / "cache", "APT::Install-Recommends": "false", "Debug::NoLocking": "true"}
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*command, "update"], check=True)
    subprocess.run([*command, "--yes", "--download-only", "install", *PACKAGES], check=True, stdout=subprocess.DEVNULL)
    for package in sorted((state / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)


def download_wheels(site: Path, requirements: list[str]) -> None:
    """Unpack wheels for arm64 into `site`."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site), "--only-binary=:all:", "--implementation=cp",
                    f"--python-version={VERSION}", *(f"--platform={name}" for name in PLATFORMS), *requirements], check=True)


def make(folder: Path) -> Path:
    """Return a program that runs the arm64 Python under emulation, creating the environment in `folder` if necessary."""
    folder = folder.resolve()
    root, python = folder / "root", folder / "bin" / "python"
    marker = folder / "ready"
    if not marker.exists():
        shutil.rmtree(folder, ignore_errors=True)
        unpack_packages(folder, root)
        download_wheels(folder / "site", WHEELS)
        python.parent.mkdir()
        python.write_text(WRAPPER.format(emulator=shutil.which(EMULATOR), root=root, python=python, version=VERSION))
        python.chmod(0o755)
        marker.write_text("ok\n")
    return python


def add_packages_of_tests(folder: Path) -> None:
    """Add what the extra `test` names to the environment in `folder`, if necessary: packages of 0.5 GB, without which `make arm` does."""
    marker = folder / "complete"
    if not marker.exists():
        with (ROOT / "pyproject.toml").open("rb") as file:
            extra = tomllib.load(file)["project"]["optional-dependencies"]["test"]
        download_wheels(folder / "site", [requirement for requirement in extra if not requirement.startswith("ortrain")])
        marker.write_text("ok\n")


def main() -> None:
    if missing := missing_tools():
        raise SystemExit(f"expected {', '.join(missing)} on PATH")
    print(make(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
