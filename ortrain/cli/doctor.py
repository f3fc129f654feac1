"""doctor: reads a model or a folder of artifacts and reports what cannot be trained, why, and what can be done about it."""

from __future__ import annotations

import argparse

from ortrain.doctor import ERROR, examine

FOUND_ERRORS = 1


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("path", metavar="MODEL, DIR", help="a model, or a folder of artifacts")
    command.add_argument("--prefix", default="", help="prefix of the artifacts' file names")


def run(options: argparse.Namespace) -> None:
    """Print the findings; exit with status 1 when there is an error among them."""
    findings = examine(options.path, options.prefix)
    for finding in findings:
        print(f"{finding.severity}: {finding.where}\n    why: {finding.reason}\n    remedy: {finding.remedy}")
    n_errors = sum(finding.severity == ERROR for finding in findings)
    if not n_errors:
        print("No problems were found: the model can be trained." if not findings else f"{len(findings)} findings, none of which prevents training.")
    else:
        print(f"{len(findings)} findings, of which {n_errors} prevent training.")
    if n_errors:
        raise SystemExit(FOUND_ERRORS)
