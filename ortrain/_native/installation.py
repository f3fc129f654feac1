"""Installing the native library into a folder, with its links, headers, a pkg-config file and the file that tells where Python is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ortrain._native.location import SIDECAR, text
from ortrain.errors import ArtifactNotFoundError
from ortrain.formats.atomic_files import replace_files

HERE = Path(__file__).resolve().parent
HEADERS = ("ortrain_c_api.h", "ortrain_extensions.h")
PKG_CONFIG = """prefix=${{pcfiledir}}
includedir=${{prefix}}/include

Name: libonnxruntime
Description: the C interface of ONNX Runtime {version} with training, on ortrain's engine
Version: {version}
Libs: -L${{prefix}} -lonnxruntime
Cflags: -I${{includedir}}
"""


def library() -> Path:
    """Return the path of the native library in the package. Raises ArtifactNotFoundError where it was not built."""
    pattern = "libonnxruntime.*.dylib" if sys.platform == "darwin" else "libonnxruntime.so.*.*.*"
    found = sorted(HERE.glob(pattern))
    if not found:
        raise ArtifactNotFoundError(f"expected the native library in {HERE}, found none: it is not built on this platform ({sys.platform})")
    return found[0]


def version_of(path: Path) -> str:
    """Return the version in the file name of the library."""
    return path.name.removeprefix("libonnxruntime.").removeprefix("so.").removesuffix(".dylib")


def links_of(path: Path) -> list[str]:
    """Return the names of the links by which programs and linkers look for the library."""
    return ["libonnxruntime.dylib"] if path.suffix == ".dylib" else ["libonnxruntime.so", "libonnxruntime.so.1"]


def install(directory: str | os.PathLike[str]) -> list[Path]:
    """Put the library and what belongs to it into a folder, which is created; return the paths.

    Raises ArtifactNotFoundError where the library was not built, or Python has no shared library."""
    source, where = library(), text()
    folder = Path(directory)
    (folder / "include").mkdir(parents=True, exist_ok=True)
    contents = {
        folder / source.name: source.read_bytes(),
        folder / SIDECAR: where.encode("utf-8", "surrogateescape"),
        folder / "libonnxruntime.pc": PKG_CONFIG.format(version=version_of(source)).encode(),
    } | {folder / "include" / name: (HERE / "include" / name).read_bytes() for name in HEADERS}
    replace_files({path: [data] for path, data in contents.items()})        # programs keep the file of a library that they have loaded
    links = [folder / name for name in links_of(source)]
    for link in links:
        _link(link, source.name)
    return [*contents, *links]


def _link(path: Path, to: str) -> None:
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(to)
    os.replace(beside, path)


def flags(directory: str | os.PathLike[str]) -> str:
    """Return the flags with which a compiler builds a program against the library in a folder that install() has filled.

    Raises ArtifactNotFoundError for a folder without it."""
    folder = Path(directory).resolve()
    if not any((folder / name).exists() for name in ("libonnxruntime.so", "libonnxruntime.dylib")):
        raise ArtifactNotFoundError(f"expected a folder that `native install` has filled, found no libonnxruntime in {str(folder)!r}")
    return f"-I{folder / 'include'} -L{folder} -Wl,-rpath,{folder} -lonnxruntime"
