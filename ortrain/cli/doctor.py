"""The command doctor: reports what in a model or a folder of artifacts cannot be trained, why, and what can be done about it."""

from __future__ import annotations

import argparse

from ortrain.cli import DONE, FAILED
from ortrain.doctor import ERROR, examine


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("path", metavar="model.onnx|DIR", help="A model, or a folder with artifacts.")
    command.add_argument("--prefix", default="", help="What the file names of the artifacts begin with.")


def run(options: argparse.Namespace) -> int:
    """Print the findings; return FAILED when there is an error among them."""
    findings = examine(options.path, options.prefix)
    for finding in findings:
        print(f"{finding.severity}: {finding.where}\n    why: {finding.reason}\n    remedy: {finding.remedy}")
    n_errors = sum(finding.severity == ERROR for finding in findings)
    count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}"
    if n_errors:
        print(f"{count}, of which {n_errors} prevent{'s' if n_errors == 1 else ''} training.")
    else:
        print(f"{count}, none of which prevents training." if findings else "No problems were found: the model can be trained.")
    return FAILED if n_errors else DONE
