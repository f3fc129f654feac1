"""The command line: python -m ortrain {train,artifacts,eval,export,inspect,doctor,profile,run,conformance,ops}; one module per command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ortrain import __version__
from ortrain.cli import artifacts, conformance, doctor, evaluate, export, inspect, ops, profile, run, train
from ortrain.errors import OrtrainError

COMMANDS = {"train": train, "artifacts": artifacts, "eval": evaluate, "export": export, "inspect": inspect, "doctor": doctor, "profile": profile,
            "run": run, "conformance": conformance, "ops": ops}
USAGE_ERROR = 2
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    root = argparse.ArgumentParser(prog="python -m ortrain", description="Trains ONNX models on ordinary CPUs.")
    root.add_argument("--version", action="version", version=f"ortrain {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").partition(": ")[2].strip()
        command = commands.add_parser(name, help=summary.partition("\n")[0], description=summary)
        module.add_arguments(command)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; an error is one line on stderr and status 2."""
    for stream in (sys.stdout, sys.stderr):
        # names in models are arbitrary Unicode, which a terminal's encoding may not have
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    options = parser().parse_args(arguments)
    try:
        COMMANDS[options.command].run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader (head, less) has closed the pipe; the interpreter's own flush at exit must not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OrtrainError, OSError, MemoryError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"error: {line}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0
