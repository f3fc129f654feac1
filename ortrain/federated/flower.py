"""Flower's modules, imported where something needs them."""

from __future__ import annotations

from types import ModuleType

from ortrain.packages import require


def flower(module: str = "flwr.app") -> ModuleType:
    """Import a module of Flower. Raises MissingPackageError."""
    return require(module, "flower", "federated learning")
