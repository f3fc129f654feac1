"""doctor: reads a model or a folder of artifacts and says what cannot be trained, why, and what to do about it."""

from __future__ import annotations

import argparse

from ortrain.doctor import ERROR, examine

FOUND_ERRORS = 1


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("path", metavar="MODEL, DIR", help="a model, or a folder with artifacts")
    command.add_argument("--prefix", default="", help="what stands before the artifacts' names")


def run(options: argparse.Namespace) -> None:
    """Print the findings; exit with status 1 when there is an error among them."""
    findings = examine(options.path, options.prefix)
    for finding in findings:
        print(f"{finding.severity}: {finding.where}\n    why: {finding.reason}\n    remedy: {finding.remedy}")
    print(f"{len(findings)} findings" if findings else "nothing found: it trains")
    if any(finding.severity == ERROR for finding in findings):
        raise SystemExit(FOUND_ERRORS)
