"""The order of heads and rows in the operands of attention."""

from __future__ import annotations

from typing import Any

ORDERS = "heads_first"
"""Attribute of Attention and its gradient: for q, k, v and y, whether heads come before rows, [n, heads, rows, size] instead of [n, rows, heads, size]."""
ROWS_FIRST = (0, 0, 0, 0)
"""The orders without the attribute."""


def by_rows(shape: Any, heads_first: int) -> tuple[Any, Any, Any, Any]:
    """Return a shape [n, heads, rows, size] or [n, rows, heads, size] as (n, rows, heads, size), or the other way round."""
    n, first, second, size = shape
    return (n, second, first, size) if heads_first else (n, first, second, size)
