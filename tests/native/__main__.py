"""Prints how many slots of the tables are done, refused or stand for nothing, and what programs in seven languages do: `python -m tests.native`.

It ends with the status 1 if a program does not do what it should; programs whose compilers are missing are named."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from ortrain._native.installation import install
from tests.native.languages import LANGUAGES, SCENARIOS, Programs, train_in_python, write_artifacts

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bindings_spec"))

from render import native


def print_slots() -> None:
    """Print the counts of the tables and why slots are refused."""
    facts = native.load()
    for table in native.TABLES:
        slots = list(native.slots(facts, table))
        counts = Counter(slot.state for slot in slots)
        print(f"{table}: {len(slots)} slots, " + ", ".join(f"{counts[state]} {state}" for state in native.STATES))
    for why in dict.fromkeys(slot.why for slot in native.slots(facts) if slot.why):
        names = [slot.name for slot in native.slots(facts) if slot.why == why]
        print(f"refused because {why}: {len(names)}: {', '.join(names)}")
    print("nothing:", ", ".join(slot.name for slot in native.slots(facts) if slot.state == "nothing"))


def print_languages() -> bool:
    """Print the table of languages and scenarios; return whether every program that could be built does everything."""
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder / "lib")
        write_artifacts(folder / "artifacts")
        programs = Programs(folder / "lib", folder / "built", folder / "artifacts")
        first = train_in_python(folder / "artifacts", folder / "artifacts" / "checkpoint", folder / "python" / "1")
        second = train_in_python(folder / "artifacts", first.checkpoint, folder / "python" / "2")
        print("| language | " + " | ".join(SCENARIOS) + " |\n|---|" + "---|" * len(SCENARIOS))
        for key, language in LANGUAGES.items():
            if language.missing:
                print(f"| {language.title} | skipped: {language.missing} |")
                continue
            outcomes = programs.outcomes(key, first, second, folder / key)
            good = good and all(outcomes.values())
            print(f"| {language.title} | " + " | ".join("yes" if outcomes[scenario] else "**no**" for scenario in SCENARIOS) + " |", flush=True)
    return good


if __name__ == "__main__":
    print_slots()
    sys.exit(not print_languages())
