"""The page docs/command-line.md, rendered from the parsers: `python -m ortrain.cli.page > docs/command-line.md`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ortrain.cli import COMMANDS, DONE, FAILED, INTERRUPTED, USAGE_ERROR, parser

INTRODUCTION = f"""# Command line

`python -m ortrain COMMAND`, or `ortrain COMMAND` where the package is installed. This page is rendered by `python -m ortrain.cli.page`.

    python -m ortrain lr-find model.onnx photos --loss cross-entropy
    python -m ortrain train model.onnx photos --loss cross-entropy --epochs 20 --patience 3 --augment horizontal-flip --out run
    python -m ortrain report run
    python -m ortrain evaluate run more_photos
    python -m ortrain predict run new_photos --out predictions.csv

## Exit status

| status | meaning |
|---:|---|
| {DONE} | The command is done. |
| {FAILED} | It failed: a file is missing or damaged, the data do not fit the model, or training failed. `doctor` found something that prevents training. |
| {USAGE_ERROR} | The command line, or the configuration file, is wrong. |
| {INTERRUPTED} | It was interrupted by Ctrl-C. `train` saves the run after the running step, but not with Ray, and `--resume` continues what was saved. |

An error is one line on the standard error output. A command that is refused writes nothing.

## Data

`train`, `evaluate`, `predict`, `lr-find` and `profile` read

- a folder with one subfolder of images per class, for models whose only input is an image (`predict` takes an image, or a folder of images, without classes);
- a table in a `.csv` or `.parquet` file. Columns that have the names of all inputs are taken as they are. Otherwise columns of numbers are standardized, with
  missing values replaced, and columns of text are categories, which become columns of zeros and ones where the model has a single float input;
- the arrays of an `.npz` file, named like the model's inputs, with the target in one of the name of `--target`, or labels, target, label or y.

What was fitted to the training data (classes, means, categories, image size) is stored with the run, so that later data are read in the same way.

## The folder of a run

| file | content |
|---|---|
| `trained.onnx` | The trained model, with the best weights after `--patience` and averaged ones after `--weight-average`. |
| `checkpoint`, `checkpoint.best` | The latest state of the run and that of the best epoch, with the optimizer's state. |
| `training_model.onnx`, `eval_model.onnx`, `optimizer_model.onnx` | The artifacts. |
| `settings.json`, `trainer.json` | All settings, the classes or encodings, and where the data are. |
| `history.json`, `history.csv` | The figures of every epoch. |
| `learning_curve.png` | Their curves, if matplotlib is installed. |
| `adapter`, `merged.onnx` | With `--lora`: the adapter alone in the format of PEFT, and the model with the adapter merged into its weights. |
| `log.csv`, `log-steps.csv`, `tensorboard` | With `--log`. |
| `report.html` | After `report`. |

## Configuration files

`--config run.toml` gives options by their names; the command line takes precedence. Unknown names are refused. Relative paths count from the current
folder.

```toml
model = "model.onnx"
data = "photos"
out = "run"
loss = "cross-entropy"
epochs = 20
metrics = ["accuracy", "f1-macro"]

[optimizer_options]
weight_decay = 0.01
```
"""


def page() -> str:
    """Return the page."""
    lines = [INTRODUCTION, "## Commands", ""]
    for name, command in COMMANDS.items():
        made = _parser_of(name)
        alias = f" Also called `{command.aliases[0]}`." if command.aliases else ""
        lines += [f"### {name}", "", f"{command.summary}{alias}", "", *_arguments(made)]
    return "\n".join(lines).rstrip() + "\n"


def _parser_of(name: str) -> argparse.ArgumentParser:
    choices = next(action for action in parser(name)._actions if isinstance(action, argparse._SubParsersAction)).choices
    made: argparse.ArgumentParser = choices[name]
    return made


def _arguments(command: argparse.ArgumentParser) -> Iterator[str]:
    for group in command._action_groups:
        actions = [action for action in group._group_actions if action.dest != "help"]
        if not actions:
            continue
        title = group.title or ""
        heading = "argument" if title == "positional arguments" else "option" if title == "options" else f"options: {title}"
        yield from (f"| {heading} | |", "|---|---|")
        for action in actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from (f"| `{_cell(choice.dest)}` | {_cell(choice.help or '')} |" for choice in action._choices_actions)
                for name, nested in action.choices.items():
                    for option in nested._actions:
                        if option.dest != "help":
                            yield f"| `{name} {_cell(_call(option))}` | {_cell(option.help or '')} |"
            else:
                yield f"| `{_cell(_call(action))}` | {_cell((action.help or '').replace('%%', '%'))} |"
        yield ""


def _call(action: argparse.Action) -> str:
    """Return how an option is written: --name VALUE."""
    words = [str(choice) for choice in action.choices] if action.choices is not None else []
    value = "" if action.nargs == 0 else str(action.metavar or (f"{{{','.join(words)}}}" if words else action.dest.upper()))
    value += " ..." if action.nargs in ("+", "*", argparse.REMAINDER) else ""
    return f"{', '.join(action.option_strings)} {value}".strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
