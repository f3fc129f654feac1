"""What the ports answer to the conformance cases."""

from __future__ import annotations

from collections.abc import Sequence

from ortrain.conformance.cases import load_cases
from ortrain.conformance.runner import Outcome, run_cases
from ortrain.conformance.service import Port


def outcomes(command: Sequence[str]) -> dict[str, Outcome]:
    """Run all cases through a port; return case -> outcome."""
    port = Port(command)
    try:
        return run_cases(port, load_cases())
    finally:
        port.close()


def absences(found: dict[str, Outcome]) -> dict[str, list[str]]:
    """Return what is absent -> the cases that need it, without the cases of other languages."""
    reasons: dict[str, list[str]] = {}
    for case, outcome in found.items():
        if outcome.verdict == "absent" and not outcome.detail.startswith("a case of "):
            reasons.setdefault(outcome.detail, []).append(case)
    return reasons
