"""The command report: writes a run as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from ortrain.report import write_report
from ortrain.runs.folder import REPORT


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("folder", metavar="DIR", help="A run, which `train` has written.")
    command.add_argument("--out", metavar="report.html", help=f"The page. Default: {REPORT} in the folder of the run.")


def run(options: argparse.Namespace) -> None:
    """Write the page and say where."""
    path = Path(options.out) if options.out else Path(options.folder) / REPORT
    for note in write_report(options.folder, path):
        print(f"note: {note}")
    print(f"written to {path}")
