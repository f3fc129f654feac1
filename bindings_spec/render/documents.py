"""docs/reference.md: one row per operation, one column per language, and the conformance cases of each operation."""

from __future__ import annotations

import json

from render.spec import ROOT, Form, Operation, Spec

HEAD = """# Reference

One row per operation, one column per language. `(written)` marks names that are written by hand and only recorded in the specification; the reasons for dashes
are below each table. Rendered from `bindings_spec/` by `bindings_spec/generate.py`.

"""


def _cell(operation: Operation, forms: list[Form]) -> str:
    if not forms:
        return "–"
    return "<br>".join(f"`{form.path}`" + (" (written)" if form.word == "written" else "") for form in {form.path: form for form in forms}.values())


def _source(operation: Operation) -> str:
    return "" if operation.known_from == "ortrain" else f" From `{operation.known_from}`."


def _cases() -> dict[str, list[str]]:
    """Return operation -> the conformance cases that call it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "ortrain" / "conformance" / "cases").glob("*.json")):
        for case in json.loads(path.read_text(encoding="utf-8")):
            for call in dict.fromkeys(call["call"] for call in case["calls"]):
                found.setdefault(call, []).append(case["name"])
    return found


def _errors(operation: Operation) -> str:
    return f" Errors: {', '.join(f'`{text.partition(chr(58))[0]}`' for text in operation.errors)}." if operation.errors else ""


def _objects(spec: Spec) -> list[str]:
    """Return the names of the objects, those with the most forms first."""
    counts: dict[str, int] = {}
    for operation in spec.operations.values():
        counts[operation.object] = counts.get(operation.object, 0) + sum(map(len, operation.forms.values()))
    return sorted(counts, key=lambda name: -counts[name])


def render(spec: Spec) -> dict[str, str]:
    """Return the reference page."""
    parts, cases = [HEAD], _cases()
    unfinished = [spec.naming[language]["title"] for language in spec.languages if not spec.is_finished(language)]
    parts += [f"{title} is unfinished; its dashes are not explained.\n\n" for title in unfinished]
    titles = [spec.naming[language]["title"] for language in spec.languages]
    for name in _objects(spec):
        operations = [operation for operation in spec.operations.values() if operation.object == name]
        parts.append(f"## {name}\n\n| operation | {' | '.join(titles)} |\n| --- |{' --- |' * len(titles)}\n")
        for operation in operations:
            cells = " | ".join(_cell(operation, operation.forms[language]) for language in spec.languages)
            parts.append(f"| **{operation.name}**: {operation.doc}{_errors(operation)}{_source(operation)} | {cells} |\n")
        absent = [(operation, language) for operation in operations for language in spec.languages if language in operation.absent]
        if absent:
            parts.append("\nNot available:\n\n")
            for operation in operations:
                reasons: dict[str, list[str]] = {}
                for language, reason in operation.absent.items():
                    reasons.setdefault(reason, []).append(spec.naming[language]["title"])
                if reasons:
                    parts.append(f"- {operation.name}: " + "; ".join(f"{', '.join(where)}: {reason}" for reason, where in reasons.items()) + ".\n")
        parts.append("\nConformance cases:\n\n")
        parts += [f"- {operation.name}: {', '.join(cases[operation.id])}.\n" for operation in operations if operation.id in cases]
        parts.append("\n")
    parts.append("## Errors\n\nNames and codes are the same in every language; C, C#, Swift and Objective-C programs see the code.\n\n"
                 "| error | code | when |\n| --- | --- | --- |\n")
    parts += [f"| `{name}` | {record['code']} | {record['doc']} |\n" for name, record in spec.errors.items()]
    return {"docs/reference.md": "".join(parts)}
