"""Packages that ortrain does not depend on: imported where something needs them, with an error that says what does and how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ortrain.errors import MissingPackageError

MAKING_ARTIFACTS = "making artifacts"


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module of a package that ortrain does not depend on. Raises MissingPackageError, which names the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(f"expected the package {package} for {purpose}: pip install 'ortrain[{extra}]' ({error})") from error


def require_onnx(purpose: str, module: str = "onnx") -> ModuleType:
    """Import a module of the onnx package. Raises MissingPackageError."""
    return require(module, "artifacts", purpose)


if TYPE_CHECKING:
    import onnx as onnx
else:
    class _Onnx:
        """The onnx package for the modules that make artifacts, imported when an attribute of it is first used."""

        def __getattr__(self, name: str) -> Any:
            return getattr(require_onnx(MAKING_ARTIFACTS), name)

    onnx = _Onnx()
