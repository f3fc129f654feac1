"""Drop-in replacement: importing this module makes later imports of `onnxruntime` and `onnxruntime.training` import ortrain, for unchanged scripts.

    import ortrain.drop_in            # within a program, before its first import of onnxruntime
    python -m ortrain run script.py   # without changing the program"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from ortrain.errors import InvalidStateError

OLD_VERSION = "1.19.2"
"""The value of `onnxruntime.__version__`: the release whose API is replaced."""

NAMES = {
    "InferenceSession": "ortrain.runtime.inference_session", "OrtValue": "ortrain.runtime.values",
    "RunOptions": "ortrain.runtime.options", "SessionOptions": "ortrain.runtime.options",
    "GraphOptimizationLevel": "ortrain.enums", "ExecutionMode": "ortrain.enums", "set_seed": "ortrain.runtime.seed",
}
"""Names in the package `onnxruntime` itself -> their modules in ortrain."""

MODULES: dict[str, str | None] = {
    "": None,
    ".capi": None,
    ".capi._pybind_state": None,
    ".capi.onnxruntime_inference_collection": None,
    ".capi.onnxruntime_pybind11_state": None,
    ".training": None,
    ".training.api": "ortrain.api",
    ".training.api.checkpoint_state": "ortrain.api.checkpoint_state",
    ".training.api.lr_scheduler": "ortrain.api.lr_scheduler",
    ".training.api.module": "ortrain.api.module",
    ".training.api.optimizer": "ortrain.api.optimizer",
    ".training.artifacts": "ortrain.artifacts",
    ".training.onnxblock": "ortrain.onnxblock",
    ".training.onnxblock.blocks": "ortrain.onnxblock.blocks",
    ".training.onnxblock.checkpoint_utils": "ortrain.onnxblock.checkpoint",
    ".training.onnxblock.loss": "ortrain.onnxblock.loss",
    ".training.onnxblock.loss.loss": "ortrain.onnxblock.loss",
    ".training.onnxblock.model_accessor": "ortrain.onnxblock.model_accessor",
    ".training.onnxblock.onnxblock": "ortrain.onnxblock.training",
    ".training.onnxblock.optim": "ortrain.onnxblock.optim",
    ".training.onnxblock.optim.optim": "ortrain.onnxblock.optim",
}
"""Modules of onnxruntime, without the package's name -> the modules of ortrain that replace them; None for a module with NAMES."""

PACKAGE = "onnxruntime"


class _Names(ModuleType):
    """A module of onnxruntime whose names are imported from ortrain when they are first used."""

    def __getattr__(self, name: str) -> object:
        below = self.__name__.removeprefix(PACKAGE)
        if f"{below}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        home = MODULES[below]
        if home is not None and not name.startswith("__"):
            return getattr(importlib.import_module(home), name)
        if name in NAMES and home is None:
            return getattr(importlib.import_module(NAMES[name]), name)
        raise AttributeError(f"module {self.__name__!r} (here: ortrain) has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        home = MODULES[self.__name__.removeprefix(PACKAGE)]
        return sorted([*super().__dir__(), *(NAMES if home is None else dir(importlib.import_module(home)))])


class _Importer(MetaPathFinder, Loader):
    """Imports the replaced modules, whether or not onnxruntime is installed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != PACKAGE and not name.startswith(f"{PACKAGE}."):
            return None
        if name.removeprefix(PACKAGE) not in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}: {PACKAGE} is replaced by ortrain, which has only its training API", name=name)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        home = MODULES[module.__name__.removeprefix(PACKAGE)]
        names = list(NAMES) if home is None else getattr(importlib.import_module(home), "__all__", None)
        if names is not None:
            module.__dict__["__all__"] = list(names)
        if module.__name__ == PACKAGE:
            module.__dict__.update(__version__=OLD_VERSION, get_available_providers=available_providers, get_all_providers=available_providers,
                                   get_device=lambda: "CPU", set_default_logger_severity=lambda severity: None)


def available_providers() -> list[str]:
    """Return the execution providers: the CPU provider."""
    return ["CPUExecutionProvider"]


_importer = _Importer()


def install() -> None:
    """Replace `onnxruntime` by ortrain in later imports. Raises InvalidStateError if the real package has been imported already."""
    loaded = sys.modules.get(PACKAGE)
    if loaded is not None and not isinstance(loaded, _Names):
        raise InvalidStateError(f"expected ortrain.drop_in to be imported before {PACKAGE}, which was imported from {getattr(loaded, '__file__', '?')}")
    if _importer not in sys.meta_path:
        sys.meta_path.insert(0, _importer)


def remove() -> None:
    """Undo install(): the next import of onnxruntime is the real package."""
    if _importer in sys.meta_path:
        sys.meta_path.remove(_importer)
    for name, module in list(sys.modules.items()):
        if isinstance(module, _Names):
            del sys.modules[name]


install()
