"""Unique names for new values and nodes."""

from collections.abc import Iterable


class NameSource:
    """Generates names that are unique among those in use; it never returns the same name twice."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Mark a name as in use."""
        self._used.add(name)

    def unique(self, wanted: str) -> str:
        """Return the wanted name if it is free, otherwise that name with a number."""
        name = wanted
        while name in self._used:
            number = self._next.get(wanted, 0)
            self._next[wanted] = number + 1
            name = f"{wanted}_{number}"
        self._used.add(name)
        return name
