"""Renders what is public and data: `python bindings_spec/generate.py [--check]`. Needs nothing but Python 3.11.

Without an argument the files are written; with --check they are compared, and a difference is an error. Either way a public name that names.lock has and the
spec no longer gives is an error, unless removed.toml says why and since when."""

from __future__ import annotations

import difflib
import sys

from render import documents, enums, errors, facades, lock
from render.spec import ROOT, Spec, SpecError


def targets(spec: Spec) -> dict[str, str]:
    """Every generated file: path from the project's root -> text."""
    return {**errors.render(spec), **enums.render(spec), **facades.render(spec), **documents.render(spec), **lock.render(spec)}


def stale(files: dict[str, str]) -> list[str]:
    """The differences between the files and what the spec says, one text per stale file."""
    found = []
    for name, want in files.items():
        path = ROOT / name
        have = path.read_text(encoding="utf-8") if path.exists() else ""
        if have != want:
            found.append("".join(difflib.unified_diff(have.splitlines(True), want.splitlines(True), name, f"{name} (rendered)")))
    return found


def main(arguments: list[str]) -> int:
    """Runs the generator and returns its exit status."""
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
        print("error: public names that no record gives any more, and removed.toml does not explain:", *missing, sep="\n  ")
        return 1
    files = targets(spec)
    if arguments:
        differences = stale(files)
        print("".join(differences), end="")
        return 1 if differences else 0
    for name, text in files.items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
