"""Where the native library finds Python: the text of the file beside it, and what the program that ORTRAIN_PYTHON names answers."""

from __future__ import annotations

import site
import sys
import sysconfig
from pathlib import Path

from ortrain.errors import ArtifactNotFoundError

SIDECAR = "ortrain-native.cfg"


def libpython() -> Path:
    """Return the path of the shared library of this Python. Raises ArtifactNotFoundError where it was built without one."""
    names = [str(sysconfig.get_config_var(name) or "") for name in ("INSTSONAME", "LDLIBRARY")]
    folders = [str(sysconfig.get_config_var("LIBDIR") or ""), str(Path(sys.base_prefix) / "lib"), str(sysconfig.get_config_var("LIBPL") or "")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders += [f"/usr/lib/{multiarch}", f"/lib/{multiarch}"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    names += [f"libpython{version}.so.1.0", f"libpython{version}.so", f"libpython{version}.dylib"]
    for name in dict.fromkeys(names):
        for folder in folders:
            path = Path(folder) / name
            if folder and name and not name.endswith(".a") and path.is_file():
                return path
    raise ArtifactNotFoundError(f"expected the shared library of Python {version}, which a C program opens; this Python was built without one, and a "
                                f"package such as libpython{version} may have it")


def text() -> str:
    """Return where Python and ortrain are, one key=value per line."""
    folder = Path(__file__).resolve().parents[2]
    packages = {Path(path).resolve() for path in (*site.getsitepackages(), site.getusersitepackages())}
    lines = {"version": f"{sys.version_info.major}.{sys.version_info.minor}", "library": libpython(), "executable": sys.executable,
             "path": "" if folder in packages else folder}
    return "".join(f"{key}={value}\n" for key, value in lines.items())
