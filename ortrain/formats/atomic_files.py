"""Atomic replacement of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def replace_file(path: str | os.PathLike[str], *chunks: bytes) -> None:
    """Write one file; see replace_files."""
    replace_files({path: chunks})


def replace_files(files: Mapping[str | os.PathLike[str], Iterable[bytes | memoryview]]) -> None:
    """Write files (path -> chunks) under temporary names, flush all to disk, then rename them in the given order.

    A crash or a full disk leaves the old files intact; files that belong together are renamed only when all are complete.
    Raises ArtifactNotFoundError when a folder does not exist, and InvalidArgumentError for the path of a folder, before anything is written."""
    targets = [Path(os.path.realpath(path)) for path in files]
    for target in targets:
        if not target.parent.is_dir():
            raise ArtifactNotFoundError(f"expected an existing folder to write {target.name!r} into, got {str(target.parent)!r}")
        if target.is_dir():
            raise InvalidArgumentError(f"expected the path of a file to write, got the folder {str(target)!r}")
    # the short random name fits wherever the target's name does
    temporaries = [target.with_name(f".{os.urandom(8).hex()}.tmp") for target in targets]
    try:
        for temporary, chunks in zip(temporaries, files.values(), strict=True):
            with os.fdopen(os.open(temporary, _FLAGS, 0o666), "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        for temporary, target in zip(temporaries, targets, strict=True):
            os.replace(temporary, target)
    except BaseException:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)
        raise
