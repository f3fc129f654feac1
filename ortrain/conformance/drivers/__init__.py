"""One driver per facade, which makes the calls that a program in that language would make."""

from __future__ import annotations

import importlib

from ortrain.conformance.drivers.base import Driver, Failure, NotOffered

__all__ = ["LANGUAGES", "Driver", "Failure", "NotOffered", "driver_for"]

LANGUAGES = ("python", "csharp", "swift", "objc", "c")


def driver_for(language: str) -> Driver:
    """Return the driver of a facade."""
    module = importlib.import_module(f"ortrain.conformance.drivers.{language}")
    driver: Driver = module.DRIVER()
    return driver
