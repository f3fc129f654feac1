"""What a deprecated name does besides its work."""

from __future__ import annotations

import warnings


def warn(message: str) -> None:
    """A DeprecationWarning at the line of the user's that called the deprecated name."""
    warnings.warn(message, DeprecationWarning, stacklevel=3)
