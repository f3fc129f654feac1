"""Fixtures of several tests."""

import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def spec():
    """The specification of the public API, bindings_spec/."""
    folder = str(Path(__file__).resolve().parents[1] / "bindings_spec")
    sys.path.insert(0, folder)
    try:
        from render.spec import Spec

        return Spec.load()
    finally:
        sys.path.remove(folder)
