"""One driver per facade, which makes the calls that a program in that language would make."""

from __future__ import annotations

import importlib

from ortrain.conformance.drivers.base import Driver, Failure, NotOffered
from ortrain.conformance.languages import FINISHED, LANGUAGES

__all__ = ["FINISHED", "LANGUAGES", "Driver", "Failure", "NotOffered", "driver_for"]


def driver_for(language: str) -> Driver:
    """Return the driver of a facade."""
    module = importlib.import_module(f"ortrain.conformance.drivers.{language}")
    driver: Driver = module.DRIVER()
    return driver
