"""The command conformance: runs the conformance cases through every facade, or through a port, or answers the questions of a port.

`run` prints the table of cases and facades. `serve` answers requests, one JSON object per line, on standard input and output: docs/porting.md."""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import shlex
import sys
from collections.abc import Container

from ortrain.conformance.cases import Case, known_failures, load_cases
from ortrain.conformance.drivers import LANGUAGES, driver_for
from ortrain.conformance.runner import Outcome, run_cases
from ortrain.conformance.service import Port, Service, serve
from ortrain.errors import OrtrainError

MARKS = {"passed": "ok", "failed": "FAILED", "absent": "-", "known": "known"}


class ConformanceError(OrtrainError):
    """The outcome of a case differs from known_failures.toml."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    run_ = actions.add_parser("run", help="Runs the cases and prints a table.")
    run_.add_argument("--port", metavar="COMMAND", action="append", default=[], dest="ports",
                      help="A port that answers requests on its standard input; it becomes a column of its own. May be given several times.")
    run_.add_argument("--only", metavar="PATTERN", default="*", help="Run the cases whose names match the pattern. Default: *.")
    run_.add_argument("--errors", action="store_true", help="Also print every refused call as each language shows it.")
    serve_ = actions.add_parser("serve", help="Answers requests, one JSON object per line.")
    serve_.add_argument("--facade", choices=LANGUAGES, default="python", help="The facade that answers. Default: python.")
    actions.add_parser("list", help="Lists the cases.")


def run(options: argparse.Namespace) -> None:
    """Run the command. Raises ConformanceError when a case fails that is not a known failure, or a known failure passes."""
    if options.action == "serve":
        serve(Service(driver_for(options.facade)), sys.stdin, sys.stdout)
        return
    cases = load_cases()
    if options.action == "list":
        for case in cases:
            print(f"{case.file}: {case.name}\n    {case.documentation}")
        return
    _run(options, [case for case in cases if fnmatch.fnmatch(case.name, options.only)])


def _run(options: argparse.Namespace, cases: list[Case]) -> None:
    columns = {language: run_cases(Service(driver_for(language)), cases) for language in LANGUAGES}
    for command in options.ports:
        port = Port(shlex.split(command))
        try:
            columns[_column_of(port, columns)] = run_cases(port, cases)
        finally:
            port.close()
    surprises = judged(columns)
    print_table(cases, columns)
    if options.errors:
        print_errors(cases, columns)
    if surprises:
        raise ConformanceError(f"expected every case to pass or to fail as known, {len(surprises)} did not: {'; '.join(surprises)}")


def _column_of(port: Port, taken: Container[str]) -> str:
    """Return the name that a port gives itself in its reply to `hello`, or port, port-2 and so on."""
    reply = port.request({"call": "hello"}).get("result")
    name = str(reply.get("name", "port")) if isinstance(reply, dict) else "port"
    return next(column for column in itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2))) if column not in taken)


def judged(columns: dict[str, dict[str, Outcome]]) -> list[str]:
    """Return the outcomes that differ from known_failures.toml; those that agree with it become "known"."""
    surprises = []
    for language, known in known_failures().items():
        surprises += [f"{language}: known_failures.toml names {name!r}, which is no case that was run" for name in known
                      if language in columns and name not in columns[language] and len(columns[language]) == len(load_cases())]
    for language, outcomes in columns.items():
        known = known_failures().get(language, {})
        for name, outcome in outcomes.items():
            if outcome.verdict == "failed" and name not in known:
                surprises.append(f"{language}: {name}: {outcome.detail}")
            elif outcome.verdict == "failed":
                outcome.verdict = "known"
            elif outcome.verdict == "passed" and name in known:
                surprises.append(f"{language}: {name} passes, and known_failures.toml says that it fails")
    return surprises


def print_table(cases: list[Case], columns: dict[str, dict[str, Outcome]]) -> None:
    """Print one row per case and one column per facade; a dash where the language lacks some of the case's operations."""
    width = max((len(case.name) for case in cases), default=4)
    print(f"{'case':<{width}}  " + "  ".join(f"{language:<7}" for language in columns))
    for case in cases:
        marks = (f"{MARKS[outcomes[case.name].verdict]:<{max(7, len(language))}}" for language, outcomes in columns.items())
        print(f"{case.name:<{width}}  " + "  ".join(marks).rstrip())
    for language, outcomes in columns.items():
        counts = {verdict: sum(outcome.verdict == verdict for outcome in outcomes.values()) for verdict in MARKS}
        print(f"{language}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))


def print_errors(cases: list[Case], columns: dict[str, dict[str, Outcome]]) -> None:
    """Print every refused call as each language reports it."""
    for case in cases:
        if any(outcomes[case.name].shown for outcomes in columns.values()):
            print(f"\n{case.name}")
            for language, outcomes in columns.items():
                for shown in outcomes[case.name].shown:
                    print(f"  {language}: {shown}")
