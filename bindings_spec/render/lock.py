"""Renders names.lock: every public name with its parameters, so that none is removed or changed unnoticed."""

from __future__ import annotations

from render import enums
from render.facades import Facade
from render.spec import HERE, ROOT, Spec, SpecError

PATH = "bindings_spec/names.lock"


def lines(spec: Spec) -> list[str]:
    """Return one line per name, sorted, without the names of unfinished languages, which may still change."""
    found = set()
    languages = [language for language in spec.languages if spec.is_finished(language)]
    for language in languages:
        facade = Facade(spec, language)
        for form in spec.forms(language):
            word = f"{form.word} " if form.word in ("property", "setter", "written") else ""
            found.add(f"{language} {word}{form.path}({', '.join(a.name for a in form.arguments)}) -> {facade._return_hint(form)}")
    for name, record in spec.enums.items():
        found |= {f"enum {name}.{member['name']} = {member['value']}" for member in record["members"]}
        for language in languages:
            if language in record:
                found |= {f"{language} enum {record[language]['name']}.{enums.member_name(record[language], m['name'])}" for m in record["members"]}
    found |= {f"error {name} code {record['code']}" for name, record in spec.errors.items()}
    return sorted(found)


def missing_names(spec: Spec) -> list[str]:
    """Return the names in the lock that are neither in the specification nor in removed.toml.

    Raises SpecError for an entry of removed.toml without its fields."""
    for name, entry in spec.removed.items():
        if set(entry) != {"since", "instead"}:
            raise SpecError(f"removed.toml: expected since and instead for {name!r}, got {sorted(entry)}")
    path = ROOT / PATH if spec.folder == HERE else spec.folder / "names.lock"
    known = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return sorted(set(known) - set(lines(spec)) - set(spec.removed))


def render(spec: Spec) -> dict[str, str]:
    """Return the lock file."""
    return {PATH: "\n".join(lines(spec)) + "\n"}
