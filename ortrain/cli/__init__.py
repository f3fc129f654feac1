"""The command line, `python -m ortrain COMMAND`. One module per command, which is imported when its command is given: help is fast."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ortrain import __version__
from ortrain.errors import OrtrainError

DONE, FAILED, USAGE_ERROR, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module in ortrain.cli that defines it, and what it does in one sentence."""

    module: str
    summary: str
    aliases: tuple[str, ...] = ()


COMMANDS = {
    "train": Command("train", "Trains a model on a folder of images, a table or arrays, and writes a folder with the run."),
    "evaluate": Command("evaluate", "Prints the loss and the metrics of a run or a model on a data set.", ("eval",)),
    "predict": Command("predict", "Writes the predictions of a run or a model for a data set."),
    "report": Command("report", "Writes a run as one HTML page: curves, settings, confusion matrix, worst examples, and a picture of the model."),
    "lr-find": Command("lr_find", "Suggests a learning rate by a short training whose learning rate grows."),
    "artifacts": Command("artifacts", "Writes the training, eval and optimizer model and the checkpoint of a forward model."),
    "export": Command("export", "Writes the trained model of a folder with artifacts, for inference."),
    "inspect": Command("inspect", "Shows what a model, a folder with artifacts or a checkpoint holds, and whether ortrain can run and train it."),
    "doctor": Command("doctor", "Lists what in a model cannot be trained, why, and what can be done about it."),
    "profile": Command("profile", "Shows where the time of a training step goes."),
    "run": Command("run", "Runs a script that was written for onnxruntime-training; its imports of onnxruntime mean ortrain."),
    "conformance": Command("conformance", "Runs the conformance cases through every facade, or through a port, or answers the questions of a port."),
    "native": Command("native", "Installs the shared library with the C interface of onnxruntime-training, for programs in C, C++ and other languages."),
    "ops": Command("ops", "Lists every operator with its opsets, the data types of its kernel, the kind of its kernel and its gradient."),
}


class CommandModule(Protocol):
    """What the module of a command has."""

    def add_arguments(self, command: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""

    def run(self, options: argparse.Namespace) -> int | None:
        """Run the command; return its exit status, None for 0."""


def module_of(name: str) -> Any:
    """Import and return the module of a command, a CommandModule."""
    found = next(command for known, command in COMMANDS.items() if name in (known, *command.aliases))
    return importlib.import_module(f"ortrain.cli.{found.module}")


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of one of them."""
    root = argparse.ArgumentParser(
        prog="python -m ortrain", description="Trains ONNX models on ordinary CPUs.",
        epilog=f"Exit status: {DONE} done, {FAILED} an error, {USAGE_ERROR} a wrong command line, {INTERRUPTED} interrupted by Ctrl-C. "
               "COMMAND --help describes a command.")
    root.add_argument("--version", action="version", version=f"ortrain {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        made = commands.add_parser(name, aliases=command.aliases, help=command.summary, description=command.summary)
        if chosen in (name, *command.aliases):
            module_of(name).add_arguments(made)
            made.set_defaults(parser=made)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status, one of DONE, FAILED, USAGE_ERROR and INTERRUPTED; an error is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        # names in models are arbitrary Unicode, which a terminal's encoding may not have
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser(words[0] if words else None).parse_args(words)
    try:
        status = module_of(options.command).run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader (head, less) has closed the pipe; the interpreter's own flush at exit must not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (OrtrainError, OSError, MemoryError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"error: {line}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return DONE if status is None else status
