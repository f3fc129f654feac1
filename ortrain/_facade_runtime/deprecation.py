"""Warnings of deprecated names."""

from __future__ import annotations

import warnings


def warn(message: str) -> None:
    """Emit a DeprecationWarning at the caller's line."""
    warnings.warn(message, DeprecationWarning, stacklevel=3)
