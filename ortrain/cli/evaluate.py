"""eval: loss and accuracy of a run's folder, or of a forward model, on the arrays of an .npz file."""

from __future__ import annotations

import argparse
from pathlib import Path

from ortrain.cli.common import LOSSES, choose_target, fixed_batch, session_arrays
from ortrain.data.files import read_arrays
from ortrain.errors import InvalidArgumentError
from ortrain.loading.loader import load_model
from ortrain.trainer.trainer import Trainer
from ortrain.training.session import TrainingSession


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("path", metavar="DIR|model.onnx", help="a folder with artifacts, or a forward model")
    command.add_argument("data", metavar="data.npz", help="arrays named as the model's inputs, plus the target; also a .csv or .parquet file")
    command.add_argument("--loss", choices=LOSSES, help="for a forward model (default: cross-entropy for integer targets, else mse)")
    command.add_argument("--target", metavar="NAME", help="name of the target's array (default: labels or target)")
    command.add_argument("--batch-size", type=int, default=256)


def run(options: argparse.Namespace) -> None:
    """Print the loss and, where there are logits and integer labels, the accuracy."""
    data = read_arrays(options.data)
    folder = Path(options.path)
    if folder.is_dir():
        session = TrainingSession.from_artifacts(folder)
    else:
        model = load_model(options.path)
        target = data[choose_target(data, model.graph.inputs, options.target)]
        loss = options.loss or ("cross-entropy" if target.dtype.kind in "iu" else "mse")
        scores = model.graph.outputs[:1]
        session = TrainingSession.from_model(model, loss=LOSSES[loss], loss_input_names=scores, additional_output_names=scores)
    with session:
        if session.eval_model is None:
            raise InvalidArgumentError(f"expected an eval model in {options.path!r}, found none")
        names = session.input_names(training=False)
        inputs, target = session_arrays(data, names, options.target, session.eval_model)
        size = fixed_batch(session.eval_model, names) or options.batch_size
        result = Trainer(session, progress=False).evaluate(inputs, target, batch_size=size)
    print(f"samples {len(target)}, loss {result['loss']:.6f}" + (f", accuracy {result['accuracy']:.2%}" if "accuracy" in result else ""))
