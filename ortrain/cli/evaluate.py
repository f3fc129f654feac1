"""The command evaluate: loss and metrics of a run, or of a forward model, on a data set."""

from __future__ import annotations

import argparse

from ortrain.cli.common import count, figures_line
from ortrain.cli.subjects import add_subject_options, labelled_subject
from ortrain.onnxblock.loss import losses_by_name


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("path", metavar="DIR|model.onnx", help="A run, a folder with artifacts, or a forward model.")
    command.add_argument("data", metavar="DATA", help="A folder of images, a table or arrays, with targets.")
    command.add_argument("--loss", choices=tuple(losses_by_name()),
                         help="The loss of a forward model. Without it, cross-entropy for whole numbers as targets, else mse.")
    command.add_argument("--metrics", nargs="+", metavar="NAME", help="Metrics beside the loss. Without it, those of the run, or accuracy for classes.")
    command.add_argument("--batch-size", type=count(1), default=256, metavar="N", help="Samples in a batch. Default: 256.")
    add_subject_options(command)


def run(options: argparse.Namespace) -> None:
    """Print the number of samples, the loss and the metrics."""
    trainer, loader = labelled_subject(options)
    with trainer:
        figures = trainer.evaluate(loader)
    samples = "" if loader.samples is None else f"samples {loader.samples}, "
    print(f"{samples}{figures_line(figures)}")
