"""The progress of a run: a bar on a terminal, a table and curves in a notebook, one line per epoch elsewhere."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from typing import Any, Literal, TextIO, get_args

from ortrain.errors import InvalidArgumentError
from ortrain.packages import require
from ortrain.trainer.callbacks import Callback, TrainerInterface
from ortrain.trainer.html import figure_text, history_html
from ortrain.trainer.records import EpochRecord, StepRecord
from ortrain.trainer.settings import WORKERS

Kind = Literal["auto", "notebook", "rich", "tqdm", "lines"]

CHECKS = 4
"""How often the clock is read per refresh."""
MAX_STEPS_BETWEEN_CHECKS = 1000
BATCH_SIZE = "batch_size"
"""The setting that turns steps per second into samples per second."""


class ProgressBar(Callback):
    """Shows the mean loss of the epoch, the last figures on validation data, the rate, the remaining time of the run and the resident memory.

    refresh: seconds between two refreshes. display: "rich" or "tqdm" for a bar by these packages, "notebook" for a table with curves, "lines" for one line
    per epoch; "auto" takes the table in notebooks, lines where the stream is no terminal, and the first of rich, tqdm and lines that is installed else.
    stream: where to write; by default sys.stderr as it is when training begins.

    The rate is in samples per second, of all workers, if the trainer's settings have "batch_size", else in steps per second. Between refreshes a step costs
    less than a microsecond. Raises InvalidArgumentError for other values, InvalidStateError when the package of a display is missing."""

    rank_zero_only = True

    def __init__(self, display: Kind = "auto", *, refresh: float = 0.2, stream: TextIO | None = None) -> None:
        if display not in get_args(Kind):
            raise InvalidArgumentError(f"expected display to be one of {list(get_args(Kind))}, got {display!r}")
        if not (math.isfinite(refresh) and refresh > 0):
            raise InvalidArgumentError(f"expected refresh > 0 seconds, got {refresh}")
        if display in ("rich", "tqdm"):
            require(display, "progress", f"the display {display!r}")
        self._kind, self._refresh, self._stream = display, refresh, stream
        self._display: Display | None = None
        self._validation: dict[str, float] = {}
        self._begin(0)

    def _begin(self, step: int) -> None:
        """Start counting at a completed step."""
        self._loss = 0.0
        self._countdown: float = 1
        self._first_step = self._checked_step = step
        self._started = self._checked = self._shown = time.perf_counter()

    def on_fit_begin(self, trainer: TrainerInterface) -> None:
        self._close()
        # there is no sys.stderr where the process was started without
        self._display = make_display(self._kind, self._stream or sys.stderr or io.StringIO())
        self._fit_step, self._fit_started = trainer.step, time.perf_counter()
        self._validation = {}

    def on_epoch_begin(self, trainer: TrainerInterface) -> None:
        self._begin(trainer.step)
        if self._display is not None:
            self._display.begin(f"epoch {trainer.epoch + 1}/{trainer.epochs}", trainer.steps_per_epoch)
            if not self._display.live:
                self._countdown = math.inf

    def on_step_end(self, trainer: TrainerInterface, record: StepRecord) -> None:
        self._loss += record.loss
        self._countdown -= 1
        if self._countdown <= 0:
            self._check(trainer, record)

    def _check(self, trainer: TrainerInterface, record: StepRecord) -> None:
        """Read the clock, refresh the display if it is time, and choose the number of steps after which to read the clock again."""
        now = time.perf_counter()
        rate = (record.step - self._checked_step) / max(now - self._checked, 1e-9)
        self._countdown = min(max(1, int(rate * self._refresh / CHECKS)), MAX_STEPS_BETWEEN_CHECKS)
        self._checked, self._checked_step = now, record.step
        if now - self._shown >= self._refresh and self._display is not None:
            self._shown = now
            self._display.show(record.step - self._first_step, self._text(trainer, record.step, now))

    def _text(self, trainer: TrainerInterface, step: int, now: float) -> str:
        done = step - self._first_step
        parts = [f"loss {figure_text(self._loss / done)}"] if done else []
        parts += [f"validation {name} {figure_text(value)}" for name, value in self._validation.items()]
        rate, unit = done / max(now - self._started, 1e-9), "steps"
        batch_size = trainer.settings.get(BATCH_SIZE)
        if isinstance(batch_size, int):
            rate, unit = rate * batch_size * trainer.settings.get(WORKERS, 1), "samples"
        parts.append(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s")
        if trainer.steps_per_epoch is not None and step > self._fit_step:
            left = trainer.steps_per_epoch * trainer.epochs - step
            # evaluations between epochs included
            parts.append(f"{clock((now - self._fit_started) / (step - self._fit_step) * max(0, left))} left")
        return ", ".join([*parts, *resident_memory()])

    def on_evaluation_end(self, trainer: TrainerInterface, results: dict[str, float]) -> None:
        self._validation = dict(results)

    def on_epoch_end(self, trainer: TrainerInterface, record: EpochRecord) -> None:
        if self._display is not None:
            self._display.end(record, trainer.history)

    def on_fit_end(self, trainer: TrainerInterface) -> None:
        self._close()

    def on_exception(self, trainer: TrainerInterface, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.close()


# ---- displays


class Display:
    """Shows progress. `live`: between the ends of epochs too. This one writes a line per epoch."""

    live = False

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def begin(self, label: str, total: int | None) -> None:
        """An epoch of `total` steps begins."""

    def show(self, done: int, text: str) -> None:
        """So many steps of the epoch are complete."""

    def end(self, record: EpochRecord, history: Sequence[EpochRecord]) -> None:
        """An epoch is complete."""
        print(record, file=self.stream, flush=True)

    def close(self) -> None:
        """Nothing will be shown any more."""


class TqdmDisplay(Display):
    """One bar per epoch, which stays."""

    live = True

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._tqdm = require("tqdm", "progress", "this display").tqdm
        self._bar: Any = None

    def begin(self, label: str, total: int | None) -> None:
        self.close()
        shown = "{desc}: {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt}{postfix}" if total else "{desc}: {n_fmt}{postfix}"
        self._bar = self._tqdm(total=total, desc=label, file=self.stream, bar_format=shown, miniters=1 << 60, mininterval=1e9, dynamic_ncols=True)

    def show(self, done: int, text: str) -> None:
        self._bar.n = done
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.refresh()

    def end(self, record: EpochRecord, history: Sequence[EpochRecord]) -> None:
        self.show(self._bar.total or self._bar.n, str(record).partition(", ")[2])
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class RichDisplay(Display):
    """A bar for the epoch in progress below one line per complete epoch."""

    live = True

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        progress, console = (require(f"rich.{name}", "progress", "this display") for name in ("progress", "console"))
        self._text = require("rich.text", "progress", "this display").Text
        columns = [progress.TextColumn("{task.description}", markup=False), progress.BarColumn(20), progress.MofNCompleteColumn(),
                   progress.TextColumn("{task.fields[text]}", markup=False)]
        # refreshed by the trainer's thread: one of its own would take time from training. What is printed goes above the bar, unless it goes to a file
        self._progress = progress.Progress(*columns, console=console.Console(file=stream), auto_refresh=False, transient=True,
                                           redirect_stdout=sys.stdout is not None and sys.stdout.isatty())
        self._task: Any = None
        self._progress.start()

    def begin(self, label: str, total: int | None) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(label, total=total, text="")
        self._progress.refresh()

    def show(self, done: int, text: str) -> None:
        self._progress.update(self._task, completed=done, text=text, refresh=True)

    def end(self, record: EpochRecord, history: Sequence[EpochRecord]) -> None:
        self._progress.console.print(self._text(str(record)))

    def close(self) -> None:
        self._progress.stop()


class NotebookDisplay(Display):
    """A bar, the curves and the table of all epochs, which replace each other in one output cell."""

    live = True

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        module = require("IPython.display", "notebook", "this display")
        self._html, self._handle = module.HTML, module.DisplayHandle()
        self._handle.display(self._html("training begins"))
        self._label = self._bar = self._epochs = ""
        self._total: int | None = None

    def begin(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self.show(0, "")

    def show(self, done: int, text: str) -> None:
        share = f'<progress value="{done}" max="{self._total}"></progress>' if self._total else ""
        self._bar = f"<div>{escape(self._label)} {share} {done:,}{f'/{self._total:,}' if self._total else ''} {escape(text)}</div>"
        self._handle.update(self._html(self._bar + self._epochs))

    def end(self, record: EpochRecord, history: Sequence[EpochRecord]) -> None:
        self._epochs = history_html(history)
        self._handle.update(self._html(self._bar + self._epochs))

    def close(self) -> None:
        if self._epochs:
            self._handle.update(self._html(self._epochs))


DISPLAYS: dict[str, type[Display]] = {"notebook": NotebookDisplay, "rich": RichDisplay, "tqdm": TqdmDisplay, "lines": Display}


def make_display(kind: Kind, stream: TextIO) -> Display:
    """Return the display of a kind; see ProgressBar."""
    if kind != "auto":
        return DISPLAYS[kind](stream)
    if in_notebook():
        return NotebookDisplay(stream)
    if stream.isatty():
        for name in ("rich", "tqdm"):
            if _installed(name):
                return DISPLAYS[name](stream)
    return Display(stream)


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:          # sys.modules[name] is None: the import was forbidden
        return False


def in_notebook() -> bool:
    """Return whether the process is an IPython kernel, as of Jupyter."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


# ---- figures


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def resident_memory() -> list[str]:
    """Return the resident memory of the process as a text in a list; the peak where the system tells no more; [] where it tells nothing."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return [f"{int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 1e6:,.0f} MB"]
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    try:
        import resource
    except ImportError:
        return []
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return [f"peak {peak / 1e6:,.0f} MB"]
