"""Lower bounds of operators, from rates that are measured in the same process.

A bound is the largest of three times: bytes at the rate at which the addition kernel streams as many bytes, products at the rate of a large matrix
multiplication, and transcendental functions at the cost of the exponential kernel, per evaluation, on data in the cache. It takes no account of latencies,
so small operators are far from it."""

from __future__ import annotations

from functools import cache

from benchmarks.operators.case import Case
from benchmarks.operators.engine import Prepared, Work, prepare
from ortrain._core.engine import EngineHandle

SECONDS = 0.1
"""Duration of each measurement."""
SQUARE_SIZE = 1024
EXPONENTIALS = 1 << 15
SMALLEST_STREAM = 1 << 14
"""Bytes; smaller operators are bounded by the rate of this stream."""
STREAMED_ARRAYS = 3
FLOAT_BYTES = 4


class Roofline:
    """The rates of this machine with a number of threads; each is measured when it is first needed."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self.stream_rate = cache(self._stream_rate)
        self.product_rate = cache(self._product_rate)
        self.transcendental_seconds = cache(self._transcendental_seconds)

    def _seconds(self, case: Case) -> float:
        prepared: Prepared | None = prepare(case, False, self._handle)
        assert prepared is not None
        return prepared.best_time(SECONDS)

    def _stream_rate(self, size: int) -> float:
        """Return bytes per second of an addition that moves `size` bytes."""
        elements = size // STREAMED_ARRAYS // FLOAT_BYTES
        return STREAMED_ARRAYS * FLOAT_BYTES * elements / self._seconds(Case("Add", [(elements,), (elements,)]))

    def _product_rate(self) -> float:
        """Return products per second of a large matrix multiplication."""
        return SQUARE_SIZE**3 / self._seconds(Case("MatMul", [(SQUARE_SIZE, SQUARE_SIZE), (SQUARE_SIZE, SQUARE_SIZE)]))

    def _transcendental_seconds(self) -> float:
        """Return the time of one exponential."""
        return self._seconds(Case("Exp", [(EXPONENTIALS,)])) / EXPONENTIALS

    def bound(self, work: Work) -> float:
        """Return the lower bound of some work, in seconds."""
        size = max(SMALLEST_STREAM, 1 << (work.bytes - 1).bit_length())          # rounded up to a power of two, so that few are measured
        return max(work.bytes / self.stream_rate(size), work.products / self.product_rate() if work.products else 0.0,
                   work.transcendentals * self.transcendental_seconds() if work.transcendentals else 0.0)

    def description(self) -> str:
        """Return the measured rates as one line."""
        big = 1 << 24
        return (f"streams of 16 MiB: {self.stream_rate(big) * 1e-9:.1f} GB/s; products: {self.product_rate() * 1e-9:.1f} G/s; "
                f"exponentials: {self.transcendental_seconds() * 1e9:.3f} ns")
