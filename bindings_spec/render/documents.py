"""docs/reference.md: one row per operation, one column per language."""

from __future__ import annotations

from render.spec import LANGUAGES, Form, Operation, Spec

HEAD = """# Reference

One row per operation, one column per language. `(written)` marks what is written by hand and only recorded in the spec; a dash is explained below the
table. Rendered from `bindings_spec/` by `bindings_spec/generate.py`.

"""


def _cell(operation: Operation, forms: list[Form]) -> str:
    if not forms:
        return "–"
    return "<br>".join(f"`{form.path}`" + (" (written)" if form.word == "written" else "") for form in {form.path: form for form in forms}.values())


def _errors(operation: Operation) -> str:
    return f" Errors: {', '.join(f'`{text.partition(chr(58))[0]}`' for text in operation.errors)}." if operation.errors else ""


def render(spec: Spec) -> dict[str, str]:
    """The reference page."""
    parts = [HEAD]
    titles = [spec.naming[language]["title"] for language in LANGUAGES]
    objects = dict.fromkeys(operation.object for operation in spec.operations.values())
    for name in objects:
        operations = [operation for operation in spec.operations.values() if operation.object == name]
        parts.append(f"## {name}\n\n| operation | {' | '.join(titles)} |\n| --- |{' --- |' * len(titles)}\n")
        for operation in operations:
            cells = " | ".join(_cell(operation, operation.forms[language]) for language in LANGUAGES)
            parts.append(f"| **{operation.name}**: {operation.doc}{_errors(operation)} | {cells} |\n")
        absent = [(operation, language) for operation in operations for language in LANGUAGES if language in operation.absent]
        if absent:
            parts.append("\nNot there:\n\n")
            for operation in operations:
                reasons: dict[str, list[str]] = {}
                for language, reason in operation.absent.items():
                    reasons.setdefault(reason, []).append(spec.naming[language]["title"])
                if reasons:
                    parts.append(f"- {operation.name}: " + "; ".join(f"{', '.join(where)}: {reason}" for reason, where in reasons.items()) + ".\n")
        parts.append("\n")
    parts.append("## Errors\n\nThe same in every language; C, C#, Swift and Objective-C programs are shown the code.\n\n"
                 "| error | code | when |\n| --- | --- | --- |\n")
    parts += [f"| `{name}` | {record['code']} | {record['doc']} |\n" for name, record in spec.errors.items()]
    return {"docs/reference.md": "".join(parts)}
