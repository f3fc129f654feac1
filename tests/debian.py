"""Packages of a release of Debian other than the one that runs, downloaded with its package manager and not installed."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path


def _apt(folder: Path, kind: str, release: str) -> list[str]:
    """Return the command of a package manager that keeps its state in `folder` and knows one release, from the mirror that this machine uses."""
    targets = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], check=True, capture_output=True, text=True)
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text(f"{kind} [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {targets.stdout.splitlines()[0]} {release} main\n")
    options = {"Dir::State": folder, "Dir::State::lists": folder / "lists", "Dir::Cache": folder / "cache", "Dir::Etc::sourcelist": sources,
               "Dir::Etc::sourceparts": "-", "Debug::NoLocking": "true", "APT::Sandbox::User": "root"}
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*command, "update"], check=True)
    return command


def download_package(name: str, release: str, folder: Path) -> Path:
    """Download a package into `folder` and return its file."""
    subprocess.run([*_apt(folder, "deb", release), "download", name], cwd=folder, check=True)
    return next(folder.glob("*.deb"))


def unpack_source(name: str, release: str, folder: Path) -> Path:
    """Download the source that a package of Debian was made of, unpack it in `folder`, and return its folder; Debian's patches are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([*_apt(folder / "apt", "deb-src", release), "--tar-only", "source", name], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(next(folder.glob("*.orig.tar.*[2z]"))) as packed:
        packed.extractall(folder, filter="data")
        return folder / packed.getnames()[0].split("/")[0]
