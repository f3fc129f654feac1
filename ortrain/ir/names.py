"""Names that a model does not have yet."""

from collections.abc import Iterable


class NameSource:
    """Hands out names that are unique against those in use; never gives the same one twice."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Marks a name as in use."""
        self._used.add(name)

    def unique(self, wanted: str) -> str:
        """The wanted name if it is free, otherwise that name with a number."""
        name = wanted
        while name in self._used:
            number = self._next.get(wanted, 0)
            self._next[wanted] = number + 1
            name = f"{wanted}_{number}"
        self._used.add(name)
        return name
