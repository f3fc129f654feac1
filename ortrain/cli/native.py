"""The command native: installs the library that C, C++ and other programs load in place of onnxruntime-training's, and tells how to link it."""

from __future__ import annotations

import argparse
from pathlib import Path

from ortrain._native.installation import flags, install


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    install_ = actions.add_parser("install", help="Puts the library, its links, a header, a .pc file and the file that tells where Python is into a folder.")
    install_.add_argument("directory", metavar="DIR", type=Path, help="The folder, which is created.")
    flags_ = actions.add_parser("flags", help="Prints the flags with which a C or C++ compiler builds a program against an installed library.")
    flags_.add_argument("directory", metavar="DIR", type=Path, help="The folder of an installation.")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.action == "flags":
        print(flags(options.directory))
        return
    for path in install(options.directory):
        print(path)
