"""Prints how many slots of the tables are done, refused or stand for nothing: `python -m tests.native`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bindings_spec"))

from render import native

facts = native.load()
for table in native.TABLES:
    slots = list(native.slots(facts, table))
    counts = Counter(slot.state for slot in slots)
    print(f"{table}: {len(slots)} slots, " + ", ".join(f"{counts[state]} {state}" for state in native.STATES))
for why in dict.fromkeys(slot.why for slot in native.slots(facts) if slot.why):
    names = [slot.name for slot in native.slots(facts) if slot.why == why]
    print(f"refused because {why}: {len(names)}: {', '.join(names)}")
print("nothing:", ", ".join(slot.name for slot in native.slots(facts) if slot.state == "nothing"))
