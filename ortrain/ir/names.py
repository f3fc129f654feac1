"""Generation of unique names."""

from collections.abc import Iterable


class NameSource:
    """Returns names that are neither in use nor were returned before."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        """Return the wanted name if it is free, otherwise the name with a number appended."""
        name = wanted
        while name in self._used:
            number = self._next.get(wanted, 0)
            self._next[wanted] = number + 1
            name = f"{wanted}_{number}"
        self._used.add(name)
        return name
