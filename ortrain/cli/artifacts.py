"""The command artifacts: makes the training, eval and optimizer model and the checkpoint from a forward model."""

from __future__ import annotations

import argparse
from pathlib import Path

from ortrain.artifacts import generate_artifacts
from ortrain.formats.artifact_names import CHECKPOINT, MODELS
from ortrain.loading.loader import load_model
from ortrain.onnxblock.loss import loss_inputs, losses_by_name
from ortrain.onnxblock.optim import OPTIMIZERS


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("model", metavar="model.onnx", help="A forward model.")
    command.add_argument("--loss", choices=tuple(losses_by_name()), help="The loss, computed from the model's first outputs and the target. Without it, the "
                         "model's first output is the loss.")
    command.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="The optimizer. Default: adamw.")
    command.add_argument("--requires-grad", nargs="+", metavar="NAME", help="The weights to train: names, patterns such as layer4.*, or head for the last "
                         "layers. Without it, all that reach the loss.")
    command.add_argument("--frozen", nargs="+", default=[], metavar="NAME", help="The weights that keep their values: names or patterns.")
    command.add_argument("--additional-outputs", nargs="+", metavar="NAME", help="Values that train and eval steps return besides the loss.")
    command.add_argument("--prefix", default="", help="What the file names begin with.")
    command.add_argument("--out", required=True, metavar="DIR", help="The folder for the four files. Required.")


def run(options: argparse.Namespace) -> None:
    """Write the artifacts and list them."""
    scores = loss_inputs(options.loss, load_model(options.model))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    generate_artifacts(
        options.model, requires_grad=options.requires_grad, frozen_params=options.frozen,
        loss=options.loss, optimizer=options.optimizer, artifact_directory=str(folder), prefix=options.prefix,
        additional_output_names=options.additional_outputs, loss_input_names=scores or None)
    for name in (*MODELS, CHECKPOINT):
        path = folder / f"{options.prefix}{name}"
        if path.exists():
            print(f"{path}  {path.stat().st_size:,} bytes")
