"""The options of training: their names, defaults and texts. The command line, configuration files and resumed runs share this one table."""

from __future__ import annotations

import argparse
import math
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ortrain.cli.common import count, pair, positive, shape, size
from ortrain.cli.workers import STRATEGY_NAMES, SYNCHRONIZATIONS
from ortrain.data.encoding import MISSING_RULES
from ortrain.onnxblock.loss import losses_by_name
from ortrain.onnxblock.optim import OPTIMIZERS
from ortrain.runtime.options import PARAMETER_DTYPES, PRECISIONS
from ortrain.runtime.state import DEFAULT_LEARNING_RATE
from ortrain.training.schedules import SCHEDULES

PRECISION_HELP = "The type to which operands of matrix multiplications are rounded; auto is bfloat16 where the processor multiplies such numbers."
NO_DECAY = ["*bias", "*norm*", "*Norm*"]
"""The parameters that --no-decay exempts when it is given without patterns."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name, its help, its default, and further arguments of add_argument.

    continues: a resumed run may be given another value."""

    name: str
    help: str
    default: Any = None
    how: dict[str, Any] = field(default_factory=dict)
    continues: bool = False
    alias: str | None = None

    @property
    def key(self) -> str:
        """The name of the option's value."""
        return self.name.removeprefix("--").replace("-", "_")


def _option(name: str, text: str, default: Any = None, *, continues: bool = False, alias: str | None = None, **how: Any) -> Option:
    return Option(name, text, default, how, continues, alias)


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and below 1, got {text!r}")
    return number


def _share_or_path(text: str) -> str:
    """Make a path absolute, so that a resumed run finds it from anywhere."""
    try:
        return str(float(text))
    except ValueError:
        return os.path.abspath(text)


GROUPS: dict[str, list[Option]] = {
    "data": [
        _option("--target", "The column or array to be predicted. Without it, the one named like the model's target, labels, target, label or y.",
                metavar="NAME"),
        _option("--features", "The columns of a table to be used. Without it, all but the target.", nargs="+", metavar="COLUMN"),
        _option("--categorical", "The columns of a table that are categories. Without it, those of text.", nargs="+", metavar="COLUMN"),
        _option("--missing", "What replaces missing numbers of a table.", "mean", choices=MISSING_RULES),
        _option("--standardize", "Give the columns of a table mean 0 and standard deviation 1.", True, action=argparse.BooleanOptionalAction),
        _option("--image-size", "The size of images, where the model leaves it open.", type=size, metavar="HEIGHTxWIDTH"),
        _option("--resize", "How images get their size: their proportions change, their margins are cut off, or margins are added.", "squash",
                choices=("squash", "crop", "pad")),
        _option("--mean", "Is subtracted from pixels, which are between 0 and 1; one number, or one per channel.", [0.0], nargs="+", type=float,
                metavar="NUMBER"),
        _option("--std", "Divides pixels after --mean; one number, or one per channel.", [1.0], nargs="+", type=positive, metavar="NUMBER"),
        _option("--augment", "Random changes of training images: horizontal-flip, vertical-flip, random-crop=PIXELS or LOW:HIGH, brightness=SHARE, "
                "contrast=SHARE.", nargs="+", metavar="CHANGE"),
        _option("--validation", "The share of the samples that is held out, or a data file or folder of its own; 0 for none.", "0.1", type=_share_or_path,
                metavar="SHARE|PATH"),
    ],
    "model": [
        _option("--loss", "The loss, computed from the model's first outputs and the target. Required.", choices=tuple(losses_by_name())),
        _option("--loss-options", "Arguments of the loss, such as gamma=2.", nargs="+", type=pair, metavar="NAME=VALUE"),
        _option("--label-smoothing", "The share of the target that is spread evenly over all classes.", type=_share, metavar="SHARE"),
        _option("--class-weight", "A weight of the loss for each class, or balanced for weights that make all classes count the same.", nargs="+",
                metavar="NUMBER|balanced"),
        _option("--num-classes", "Give the model a new last layer with so many outputs, for data with other classes than it was trained on.", type=count(1),
                metavar="N"),
        _option("--requires-grad", "The weights to train: names, patterns such as layer4.*, or head for the last layers. Without it, all that reach the "
                "loss.", nargs="+", metavar="NAME"),
        _option("--frozen", "The weights that keep their values: names or patterns.", nargs="+", metavar="NAME"),
        _option("--input-shapes", "Shapes of inputs, such as image=batch,3,224,224; a word in place of a fixed batch size opens the batch.", nargs="+",
                type=shape, metavar="NAME=DIMENSIONS"),
        _option("--lora", "Train low-rank adapters (LoRA) on these layers alone: patterns such as *attention*, or all-linear.", nargs="+", metavar="TARGET"),
        _option("--lora-rank", "The rank of the adapters.", 8, type=count(1), metavar="N"),
        _option("--lora-alpha", "The adapters' outputs are multiplied by this number divided by the rank. Without it, the rank.", type=positive,
                metavar="NUMBER"),
    ],
    "optimization": [
        _option("--optimizer", "The optimizer.", "adamw", choices=tuple(OPTIMIZERS)),
        _option("--optimizer-options", "Arguments of the optimizer, such as weight_decay=0.01 or momentum=0.9.", nargs="+", type=pair, metavar="NAME=VALUE"),
        _option("--learning-rate", "The step size of the optimizer.", DEFAULT_LEARNING_RATE, type=positive, metavar="NUMBER"),
        _option("--schedule", "How the learning rate changes.", choices=tuple(SCHEDULES)),
        _option("--schedule-options", "Arguments of the schedule, such as final_learning_rate=1e-5.", nargs="+", type=pair, metavar="NAME=VALUE"),
        _option("--warmup-steps", "Optimizer steps in which the learning rate grows from 0.", 0, type=count(0), metavar="N"),
        _option("--epochs", "Epochs in total, those of a resumed run included.", 10, type=count(1), metavar="N", continues=True),
        _option("--batch-size", "Samples in a training step, of each process where there are several.", 32, type=count(1), metavar="N"),
        _option("--accumulate", "Batches whose gradients make one optimizer step.", 1, type=count(1), metavar="N"),
        _option("--clip-norm", "The limit of the gradients' common norm.", type=positive, metavar="NUMBER", alias="--clip"),
        _option("--no-decay", f"Patterns of parameters that are exempt from weight decay; given alone: {' '.join(NO_DECAY)}.", nargs="*", metavar="PATTERN"),
        _option("--weight-average", "The decay of an exponential moving average of the weights, which is then evaluated and exported.", type=_share,
                metavar="DECAY"),
        _option("--metrics", "Metrics beside the loss, such as accuracy, f1-macro, auroc, mae or top-5. Without it, accuracy for classes.", nargs="+",
                metavar="NAME"),
        _option("--patience", "End after so many epochs without a better monitored figure, and take the best weights.", type=count(1), metavar="N",
                continues=True),
        _option("--monitor", "The figure for --patience and the best checkpoint, such as validation_loss or validation_accuracy. Without it, the loss on "
                "validation data, or on training data where there are none.", metavar="FIGURE"),
        _option("--seed", "Of the split, the order of samples, random changes and random masks.", 0, type=count(0), metavar="N"),
        _option("--precision", PRECISION_HELP, "float32", choices=PRECISIONS, continues=True),
        _option("--parameter-dtype", "How trained weights and the optimizer's moments are kept; bfloat16 takes half the memory and is rounded stochastically.",
                "float32", choices=PARAMETER_DTYPES),
        _option("--threads", "Threads of a step. Without it, the physical cores, shared by processes, at most 8.", type=count(1), metavar="N", continues=True),
    ],
    "workers": [
        _option("--strategy", "Train in several processes, each on its part of every batch: in all that mpiexec -n N python -m ortrain train has started (mpi) "
                "or in the --workers that Ray starts (ray).", choices=STRATEGY_NAMES),
        _option("--workers", "The processes that Ray starts, with a processor each, or as many as --threads.", type=count(1), metavar="N"),
        _option("--synchronization", "What workers exchange, and when, in place of all gradients after every backward pass.", choices=tuple(SYNCHRONIZATIONS)),
        _option("--synchronization-options", "Arguments of the synchronization, such as every=100 or share=0.01.", nargs="+", type=pair, metavar="NAME=VALUE"),
        _option("--synchronized-batch-normalization", "Normalize the batches of all workers by their common statistics, instead of each by its own.", False,
                action="store_true"),
    ],
    "differential privacy": [
        _option("--noise-multiplier", "Train with differential privacy (DP-SGD): clip the gradient of each sample, and add normal noise whose standard "
                "deviation is this number times --max-grad-norm.", type=positive, metavar="NUMBER"),
        _option("--max-grad-norm", "The limit of the norm of a sample's gradient.", 1.0, type=positive, metavar="NUMBER"),
        _option("--delta", "Record after each epoch the epsilon for which training was (epsilon, delta)-differentially private.", type=_share,
                metavar="NUMBER"),
        _option("--max-epsilon", "End before epsilon exceeds this number.", type=positive, metavar="NUMBER", continues=True),
    ],
    "run": [
        _option("--out", "The folder of the run. Required.", metavar="DIR"),
        _option("--config", "A TOML file with values for options, by their names; the command line takes precedence.", metavar="FILE"),
        _option("--resume", "Continue the run in DIR where it was saved, with its settings and data.", False, action="store_true"),
        _option("--overwrite", "Replace a run that DIR holds.", False, action="store_true"),
        _option("--save-every-steps", "Also save the run after so many optimizer steps, not only after each epoch, so that --resume repeats fewer of them.",
                type=count(1), metavar="N", continues=True),
        _option("--log", "Also write log.csv, or event files for TensorBoard.", nargs="+", choices=("csv", "tensorboard"), continues=True),
        _option("--quiet", "Show no progress.", False, action="store_true", continues=True),
    ],
}
"""Group -> its options, in the order of the help."""

OPTIONS = {option.key: option for group in GROUPS.values() for option in group}
"""Key -> option."""
POSITIONAL = ("model", "data")
NOT_SETTINGS = ("out", "config", "resume", "overwrite", "strategy", "workers")
"""Options that say where and how a run is written, and are not part of its settings."""


def add_options(command: argparse.ArgumentParser, leave_out: Collection[str] = ()) -> None:
    """Add all options but some. Those that are not given leave no value, so that a configuration can tell."""
    for title, options in GROUPS.items():
        group = command.add_argument_group(title)
        for option in options:
            if option.key not in leave_out:
                default = "" if option.default is None or option.how.get("action") == "store_true" else f" Default: {_text(option.default)}."
                names = [option.name] if option.alias is None else [option.name, option.alias]
                group.add_argument(*names, help=option.help.replace("%", "%%") + default, default=argparse.SUPPRESS, **option.how)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(_text, value)) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else str(value)


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values that the command line and its configuration file give, by key; the command line takes precedence."""
    line = _values(options)
    if "config" not in line:
        return line
    positional, words = _configuration(line["config"], options.parser)
    return positional | _values(options.parser.parse_args(words)) | line


def _values(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was given as settings hold it: pairs as dictionaries."""
    found = {key: value for key, value in vars(options).items() if (key in OPTIONS or key in POSITIONAL) and value is not None}
    return {key: dict(value) if isinstance(value, list) and key in OPTIONS and OPTIONS[key].how.get("type") in (pair, shape) else value
            for key, value in found.items()}


def _configuration(path: str, command: argparse.ArgumentParser) -> tuple[dict[str, str], list[str]]:
    """Return (model and data, the options as words of a command line) of a configuration file, so that both are checked by the same rules.

    Ends the program for an unknown name and a wrong type, as a wrong option does."""
    try:
        with open(path, "rb") as file:
            values = {name.replace("-", "_"): value for name, value in tomllib.load(file).items()}
    except (OSError, ValueError) as error:
        command.error(f"expected a TOML file as --config, got {path!r}: {error}")
    known = {action.dest for action in command._actions if action.dest in OPTIONS or action.dest in POSITIONAL} - {"config"}
    unknown = sorted(set(values) - known)
    if unknown:
        command.error(f"expected the names of options in {path!r}, got {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    positional = {name: str(values.pop(name)) for name in POSITIONAL if name in values}
    return positional, [word for name, value in values.items() for word in _as_words(path, name, value, command)]


def _as_words(path: str, name: str, value: Any, command: argparse.ArgumentParser) -> list[str]:
    """Return the words that give an option a value of a configuration file."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        if "action" not in OPTIONS[name].how:
            command.error(f"expected a value for {name} in {path!r}, got {str(value).lower()}")
        negative = f"--no-{option.removeprefix('--')}"
        return [option] if value else [negative] if negative in command._option_string_actions else []
    if isinstance(value, dict):
        return [option, *(f"{key}={_joined(entry)}" for key, entry in value.items())]
    if isinstance(value, list):
        return [option, *map(str, value)]
    if isinstance(value, str | int | float):
        return [f"{option}={value}"] if "nargs" not in OPTIONS[name].how else [option, str(value)]
    command.error(f"expected text, numbers, true or false for {name} in {path!r}, got {value!r}")


def _joined(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_joined, value)) if isinstance(value, list) else str(value)


def complete(given: Mapping[str, Any], stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all settings: what was given, then what a resumed run has stored, then the defaults."""
    return {key: option.default for key, option in OPTIONS.items()} | dict(stored or {}) | dict(given)
