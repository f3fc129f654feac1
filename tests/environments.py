"""Environments with packages that the one of the tests does not have."""

import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path

from tests.layers import ROOT


def environment(folder: Path, extra: str, *packages: str) -> Path:
    """Make an environment on top of the packages of this one, with those of an extra and others; return its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    own, = folder.glob("lib/python*/site-packages")
    (own / "outer.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"][extra]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *required, *packages], check=True)
    return python
