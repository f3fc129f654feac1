"""PyTorch's operators in a process of its own, which waits while ours are measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.peers.environments import RUNTIMES, NotInstalled, python_for
from benchmarks.run import ROOT, UNSET_VARIABLES

PEER_MODULE = "benchmarks.peers.run_torch_operators"


@dataclass(frozen=True)
class PeerTime:
    """The shortest time of a case in PyTorch. views: whether each gradient is a view of the incoming one, which nothing writes."""

    seconds: float
    views: list[bool]


class TorchOperators:
    """Times of PyTorch's operators on request. A context manager; without an environment of PyTorch it knows no times."""

    def __init__(self, threads: int, environments: Path | None) -> None:
        self.version = ""
        self._refused: set[str] = set()
        self._process = None if environments is None else self._start(threads, environments)

    def _start(self, threads: int, environments: Path) -> subprocess.Popen[str] | None:
        try:
            python = python_for(RUNTIMES["torch-eager"], environments)
        except NotInstalled as error:
            print(f"PyTorch is left out: {error}", file=sys.stderr)
            return None
        variables = {name: value for name, value in os.environ.items() if name not in UNSET_VARIABLES}
        variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        return subprocess.Popen([python, "-m", PEER_MODULE, "--threads", str(threads)], cwd=ROOT, env=variables, text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def best_time(self, name: str, part: str, seconds: float) -> PeerTime | None:
        """Return the shortest time of part `part` of a case within so many seconds; None where PyTorch cannot run it or has no gradient."""
        if self._process is None or name in self._refused:
            return None
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps({"name": name, "part": part, "seconds": seconds}), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self._process = None
            print(f"PyTorch ended at {name}", file=sys.stderr)
            return None
        if "error" in answer:
            self._refused.add(name)
            print(f"PyTorch, {name}: {answer['error']}", file=sys.stderr)
            return None
        self.version = answer["version"]
        return None if answer["seconds"] is None else PeerTime(answer["seconds"], answer["views"])

    def __enter__(self) -> TorchOperators:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
