"""Runs checks of tests/ops as plain calls: pytest needs minutes under emulation only to collect them.

    python -m tests.arm.kernels [I/N]        makes the I-th of N shares of the calls, counted from 1"""

from __future__ import annotations

import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tests.ops import test_gradients, test_kernels

TESTS: tuple[Callable[..., None], ...] = (
    test_kernels.test_a_kernel_agrees_with_its_oracle,
    test_kernels.test_any_number_of_threads_gives_the_same_bits,
    test_kernels.test_a_kernel_gives_the_same_bits_in_place,
    test_gradients.test_a_gradient_agrees_with_central_differences,
)
Call = dict[str, Any]


def calls(test: Callable[..., None]) -> Iterator[tuple[str, Call]]:
    """Yield the calls that pytest makes of a parametrized test: what is said of one when it fails, and its arguments."""
    def arguments(names: str, value: Any) -> tuple[str, Call]:
        values = getattr(value, "values", value if isinstance(value, tuple) else (value,))
        return getattr(value, "id", None) or str(value), dict(zip(names.replace(" ", "").split(","), values, strict=True))

    choices = [[arguments(mark.args[0], value) for value in mark.args[1]] for mark in test.pytestmark if mark.name == "parametrize"]
    for combination in itertools.product(*choices):
        yield ", ".join(title for title, _ in combination), {name: value for _, part in combination for name, value in part.items()}


def failures(test: Callable[..., None], found: Iterator[tuple[str, Call]]) -> int:
    """Make calls of a test, print those that fail and a summary, and return how many failed."""
    count, failed, started = 0, 0, time.monotonic()
    for title, call in found:
        count += 1
        try:
            test(**call)
        except Exception:
            failed += 1
            print(f"FAILED {test.__name__}[{title}]")
            traceback.print_exc(file=sys.stdout)
    print(f"{test.__name__}: {count - failed} passed, {failed} failed in {time.monotonic() - started:.0f} s", flush=True)
    return failed + (count == 0)


def main() -> None:
    part, parts = map(int, (sys.argv[1] if len(sys.argv) > 1 else "1/1").split("/"))
    failed = sum(failures(test, itertools.islice(calls(test), part - 1, None, parts)) for test in TESTS)
    print(f"{failed} calls failed" if failed else "all calls passed")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
