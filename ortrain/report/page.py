"""The page of a run: what it reached, its curves, its errors, its model and its settings."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ortrain import __version__
from ortrain.data.images import import_pillow
from ortrain.errors import OrtrainError
from ortrain.formats.artifact_names import EVAL_MODEL
from ortrain.formats.atomic_files import replace_file
from ortrain.formats.onnx_files import read_model
from ortrain.ir import Graph
from ortrain.report.curves import curves
from ortrain.report.examples import Example, Findings, examined
from ortrain.report.model_picture import model_picture
from ortrain.report.style import STYLE
from ortrain.runs import Run
from ortrain.runs.folder import TRAINED
from ortrain.trainer import EpochRecord, History
from ortrain.trainer.html import figure_text

NUMBERED_CLASSES, DRAWN_CLASSES = 16, 40
"""Classes up to which a confusion matrix has numbers in its cells, and up to which it is drawn at all."""
CONFUSIONS = 8
"""The most frequent confusions that are listed."""
THUMBNAIL = 144
"""The longest side of an example's image, in pixels."""
RECENT = 12
"""Epochs whose figures are in the table."""
CONDITIONAL = {("missing", "standardize"): "table", ("resize", "mean", "std"): "images", ("lora_rank", "lora_alpha"): "lora"}
"""Settings that are shown for one kind of data, or with another setting, only."""
UNREMARKABLE = {"accumulate": 1, "warmup_steps": 0, "quiet": True}
"""Settings that are not shown when they have these values."""


def write_report(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> list[str]:
    """Write the page of a run and return notes on what it could not show.

    folder: of a run that `python -m ortrain train` has written. Raises ArtifactNotFoundError for a folder without a run or for a path in no folder, and
    InvalidStateError for damaged settings or history."""
    run = Run.open(folder)
    history = run.history()
    findings, notes = None, []
    try:
        findings = examined(run)
    except (OrtrainError, OSError) as error:
        notes.append(f"no confusion matrix and examples, since the validation data could not be evaluated: {error}")
    replace_file(path, page(run, history, findings, notes).encode())
    return notes


def page(run: Run, history: History, findings: Findings | None, notes: Sequence[str] = ()) -> str:
    """Return the page as text."""
    settings = run.settings
    name = run.folder.resolve().name
    graph = read_model(str(run.folder / (TRAINED if (run.folder / TRAINED).exists() else EVAL_MODEL))).graph
    parts = [
        f"<header><p class='kind'>ortrain run</p><h1>{escape(name)}</h1><p>{escape(Path(settings.model).name)} trained on "
        f"{escape(Path(settings.data).name)}</p></header>",
        _tiles(history, findings, graph),
        *(f"<p class='note'>{escape(note[:1].upper() + note[1:])}</p>" for note in notes),
        _curves(history),
        _confusion(findings), _examples(findings), _model(graph), _epochs(history), _settings(run),
        f"<footer>Written by ortrain {escape(__version__)}.</footer>"]
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(name)} – ortrain run</title><style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n")


def _section(title: str, content: str, lead: str = "") -> str:
    return f"<section><h2>{escape(title)}</h2>{f'<p>{lead}</p>' if lead else ''}{content}</section>"


# ---- figures

def _tiles(history: History, findings: Findings | None, graph: Graph) -> str:
    tiles: list[tuple[str, str]] = []
    if findings is not None:
        tiles += [(f"validation {name}", _figure(name, value)) for name, value in findings.figures.items()]
    elif history:
        tiles += [(name.replace("_", " "), _figure(name, value)) for name, value in history[-1].figures.items()]
    tiles.sort(key=lambda tile: tile[0].endswith("loss"))
    if history:
        seconds = sum(record.seconds for record in history)
        tiles += [("epoch" if history[-1].epoch == 1 else "epochs", str(history[-1].epoch)), ("training time", _duration(seconds))]
    numbers = sum(array.size for array in graph.initializers.values())
    tiles.append(("numbers in the model", _amount(numbers)))
    return "<div class='tiles'>" + "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in tiles[:6]) + "</div>"


def _figure(name: str, value: float) -> str:
    return f"{value:.1%}" if name.removeprefix("validation_") == "accuracy" else figure_text(value)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _amount(number: int) -> str:
    for limit, unit in ((1e9, "billion"), (1e6, "million")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:,}"


def _curves(history: History) -> str:
    drawn = curves(history)
    if not drawn:
        return ""
    legend = "<p class='legend'><span class='training'></span>training"
    if any(record.validation for record in history):
        legend += "<span class='validation'></span>validation"
    figures = "".join(f"<figure><figcaption>{escape(name.replace('_', ' '))}</figcaption>{svg}</figure>" for name, svg in drawn.items())
    return f"<section><h2>Curves</h2>{legend}</p><div class='grid'>{figures}</div></section>"


def _epochs(history: History) -> str:
    if not history:
        return ""
    names = list(dict.fromkeys(name for record in history for name in record.figures))
    shown: list[EpochRecord] = history[-RECENT:]
    rows = [[str(record.epoch), *(_figure(name, record.figures[name]) if name in record.figures else "" for name in names), f"{record.learning_rate:.3g}",
             f"{record.seconds:.2f}"] for record in shown]
    hidden = len(history) - len(shown)
    return _section("Epochs", _table(["epoch", *(name.replace("_", " ") for name in names), "learning rate", "seconds"], rows),
                    f"The last {len(shown)} of {len(history)} epochs; history.csv has all." if hidden else "")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


# ---- errors

def _confusion(findings: Findings | None) -> str:
    if findings is None or findings.confusion is None:
        return ""
    matrix, names = findings.confusion, findings.classes
    content = _matrix(matrix, names) if len(matrix) <= DRAWN_CLASSES else ""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:CONFUSIONS]
    pairs = [(int(index) // len(matrix), int(index) % len(matrix)) for index in order]
    rows = [[names[target] if target < len(names) else str(target), names[guess] if guess < len(names) else str(guess), str(wrong[target, guess]),
             f"{wrong[target, guess] / max(1, matrix[target].sum()):.0%}"] for target, guess in pairs if wrong[target, guess]]
    if rows:
        content += "<div><h3>Most frequent confusions</h3>" + _table(["class", "predicted", "samples", "of the class"], rows) + "</div>"
    lead = f"{findings.samples:,} samples: {escape(findings.what)}. Rows are the classes of the samples, columns the predictions."
    return _section("Confusion matrix", f"<div class='columns'>{content}</div>", lead)


def _matrix(matrix: np.ndarray, names: Sequence[str]) -> str:
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    numbered = len(matrix) <= NUMBERED_CLASSES
    labels = [names[number] if number < len(names) else str(number) for number in range(len(matrix))]
    head = "<th></th>" + "".join(f"<th class='turned'><span>{escape(label)}</span></th>" for label in labels)
    rows = []
    for number, label in enumerate(labels):
        cells = []
        for other, guess in enumerate(labels):
            count, share = int(matrix[number, other]), float(shares[number, other])
            kind = "none" if not count else "right" if number == other else "wrong"
            strong = " strong" if share > 0.5 else ""
            cells.append(f"<td class='{kind}{strong}' style='--share:{share:.3f}' title='{escape(label)} predicted as {escape(guess)}: {count}'>"
                         f"{count if numbered and count else ''}</td>")
        rows.append(f"<tr><th>{escape(label)}</th>{''.join(cells)}</tr>")
    style = "confusion" if numbered else "confusion small"
    return f"<div class='scroll'><table class='{style}'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _examples(findings: Findings | None) -> str:
    if findings is None or not findings.examples:
        return ""
    lead = "The validation samples that the model gets most wrong."
    if any(example.image is not None for example in findings.examples):
        return _section("Worst examples", "<div class='examples'>" + "".join(_card(example) for example in findings.examples) + "</div>", lead)
    columns = [name for name, _ in findings.examples[0].features]
    rows = [[example.name, example.target, example.prediction, example.error, *(value for _, value in example.features)] for example in findings.examples]
    return _section("Worst examples", _table(["sample", "target", "prediction", "" if findings.confusion is None else "confidence", *columns], rows), lead)


def _card(example: Example) -> str:
    image = "" if example.image is None else _thumbnail(example.image)
    return (f"<figure>{image}<figcaption><b>{escape(example.prediction)}</b> <span>{escape(example.error)}</span><br>instead of {escape(example.target)}"
            f"<br><small>{escape(example.name)}</small></figcaption></figure>")


def _thumbnail(path: Path) -> str:
    """Return an image as an element with its pixels in it; small ones are enlarged without smoothing."""
    pillow = import_pillow()
    try:
        with pillow.open(path) as file:
            small = file.convert("RGBA" if "A" in file.getbands() else "RGB")
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            content = io.BytesIO()
            small.save(content, format="PNG")
    except (OSError, ValueError, SyntaxError):
        return "<p class='note'>The image cannot be read.</p>"
    kind = " class='pixels'" if max(small.size) < THUMBNAIL // 2 else ""
    return f"<img{kind} alt='' src='data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}'>"


# ---- model and settings

def _model(graph: Graph) -> str:
    svg, notes = model_picture(graph)
    lead = f"{len(graph.nodes)} nodes, {_amount(sum(array.size for array in graph.initializers.values()))} numbers in {len(graph.initializers)} initializers."
    lead += "".join(f" {note[:1].upper()}{note[1:]}." for note in notes)
    key = "".join(f"<span class='{name}'></span>{name}" for name in ("weights", "normalization", "activation", "pooling"))
    return _section("Model", f"<p class='legend key'>{key}</p><div class='picture'>{svg}</div>", escape(lead))


def _settings(run: Run) -> str:
    options, kind = run.settings.options, run.settings.preprocessing.kind
    hidden = {name for names, needed in CONDITIONAL.items() if not (options.get(needed) or needed == kind) for name in names} | UNREMARKABLE.keys()
    given = {name: value for name, value in options.items() if value not in (None, False, [], {}) and (name not in hidden or (
        name in UNREMARKABLE and value != UNREMARKABLE[name]))}
    items = {"model": run.settings.model, "data": run.settings.data, **given}
    rows = "".join(f"<div><dt>{escape(name.replace('_', '-'))}</dt><dd>{escape(_setting(value))}</dd></div>" for name, value in items.items())
    stored = json.dumps(run.settings.preprocessing.to_dict(), indent=1, default=str)
    return _section("Settings", f"<dl>{rows}</dl><details><summary>Preprocessing</summary><pre>{escape(stored)}</pre></details>")


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_setting(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_setting(entry) for entry in value)
    return "yes" if value is True else str(value)
