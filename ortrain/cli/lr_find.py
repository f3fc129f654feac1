"""The command lr-find: a learning-rate range test, of which nothing is kept but its curve."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from ortrain.cli.common import count, positive
from ortrain.cli.options import GROUPS, OPTIONS, add_options, complete, given_options
from ortrain.cli.setup import class_weights, make_trainer, open_data
from ortrain.errors import ArtifactNotFoundError
from ortrain.runtime.seed import set_seed

UNUSED = {"learning_rate", "schedule", "schedule_options", "warmup_steps", "epochs", "accumulate", "weight_average", "metrics", "patience", "monitor",
          *(option.key for group in ("workers", "differential privacy", "run") for option in GROUPS[group] if option.key != "config")}
"""Options of `train` that have no meaning here."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.usage = "%(prog)s model.onnx DATA --loss LOSS [option ...]"
    command.add_argument("model", nargs="?", metavar="model.onnx", help="A forward model, without a loss.")
    command.add_argument("data", nargs="?", metavar="DATA", help="A folder of images, a table or arrays, as for train.")
    command.add_argument("--plot", default="learning_rate.png", metavar="FILE", help="The plot of the loss over the learning rate, which needs matplotlib. "
                         "Default: learning_rate.png.")
    command.add_argument("--lowest", type=positive, default=1e-7, metavar="NUMBER", help="The learning rate of the first step. Default: 1e-07.")
    command.add_argument("--highest", type=positive, default=10.0, metavar="NUMBER", help="The learning rate of the last step. Default: 10.")
    command.add_argument("--steps", type=count(5), default=100, metavar="N", help="Training steps. Default: 100.")
    add_options(command, leave_out=UNUSED)


def run(options: argparse.Namespace) -> None:
    """Run the test, print the suggestion and write the plot."""
    given = given_options(options)
    for name in ("model", "data", "loss"):
        if name not in given:
            options.parser.error(f"expected {'--loss, one of ' + ', '.join(OPTIONS['loss'].how['choices']) if name == 'loss' else f'the {name}'}")
    if not Path(options.plot).resolve().parent.is_dir():
        raise ArtifactNotFoundError(f"expected an existing folder for --plot, got {options.plot!r}")
    settings = complete(given)
    set_seed(settings["seed"])
    trainer = make_trainer(settings, progress=False)
    _, _, data = open_data(trainer, settings)
    if settings["class_weight"]:
        weights = class_weights(settings["class_weight"], trainer, data)
        trainer.close()
        trainer = make_trainer(settings, class_weight=weights, progress=False)
    with trainer:
        curve = trainer.find_learning_rate(data.training, batch_size=settings["batch_size"], lowest=options.lowest, highest=options.highest,
                                           steps=options.steps)
    print(f"suggested learning rate: {curve.suggestion:.2g}")
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot, which needs matplotlib: pip install 'ortrain[plot]'")
        return
    curve.plot(options.plot)
    print(f"written to {options.plot}: loss over learning rate in {len(curve.losses)} steps")
