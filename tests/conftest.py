"""Fixtures of several tests."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def spec():
    """The specification of the public API, bindings_spec/."""
    folder = str(Path(__file__).resolve().parents[1] / "bindings_spec")
    sys.path.insert(0, folder)
    try:
        from render.spec import Spec

        return Spec.load()
    finally:
        sys.path.remove(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="let tests fail that would be skipped: for commands that install all packages that they need")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--no-skips"):
        report.outcome, report.longrepr = "failed", f"--no-skips: {report.longrepr}"
    return report
