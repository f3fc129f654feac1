"""artifacts: makes the training, eval and optimizer model and the checkpoint from a forward model."""

from __future__ import annotations

import argparse
from pathlib import Path

from ortrain.artifacts import generate_artifacts
from ortrain.cli.common import LOSSES, OPTIMIZERS, add_weight_arguments
from ortrain.formats.artifact_names import CHECKPOINT, MODELS
from ortrain.loading.loader import load_model


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="model.onnx", help="a forward model")
    command.add_argument("--loss", choices=LOSSES, help="loss on the model's first output (default: the first output is the loss)")
    command.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    add_weight_arguments(command)
    command.add_argument("--additional-outputs", nargs="+", metavar="NAME", help="values that train and eval steps return besides the loss")
    command.add_argument("--prefix", default="", help="what the file names begin with")
    command.add_argument("--out", required=True, metavar="DIR", help="folder for the four files")


def run(options: argparse.Namespace) -> None:
    """Write the artifacts and list them."""
    graph = load_model(options.model).graph
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    generate_artifacts(
        options.model, requires_grad=options.requires_grad, frozen_params=options.frozen,
        loss=LOSSES.get(options.loss), optimizer=OPTIMIZERS[options.optimizer], artifact_directory=str(folder), prefix=options.prefix,
        additional_output_names=options.additional_outputs, loss_input_names=graph.outputs[:1] if options.loss else None)
    for name in (*MODELS, CHECKPOINT):
        path = folder / f"{options.prefix}{name}"
        if path.exists():
            print(f"{path}  {path.stat().st_size:,} bytes")
