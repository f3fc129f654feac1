"""Processes of several runtimes that take turns: each computes steps for a fraction of a second while the others wait.

What disturbs a machine for seconds, such as other users of a shared processor, then disturbs all runtimes alike. The processes run `measure.time_steps` with
--take-turns: they print a JSON line when they are ready, and one after each turn, which begins with a line on their standard input that has its seconds."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import READY, TURN_TAKEN

TURN_SECONDS = 0.25
PAUSE_SECONDS = 0.05
"""Between two turns, in which threads that spin for a while after their last step go to sleep."""

Result = dict[str, Any]


@dataclass(frozen=True)
class Command:
    """A process to start: its arguments without --started-at, its environment and its working directory."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str


class Contender(ExitStack):
    """A process that takes turns; as a context manager, it ends the process.

    result: its figures, or the reason why there are none; None while it takes part.
    limit: seconds after which it is stopped where it is expected to answer."""

    def __init__(self, command: Command, limit: float) -> None:
        super().__init__()
        self.result: Result | None = None
        self._limit, self._late = limit, False
        self._errors = self.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115  it is closed with the stack
        self._process = self.enter_context(subprocess.Popen(
            [*command.arguments, "--started-at", repr(time.time())], cwd=command.folder, env=dict(command.environment), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, text=True))
        self.callback(self._process.kill)
        self._await_answer()

    def take_turn(self, seconds: float) -> None:
        """Let the process compute steps for some seconds."""
        if self.result is None:
            self._send(f"{seconds}\n")
            self._await_answer()

    def finish(self) -> Result:
        """Let the process end and return its result."""
        if self.result is None:
            self._send(None)
            self._await_answer()
        assert self.result is not None, "processes have a result when their input has ended"
        return self.result

    def _send(self, line: str | None) -> None:
        """Write a line to the process, or end its input. A process that has ended is noticed when its answer is read."""
        assert self._process.stdin is not None
        try:
            if line is None:
                self._process.stdin.close()
            else:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def _await_answer(self) -> None:
        """Read until the process answers. Its result is any answer but that it goes on, and the end of its output."""
        assert self._process.stdout is not None
        timer = threading.Timer(self._limit, self._stop)
        timer.start()
        line = next((line for line in self._process.stdout if line.startswith('{"status"')), None)
        timer.cancel()
        if line is None:
            self.result = {"status": "failed", "reason": f"no result within {self._limit:g} s" if self._late else self._last_error()}
        else:
            answer = dict(json.loads(line))
            self.result = None if answer["status"] in (READY, TURN_TAKEN) else answer

    def _stop(self) -> None:
        self._late = True
        self._process.kill()

    def _last_error(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {status}"


def take_turns(commands: Sequence[Command], seconds: float, limit: float) -> list[Result]:
    """Start the processes one after another, let them take turns until each has computed for `seconds`, and return their results.

    Every other round of turns runs in reverse order."""
    with ExitStack() as stack:
        contenders = [stack.enter_context(Contender(command, limit)) for command in commands]
        for number in range(max(1, round(seconds / TURN_SECONDS))):
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                time.sleep(PAUSE_SECONDS)
                contender.take_turn(TURN_SECONDS)
        return [contender.finish() for contender in contenders]
