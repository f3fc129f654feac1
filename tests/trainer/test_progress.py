"""Progress is shown on terminals and in notebooks, is one line per epoch elsewhere, and costs a step next to nothing."""

import io
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.trainer import progress
from ortrain.trainer.callbacks import LambdaCallback
from ortrain.trainer.progress import ProgressBar, clock, make_display, resident_memory
from ortrain.trainer.records import StepRecord
from tests.trainer.fakes import FakeTrainer


class Terminal(io.StringIO):
    def isatty(self):
        return True


VALIDATION = [{"loss": 0.25, "f1": 0.75}] * 3
ALWAYS = 1e-9
"""A refresh after every step."""


def shown_by(kind, stream, **how):
    trainer = FakeTrainer([ProgressBar(kind, refresh=ALWAYS, stream=stream)], validation=VALIDATION, **how)
    trainer.fit()
    return stream.getvalue(), trainer


def test_one_line_per_epoch_where_there_is_no_terminal():
    shown, trainer = shown_by("auto", io.StringIO())
    assert shown.splitlines() == list(map(str, trainer.history))


@pytest.mark.parametrize("kind", ["rich", "tqdm"])
def test_a_bar_on_a_terminal_shows_loss_figures_rate_time_and_memory(kind, monkeypatch):
    pytest.importorskip(kind)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("TERM", "xterm")
    shown, _ = shown_by(kind, Terminal(), settings={"batch_size": 32})
    assert "epoch 2/3" in shown and "loss 0.1" in shown
    assert "validation loss 0.2500, validation f1 0.7500" in shown, "the last evaluation"
    assert " samples/s" in shown and "0:00 left" in shown and " MB" in shown
    if kind == "rich":
        assert "epoch 3, loss 0.0833, accuracy 0.5000" in shown, "complete epochs stay"


@pytest.mark.parametrize("kind", ["rich", "tqdm"])
def test_a_bar_needs_no_number_of_steps(kind):
    pytest.importorskip(kind)
    shown, _ = shown_by(kind, Terminal(), steps_per_epoch=None)
    assert "epoch 3/3" in shown


def test_the_first_installed_package_draws_the_bar(monkeypatch):
    for name in ("rich", "tqdm"):
        pytest.importorskip(name)
    display = make_display("auto", Terminal())
    display.close()
    assert isinstance(display, progress.RichDisplay)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert isinstance(make_display("auto", Terminal()), progress.TqdmDisplay)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert type(make_display("auto", Terminal())) is progress.Display
    with pytest.raises(InvalidStateError, match=r"ortrain\[progress\]"):
        ProgressBar("tqdm")


@pytest.fixture
def notebook(monkeypatch):
    """A kernel of IPython, as far as the display needs it; returns the HTML shown so far."""
    shown = []

    class Handle:
        def display(self, html):
            shown.append(html)

        update = display

    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    display = types.ModuleType("IPython.display")
    display.HTML = str
    display.DisplayHandle = Handle
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_notebook_shows_curves_and_a_table_that_grow(notebook):
    shown, trainer = shown_by("auto", io.StringIO())
    assert shown == ""
    assert any('<progress value="2" max="4">' in html and "epoch 2/3" in html and "<svg" in html for html in notebook)
    assert notebook[-1] == trainer.history._repr_html_(), "the bar is gone in the end"


IN_IPYTHON = """
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.displaypub import CapturingDisplayPublisher
from ortrain.trainer.progress import ProgressBar
from tests.trainer.fakes import FakeTrainer

shell = InteractiveShell.instance(display_pub_class=CapturingDisplayPublisher)
trainer = FakeTrainer([ProgressBar("notebook", refresh=1e-9)])
trainer.fit()
outputs = shell.display_pub.outputs
assert [output["update"] for output in outputs] == [False, *[True] * (len(outputs) - 1)], "one cell, which is replaced"
assert len({output["transient"]["display_id"] for output in outputs}) == 1
assert outputs[-1]["data"]["text/html"] == trainer.history._repr_html_()
"""


def test_a_real_ipython_replaces_one_output():
    pytest.importorskip("IPython")
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run([sys.executable, "-c", IN_IPYTHON], cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_what_is_printed_into_a_file_during_training_stays_there(capsys):
    pytest.importorskip("rich")
    stream = Terminal()
    printing = LambdaCallback(on_epoch_end=lambda trainer, record: print(f"own line {record.epoch}"))
    FakeTrainer([ProgressBar("rich", stream=stream), printing]).fit()
    assert capsys.readouterr().out.splitlines() == ["own line 1", "own line 2", "own line 3"] and "own line" not in stream.getvalue()


def test_training_goes_on_without_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    trainer = FakeTrainer([ProgressBar()])
    trainer.fit()
    assert trainer.epoch == 3


def test_an_exception_ends_the_bar(capsys):
    for kind in ("lines", "tqdm", "rich"):
        if kind != "lines":
            pytest.importorskip(kind)
        bar = ProgressBar(kind, stream=Terminal())
        with pytest.raises(KeyboardInterrupt):
            FakeTrainer([bar], fail_at=6).fit()
        assert bar._display is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["lines", "tqdm", "rich"])
def test_a_step_costs_less_than_five_microseconds_between_refreshes(kind):
    if kind != "lines":
        pytest.importorskip(kind)
    bar = ProgressBar(kind, refresh=3600, stream=Terminal())
    trainer = FakeTrainer([bar], steps_per_epoch=10**6)
    bar.on_fit_begin(trainer)
    bar.on_epoch_begin(trainer)
    records = [StepRecord(step + 1, 1, 0.5, 0.01, None) for step in range(20_000)]
    costs = []
    for _ in range(5):
        started = time.perf_counter()
        for record in records:
            bar.on_step_end(trainer, record)
        costs.append((time.perf_counter() - started) / len(records))
    bar.on_fit_end(trainer)
    assert min(costs) < 5e-6


def test_refreshes_are_gated_by_time():
    bar = ProgressBar("lines", refresh=0.02)
    times = []

    class Counting(progress.Display):
        live = True

        def show(self, done, text):
            times.append(time.perf_counter())

    trainer = FakeTrainer([], steps_per_epoch=10**6)
    bar.on_fit_begin(trainer)
    bar._display = Counting(io.StringIO())
    bar.on_epoch_begin(trainer)
    started = time.perf_counter()
    step = 0
    while time.perf_counter() < started + 0.3:
        step += 1
        bar.on_step_end(trainer, StepRecord(step, 1, 0.5, 0.01, None))
    assert 1 <= len(times) <= (time.perf_counter() - started) / 0.02 + 1 and len(times) < step / 10


def test_remaining_time_and_memory_are_plausible():
    assert [clock(seconds) for seconds in (0, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]
    (memory,) = resident_memory()
    assert 10 < int(memory.removeprefix("peak ").removesuffix(" MB").replace(",", "")) < 100_000


def test_settings_that_make_no_sense_are_refused():
    for how in ({"display": "bar"}, {"refresh": 0}, {"refresh": float("nan")}):
        with pytest.raises(InvalidArgumentError, match="expected"):
            ProgressBar(**how)
