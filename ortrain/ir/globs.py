"""Names and patterns of names, wherever an argument names parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate

from ortrain.errors import ArgumentTypeError, ParameterNotFoundError

SPECIAL = frozenset("*?[")
"""The characters that make a name a pattern."""


def is_pattern(name: str) -> bool:
    """Return whether a name contains a wildcard."""
    return not SPECIAL.isdisjoint(name)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches, in their order.

    pattern: a name, or a pattern in the style of fnmatch (*, ?, [...]), case-sensitive. One that is itself among the names stands for that name alone, whatever
    characters it contains."""
    known = list(names)
    if pattern in known:
        return [pattern]
    match = re.compile(translate(pattern)).match
    return [name for name in known if match(name)]


def expand(patterns: str | Iterable[str], names: Iterable[str], where: str, keywords: Mapping[str, Callable[[], Sequence[str]]] | None = None) -> list[str]:
    """Return the names that patterns stand for, each once, in the order of the patterns.

    patterns: one name or pattern, or several. names: those that exist. where: names the argument in errors. keywords: words with a meaning of their own -> a
    function that returns the names; a parameter of that name takes precedence.

    Raises ArgumentTypeError for what is not a str, ParameterNotFoundError for a pattern that matches nothing, with the names closest to it."""
    known = list(names)
    found: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not isinstance(pattern, str):
            raise ArgumentTypeError(f"expected names or patterns for {where}, got {pattern!r}")
        matched: Sequence[str] = matching(pattern, known)
        if not matched and keywords and pattern in keywords:
            matched = keywords[pattern]()
        if not matched:
            raise ParameterNotFoundError(f"Parameter {pattern} not found. Expected the name of a parameter, or a pattern that matches one, in {where}"
                                         f"{_suggestion(pattern, known)}")
        found |= dict.fromkeys(matched)
    return list(found)


def _suggestion(pattern: str, names: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(pattern.strip("*"), names, 3, 0.3)
    return f": did you mean {' or '.join(map(repr, close))}?" if close else f", there are {len(names)} others"
