"""Renders ortrain/enums.py, and for each language the enumerations with its names."""

from __future__ import annotations

from typing import Any

from render.spec import Spec
from render.text import NOTE

UNSCOPED = ("objc", "c")
"""Languages whose enumerators are also global names."""


def member_name(record: dict[str, Any], name: str) -> str:
    """Return a language's name of a member. record: the language's part of the enumeration."""
    special = record.get("names", {}).get(name)
    words = name.split("_")
    styles = {"upper": name, "pascal": "".join(word.title() for word in words), "camel": words[0].lower() + "".join(word.title() for word in words[1:])}
    return f"{record.get('prefix', '')}{special or styles[record.get('style', 'upper')]}{record.get('suffix', '')}"


def enumeration(name: str, doc: str, members: list[tuple[str, int, str]]) -> str:
    """Return the class of an enumeration. members: (name, value, docstring) of each."""
    body = "".join(f'    {member} = {value}\n    """{text}"""\n' for member, value, text in members)
    return f'\n\nclass {name}(IntEnum):\n    """{doc}"""\n\n{body}'


def render(spec: Spec) -> dict[str, str]:
    """Return the file of all enumerations, and one for each language that has its own."""
    head = NOTE.format(source="enums.toml") + '"""The public enumerations, with the names and values of onnxruntime-training."""\n\nfrom enum import IntEnum\n'
    files = {"ortrain/enums.py": head + "".join(
        enumeration(name, record["doc"], [(m["name"], m["value"], m["doc"]) for m in record["members"]]) for name, record in spec.enums.items())}
    for language in spec.languages:
        parts, constants = [], []
        for record in spec.enums.values():
            if language in record:
                own = record[language]
                members = [(member_name(own, m["name"]), m["value"], m["doc"]) for m in record["members"]]
                parts.append(enumeration(own["name"], record["doc"], members))
                constants += [f"{member} = {own['name']}.{member}" for member, _, _ in members]
        if parts:
            package = spec.naming[language]["module"].replace(".", "/")
            text = NOTE.format(source="enums.toml") + f'"""The enumerations of the {spec.naming[language]["title"]} facade."""\n\nfrom enum import IntEnum\n'
            text += "".join(parts)
            if language in UNSCOPED:
                text += "\n\n" + "\n".join(constants) + "\n"
            files[f"{package}/enums.py"] = text
    return files


def exported(spec: Spec, language: str) -> list[str]:
    """Return the names that a facade's enums module exports."""
    found = []
    for record in spec.enums.values():
        if language in record:
            found.append(record[language]["name"])
            if language in UNSCOPED:
                found += [member_name(record[language], m["name"]) for m in record["members"]]
    return found
