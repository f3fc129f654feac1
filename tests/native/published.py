"""The published sources of ONNX Runtime, against which tests compile what they can: `python -m tests.native.published` fetches them into the build folder.

They are those of Debian's source package onnxruntime (version 1.21.0, MIT licence), from the mirror that the machine's package manager uses. Version 1.21
still has the training interface, and its tables begin with those of 1.19; the copies of the headers say 19 as ORT_API_VERSION, as those of 1.19 do.
Nothing of them is kept in the project: tests that need them are skipped by name where they have not been fetched. The C# sources are rewritten for mono's
compiler, see published_csharp.py."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.native.published_csharp import copy_csharp

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "published"
SOURCES = FOLDER / "onnxruntime-1.21.0"
INCLUDE = FOLDER / "include"
CSHARP = FOLDER / "csharp"
CONFIGURATION = FOLDER / "config"
"""A header that the published build makes, and that the C of its JNI shim includes."""
ARCHIVE = "onnxruntime_1.21.0+dfsg.orig.tar.xz"
SUITE = "trixie"
HEADERS = ("include/onnxruntime/core/session/*.h", "include/onnxruntime/core/providers/cpu/*.h", "orttraining/orttraining/training_api/include/*.h")

needs_published = pytest.mark.skipif(not CSHARP.is_dir(), reason="the published sources are not there: python -m tests.native.published fetches them")


def mirror() -> tuple[str, str]:
    """Return the address and the keyring of the Debian mirror that this machine is set up with."""
    texts = [path.read_text() for path in sorted(Path("/etc/apt").glob("sources.list.d/*.sources"))]
    texts += [path.read_text() for path in (Path("/etc/apt/sources.list"),) if path.exists()]
    for text in texts:
        found = re.search(r"^(?:URIs:|deb) *\S*?(https?://\S+/debian)/?\s", text, re.MULTILINE)
        if found:
            keyring = re.search(r"^Signed-By: *(\S+)", text, re.MULTILINE)
            return found[1], keyring[1] if keyring else "/usr/share/keyrings/debian-archive-keyring.gpg"
    raise SystemExit("expected a machine whose apt knows a Debian mirror, found none: unpack the source package onnxruntime 1.21.0 into " + str(SOURCES))


def download() -> None:
    """Get the archive by apt, with lists of its own, and unpack it."""
    address, keyring = mirror()
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        (FOLDER / "apt" / name).mkdir(parents=True, exist_ok=True)
    source = f"Types: deb-src\nURIs: {address}\nSuites: {SUITE}\nComponents: main\nSigned-By: {keyring}\n"
    (FOLDER / "apt" / "parts" / "debian.sources").write_text(source)
    options = [f"-oDir::Etc::sourceparts={FOLDER}/apt/parts", "-oDir::Etc::sourcelist=/dev/null", f"-oDir::State::lists={FOLDER}/apt/lists",
               f"-oDir::Cache={FOLDER}/apt/cache", "-oAPT::Sandbox::User="]
    subprocess.run(["apt-get", *options, "-qq", "update"], check=True)
    # a mirror may lack the small files of the package, and apt then fails although the archive is there
    subprocess.run(["apt-get", *options, "-qq", "--download-only", "source", "onnxruntime"], cwd=FOLDER, check=False)
    with tarfile.open(FOLDER / ARCHIVE) as archive:
        archive.extractall(FOLDER, filter="data")


def copy_headers() -> None:
    """Copy the headers, with the API version of 1.19."""
    shutil.rmtree(INCLUDE, ignore_errors=True)
    INCLUDE.mkdir(parents=True)
    for pattern in HEADERS:
        for path in SOURCES.glob(pattern):
            text = re.sub(r"^#define ORT_API_VERSION \d+$", "#define ORT_API_VERSION 19", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            (INCLUDE / path.name).write_text(text, encoding="utf-8")


def main() -> int:
    """Fetch what is not there yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not SOURCES.is_dir():
        download()
    copy_headers()
    copy_csharp(SOURCES, CSHARP)
    CONFIGURATION.mkdir(exist_ok=True)
    (CONFIGURATION / "onnxruntime_config.h").write_text('#define ORT_VERSION "1.19.2"\n', encoding="utf-8")
    print(f"{SOURCES}\n{INCLUDE}: {len(list(INCLUDE.iterdir()))} headers\n{CSHARP}: {len(list(CSHARP.iterdir()))} sources")
    return 0


if __name__ == "__main__":
    sys.exit(main())
