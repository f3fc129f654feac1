"""One driver per facade: each writes the operations of the spec as a program in that language would."""

from __future__ import annotations

import importlib

from ortrain.conformance.drivers.base import Driver, Failure, NotOffered

__all__ = ["LANGUAGES", "Driver", "Failure", "NotOffered", "driver_for"]

LANGUAGES = ("python", "csharp", "swift", "objc", "c")


def driver_for(language: str) -> Driver:
    """The driver of a facade."""
    module = importlib.import_module(f"ortrain.conformance.drivers.{language}")
    driver: Driver = module.DRIVER()
    return driver
