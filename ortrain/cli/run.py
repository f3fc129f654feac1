"""The command run: runs a script written for onnxruntime-training, without a changed line: its imports of onnxruntime mean ortrain."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from pathlib import Path

from ortrain.errors import ArtifactNotFoundError


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.usage = "%(prog)s script.py [argument ...] | -m module [argument ...]"
    command.add_argument("-m", dest="module", action="store_true", help="The script is the name of a module.")
    command.add_argument("script", metavar="script.py", help="The script.")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="argument", help="The arguments of the script.")


def run(options: argparse.Namespace) -> None:
    """Run the script as Python would: an exception in it prints a traceback and gives exit status 1."""
    import ortrain.drop_in  # noqa: F401  from here on onnxruntime means ortrain

    if not options.module and not Path(options.script).exists():
        raise ArtifactNotFoundError(f"expected a script, found none at {options.script!r}")
    sys.argv = [options.script, *options.arguments]
    try:
        if options.module:
            sys.path.insert(0, "")
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(options.script).resolve().parent))
            runpy.run_path(options.script, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != options.script and trace.tb_next is not None:
            trace = trace.tb_next                    # from the script's own first frame on
        traceback.print_exception(error.with_traceback(trace))
        raise SystemExit(1) from None
