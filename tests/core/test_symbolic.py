"""Symbolic sizes: they compute as ints do, and know for which other values of the symbols all decisions keep their outcome."""

from __future__ import annotations

import operator
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortrain._core.symbolic import SymbolicInt, SymbolicSizes, memory_at_least, size_hint
from ortrain.ops.registry.constants import is_broadcast, is_one, surely_equal, symbolic_max, symbolic_min

CALCULATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "min": symbolic_min, "max": symbolic_max}
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "max": max, "min": min}
hints = st.integers(1, 300)
expressions = st.recursive(st.one_of(st.sampled_from(["a", "b"]), st.integers(-9, 70), st.sampled_from([2**63 - 1, -(2**63), 2**62, 2**40])),
                     lambda inner: st.tuples(st.sampled_from(sorted(CALCULATIONS)), inner, inner), max_leaves=6)
decisions = st.tuples(st.sampled_from([*sorted(COMPARISONS), "int", "bool"]), expressions, expressions)


def evaluate(expression, symbols):
    if isinstance(expression, str):
        return symbols[expression]
    if isinstance(expression, int):
        return expression
    operation, left, right = expression
    return CALCULATIONS[operation](evaluate(left, symbols), evaluate(right, symbols))


def decide(decision, symbols):
    """Return what a planner may base a decision on: the outcome of a comparison, the value of a conversion, or the type of the error raised."""
    operation, left, right = decision
    try:
        left = evaluate(left, symbols)
        if operation in ("int", "bool"):
            return {"int": int, "bool": bool}[operation](left)
        outcome = COMPARISONS[operation](left, evaluate(right, symbols))
        return outcome if operation not in ("max", "min") else None
    except ZeroDivisionError as error:
        return type(error)


@settings(max_examples=400)
@given(hints, hints, st.lists(decisions, min_size=1, max_size=6), st.lists(st.tuples(hints, hints), min_size=8, max_size=8))
def test_decisions_keep_their_outcome_for_all_sizes_that_hold(a, b, all_decisions, others):
    symbolic_sizes = SymbolicSizes((a, b))
    symbolic = {"a": symbolic_sizes.symbol(0), "b": symbolic_sizes.symbol(1)}
    outcomes = [decide(decision, symbolic) for decision in all_decisions]
    assert outcomes == [decide(decision, {"a": a, "b": b}) for decision in all_decisions]
    assert symbolic_sizes.holds_for((a, b))
    for c, d in [*others, (a + 1, b), (a, b + 1), (2 * a, b), (a, a)]:
        if symbolic_sizes.holds_for((c, d)):
            assert outcomes == [decide(decision, {"a": c, "b": d}) for decision in all_decisions]


def one_symbol(hint: int = 32) -> tuple[SymbolicSizes, int]:
    """Return SymbolicSizes with one symbol, and the symbol."""
    sizes = SymbolicSizes((hint,))
    return sizes, sizes.symbol(0)


def test_comparisons_narrow_bounds_no_further_than_necessary():
    sizes, n = one_symbol()
    assert 4 * n + 8 < 1000
    assert n != 7
    assert not -3 * n > -12
    assert sizes.bounds(0) == (4, 247)
    assert sizes.holds_for((247,)) and not sizes.holds_for((248,)) and not sizes.holds_for((7,))


def test_symbolic_minimum_and_maximum_record_no_decision():
    sizes, n = one_symbol()
    block = symbolic_max(1, symbolic_min(n, 128))
    assert size_hint(block) == 32 and symbolic_min(5, 3) == 3 and symbolic_max(5, 3) == 5
    assert sizes.bounds(0) == (1, np.iinfo(np.int64).max)
    assert 3 * block < 100
    assert sizes.holds_for((33,)) and not sizes.holds_for((34,)) and not sizes.holds_for((200,)), "a decision on a minimum narrows its operands"


@pytest.mark.parametrize("hint", [1, 6, 32])
def test_surely_equal_sizes_are_equal_for_all_values_of_the_symbols(hint):
    sizes, n = one_symbol(hint)
    for a, b in ((n, n), (2 * n + 1, n + 1 + n), (n * n, n * n), (6 * n // n, 6), (n * n // n, n), (6 * (n * n) % (3 * n), 0), (n // 3 - n // 3, 0), (4, 4)):
        assert surely_equal(a, b) and surely_equal(b, a)
    for a, b in ((n, hint), (n, n * n), (n, n // 2), (n % 4, hint % 4), (n // 5, hint // 5), (3, 4)):
        assert not surely_equal(a, b) and not surely_equal(b, a)
    assert all(sizes.holds_for((other,)) for other in (1, 2, 5, 6, 7, 32, 10_007, 1 << 30))


def test_a_quotient_is_exact_only_for_a_multiple_of_a_symbol():
    sizes = SymbolicSizes((4, 6))
    n, m = sizes.symbol(0), sizes.symbol(1)
    assert n * m // m - n == 0 and 6 * (n * m) // n - 6 * m == 0 and n * m * 5 % m == 0
    assert sizes.n_nodes == 3                                   # of both symbols and the product
    assert (n * m + 1) // n == 6 and 5 * n // (3 * n) == 1 and (n + 1) * m // (n + 1) == 6
    assert (-(2**63) * (n // 4)) // (-1 * m) == 2**63 // 6


def test_memory_decisions_have_separate_bounds():
    sizes, n = one_symbol()
    assert not memory_at_least(4 * n, 512) and memory_at_least(n, 2) and memory_at_least(3, 2) and n < 1000
    assert sizes.bounds(0) == (2, 127) and sizes.bounds(0, check_memory=False) == (1, 999)
    assert sizes.holds_for((128,), check_memory=False) and not sizes.holds_for((128,)) and not sizes.holds_for((1000,), check_memory=False)


def test_an_axis_of_size_one_does_not_narrow_its_symbol():
    for size in (32, 1):
        sizes, n = one_symbol(size)
        assert not is_one(n) and not is_one(n // 2) and is_one(1) and not is_one("rows")
        assert is_broadcast(1, n) and not is_broadcast(n, 1) and not is_broadcast(n, n)
        assert sizes.holds_for((1,)) and sizes.holds_for((32,)) and sizes.n_excluded == 0
    assert is_broadcast(n, 5), "the answer holds for size 1 only"
    assert sizes.bounds(0) == (1, 1)


def test_equal_expressions_record_no_decision():
    sizes, n = one_symbol()
    assert 4 * (n * 128) == n * 512 and (n * 128) // 64 == 2 * n and (64 * n + 5) % 64 == 5 and n - n == 0
    assert sizes.bounds(0) == (1, np.iinfo(np.int64).max) and sizes.n_nodes == 1


@pytest.mark.parametrize("use", [
    int, float, hash, str, repr, round, lambda n: [0] * n, lambda n: np.zeros(n), lambda n: np.array([n], np.int64), lambda n: range(n)[0], lambda n: n / 3,
    lambda n: 2**n, lambda n: n << 1, lambda n: {n}, lambda n: f"{n:3d}", lambda n: n.bit_length()])
def test_conversion_to_a_number_narrows_the_symbol_to_its_hint(use):
    sizes, n = one_symbol()
    use(n)
    assert sizes.bounds(0) == (32, 32)


def test_a_symbolic_int_passes_isinstance_int_without_subclassing_it():
    _, n = one_symbol()
    assert isinstance(n, int) and type(n) is SymbolicInt and not issubclass(type(n), int)
    with pytest.raises(TypeError):
        SymbolicInt()


def test_size_hint_does_not_narrow_the_symbol():
    sizes, n = one_symbol()
    assert size_hint(3 * n + 1) == 97 and size_hint(5) == 5 and type(size_hint(n)) is int
    assert sizes.bounds(0) == (1, np.iinfo(np.int64).max)


def test_arithmetic_across_symbolic_sizes_uses_hints():
    (first, n), (second, m) = one_symbol(), one_symbol(5)
    assert n + m == 37 and n * m == 160
    assert first.bounds(0) == (32, 32) and second.bounds(0) == (5, 5)


def test_overflowing_int64_falls_back_to_int():
    sizes, n = one_symbol()
    assert n * 2**62 * 4 == 32 * 2**64 and n + 2**70 == 32 + 2**70
    assert sizes.bounds(0) == (32, 32)


def test_sizes_that_overflow_int64_do_not_hold():
    sizes, n = one_symbol()
    assert n * n * n > 5
    assert sizes.holds_for((100,)) and not sizes.holds_for((2**40,))


def test_invalid_symbol_indices_and_value_counts_are_rejected():
    sizes, _ = one_symbol()
    for call in (lambda: sizes.symbol(1), lambda: sizes.symbol(-1), lambda: sizes.bounds(1), lambda: sizes.holds_for((1, 2))):
        with pytest.raises((IndexError, ValueError)):
            call()


def test_symbolic_sizes_cannot_be_pickled():
    with pytest.raises(TypeError):
        pickle.dumps(one_symbol()[0])
