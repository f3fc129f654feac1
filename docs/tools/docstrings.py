"""A Griffe extension that turns docstrings into Markdown: a list of parameters, and errors that link to their descriptions.

Docstrings of ortrain are plain text. Parameters are described by sentences that begin with their name and a colon, errors by sentences that begin with
"Raises"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

try:
    from griffe import Extension
except ImportError:                 # tests of to_markdown do without Griffe
    Extension = object

ERRORS = "errors"
SENTENCE = r"(?:^|(?<=[.:;)] ))"
CLOSING = "Raises|Returns?|The (?:other|remaining) (?:parameters|fields)"
"""How sentences begin that are about no parameter."""
CODE = re.compile(r"(`[^`]+`)")


class PlainDocstrings(Extension):
    """Converts the docstrings of a package when it has been loaded."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        errors = {name for name, member in pkg.members.get(ERRORS, pkg).members.items() if not member.is_alias and member.is_class}
        links = {name: f"{pkg.path}.{ERRORS}.{name}" for name in errors}
        self._convert(pkg, links)

    def _convert(self, item: Any, links: dict[str, str]) -> None:
        if item.docstring is not None:
            item.docstring.value = to_markdown(item.docstring.value, names_of(item), links)
        for member in item.members.values():
            if not member.is_alias:
                self._convert(member, links)


def names_of(item: Any) -> set[str]:
    """Return what a docstring may describe: parameters of a function, parameters and attributes of a class."""
    if item.is_function:
        return {parameter.name.lstrip("*") for parameter in item.parameters}
    if item.is_class:
        made = item.members.get("__init__")
        return {name for name, member in item.members.items() if member.is_attribute} | (names_of(made) if made is not None and made.is_function else set())
    return set()


def to_markdown(text: str, names: Iterable[str], links: dict[str, str] | None = None) -> str:
    """Return a plain docstring as Markdown. names: of parameters. links: names of errors -> their paths."""
    paragraphs = [_paragraph(part, set(names), links or {}) for part in re.split(r"\n\s*\n", text.strip("\n"))]
    return "\n\n".join(paragraphs)


def _paragraph(text: str, names: set[str], links: dict[str, str]) -> str:
    lines = text.split("\n")
    if all(line.startswith("    ") for line in lines) or lines[0].startswith("|"):
        return text                                                       # code, or a table
    if any(line.lstrip().startswith("- ") for line in lines):
        head = [line for line in lines[:1] if not line.startswith("- ")]
        return _marked("\n".join([*head, *([""] if head else []), *lines[len(head):]]), links)
    joined = " ".join(line.strip() for line in lines)
    pieces = _split(joined, names)
    return "\n".join(_marked(piece, links) if not name else f"- {name}: {_marked(piece, links)}" for name, piece in pieces).replace("\n\n\n", "\n\n")


def _split(text: str, names: set[str]) -> list[tuple[str, str]]:
    """Divide a paragraph into ("", text before parameters), (names, description) and ("", sentences about results and errors)."""
    starts: list[tuple[int, int, str]] = []
    if names:
        one = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        starts += [(found.start(), found.end(), ", ".join(f"`{name}`" for name in found[1].split(", ")))
                   for found in re.finditer(rf"{SENTENCE}((?:{one})(?:, (?:{one}))*): ", text)]
    starts += [(found.start(), found.start(), "") for found in re.finditer(rf"{SENTENCE}(?=(?:{CLOSING}) )", text) if found.start()]
    starts.sort()
    bounds = [*starts, (len(text), len(text), "")]
    pieces = [("", text[: bounds[0][0]].strip() + ("\n" if starts else ""))] if bounds[0][0] else []
    for (_, begin, name), (end, _, _) in zip(bounds, bounds[1:], strict=False):
        pieces.append((name, text[begin:end].strip()) if name else ("", f"\n{text[begin:end].strip()}"))
    return pieces


def _marked(text: str, links: dict[str, str]) -> str:
    """Escape what Markdown would interpret, outside of code, and link errors."""
    parts = CODE.split(text)
    for index in range(0, len(parts), 2):
        plain = re.sub(r"(?<!^)\*|(?<=\S)\*", r"\*", parts[index]).replace("<", "&lt;")
        parts[index] = re.sub(r"\b[A-Z]\w+\b", lambda word: f"[`{word[0]}`][{links[word[0]]}]" if word[0] in links else word[0], plain)
    return "".join(parts)
