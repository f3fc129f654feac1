"""The command export: writes the trained model of a folder with artifacts, for inference."""

from __future__ import annotations

import argparse

from ortrain.cli.common import existing_folder
from ortrain.errors import InvalidArgumentError
from ortrain.training.session import TrainingSession


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.usage = "%(prog)s DIR [--checkpoint FILE] [--output-names NAME ...] model.onnx"
    command.add_argument("paths", nargs="+", metavar="DIR, model.onnx", help="A folder with artifacts, and the file to write.")
    command.add_argument("--output-names", nargs="+", metavar="NAME", help="The outputs of the written model. Without it, those of the forward model.")
    command.add_argument("--checkpoint", metavar="FILE", help="A checkpoint whose weights are taken. Without it, that of the folder.")


def run(options: argparse.Namespace) -> None:
    """Export the model and print where to."""
    paths, names = options.paths, options.output_names
    if len(paths) == 1 and names:
        # argparse assigns everything after --output-names to it, including the output path
        paths, names = [*paths, names[-1]], names[:-1]
    if len(paths) != 2 or names == []:
        given = [*options.paths, *(options.output_names or [])]
        raise InvalidArgumentError(f"expected a folder, output names and a file to write, got {given}")
    with TrainingSession.from_artifacts(existing_folder(paths[0]), checkpoint=options.checkpoint) as session:
        session.export(paths[1], names)
        print(f"written to {paths[1]}: {', '.join(names or session.output_names(training=False)[1:])}")
