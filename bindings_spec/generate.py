"""Generate the public API from its specification: `python bindings_spec/generate.py [--check]`. Requires Python 3.11 and no packages.

Without --check the files are written; with it they are compared, and a difference is an error. In both cases it is an error if a public name in names.lock is
no longer in the specification and removed.toml does not list it."""

from __future__ import annotations

import difflib
import sys

from render import documents, enums, errors, facades, lock, native
from render.spec import ROOT, Spec, SpecError


def targets(spec: Spec) -> dict[str, str]:
    """Return path from the project's root -> text for every generated file."""
    return {**errors.render(spec), **enums.render(spec), **facades.render(spec), **documents.render(spec), **lock.render(spec),
            **native.render(spec)}


def find_stale(files: dict[str, str]) -> list[str]:
    """Return one unified diff for each file that differs from its rendered text."""
    found = []
    for name, rendered in files.items():
        path = ROOT / name
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        if current != rendered:
            found.append("".join(difflib.unified_diff(current.splitlines(True), rendered.splitlines(True), name, f"{name} (rendered)")))
    return found


def main(arguments: list[str]) -> int:
    """Run the generator and return its exit status."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        spec = Spec.load()
        missing = lock.missing_names(spec)
    except SpecError as error:
        print(f"error: {error}")
        return 1
    if missing:
        print("error: public names that are no longer in the specification and not listed in removed.toml:", *missing, sep="\n  ")
        return 1
    files = targets(spec)
    if arguments:
        differences = find_stale(files)
        print("".join(differences), end="")
        return 1 if differences else 0
    for name, text in files.items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
