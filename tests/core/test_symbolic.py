"""Sizes that follow from symbols: they calculate as ints do, and say for which other numbers all that was decided would be decided again."""

from __future__ import annotations

import operator
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortrain._core.symbolic import SymbolicInt, SymbolicSizes, plain, spares
from ortrain.ops.registry.constants import is_broadcast, is_one, symbolic_max, symbolic_min

CALCULATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "smaller": symbolic_min, "larger": symbolic_max}
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "max": max, "min": min}
sizes = st.integers(1, 300)
terms = st.recursive(st.one_of(st.sampled_from(["a", "b"]), st.integers(-9, 70), st.sampled_from([2**63 - 1, -(2**63), 2**62, 2**40])),
                     lambda inner: st.tuples(st.sampled_from(sorted(CALCULATIONS)), inner, inner), max_leaves=6)
decisions = st.tuples(st.sampled_from([*sorted(COMPARISONS), "int", "bool"]), terms, terms)


def value(term, symbols):
    if isinstance(term, str):
        return symbols[term]
    if isinstance(term, int):
        return term
    how, left, right = term
    return CALCULATIONS[how](value(left, symbols), value(right, symbols))


def decided(what, symbols):
    """What a planner might find out: the outcome of a comparison, the plain number of something; the error that it meets."""
    how, left, right = what
    try:
        left = value(left, symbols)
        if how in ("int", "bool"):
            return {"int": int, "bool": bool}[how](left)
        found = COMPARISONS[how](left, value(right, symbols))
        return found if how not in ("max", "min") else None
    except ZeroDivisionError as error:
        return type(error)


@settings(max_examples=400)
@given(sizes, sizes, st.lists(decisions, min_size=1, max_size=6), st.lists(st.tuples(sizes, sizes), min_size=8, max_size=8))
def test_what_holds_for_other_numbers_is_decided_as_for_those(a, b, questions, others):
    given_sizes = SymbolicSizes((a, b))
    symbolic = {"a": given_sizes.symbol(0), "b": given_sizes.symbol(1)}
    answers = [decided(question, symbolic) for question in questions]
    assert answers == [decided(question, {"a": a, "b": b}) for question in questions]
    assert given_sizes.holds_for((a, b))
    for c, d in [*others, (a + 1, b), (a, b + 1), (2 * a, b), (a, a)]:
        if given_sizes.holds_for((c, d)):
            assert answers == [decided(question, {"a": c, "b": d}) for question in questions]


def number(size: int = 32) -> tuple[SymbolicSizes, int]:
    found = SymbolicSizes((size,))
    return found, found.symbol(0)


def test_a_comparison_narrows_a_symbol_no_further_than_it_has_to():
    found, n = number()
    assert 4 * n + 8 < 1000
    assert n != 7
    assert not -3 * n > -12
    assert found.limits(0) == (4, 247)
    assert found.holds_for((247,)) and not found.holds_for((248,)) and not found.holds_for((7,))


def test_the_smaller_of_two_is_not_decided():
    found, n = number()
    block = symbolic_max(1, symbolic_min(n, 128))
    assert plain(block) == 32 and symbolic_min(5, 3) == 3 and symbolic_max(5, 3) == 5
    assert found.limits(0) == (1, np.iinfo(np.int64).max)
    assert 3 * block < 100
    assert found.holds_for((33,)) and not found.holds_for((34,)) and not found.holds_for((200,)), "what is decided of it narrows what it is computed of"


def test_what_spares_memory_has_limits_of_its_own():
    found, n = number()
    assert not spares(4 * n, 512) and spares(n, 2) and spares(3, 2) and n < 1000
    assert found.limits(0) == (2, 127) and found.limits(0, sparing=False) == (1, 999)
    assert found.holds_for((128,), sparing=False) and not found.holds_for((128,)) and not found.holds_for((1000,), sparing=False)


def test_an_axis_of_one_element_may_be_walked_as_one_of_many():
    for size in (32, 1):
        found, n = number(size)
        assert not is_one(n) and not is_one(n // 2) and is_one(1) and not is_one("rows")
        assert is_broadcast(1, n) and not is_broadcast(n, 1) and not is_broadcast(n, n)
        assert found.holds_for((1,)) and found.holds_for((32,)) and found.n_holes == 0
    assert is_broadcast(n, 5), "one element now, and no more"
    assert found.limits(0) == (1, 1)


def test_equal_terms_need_no_comparison():
    found, n = number()
    assert 4 * (n * 128) == n * 512 and (n * 128) // 64 == 2 * n and (64 * n + 5) % 64 == 5 and n - n == 0
    assert found.limits(0) == (1, np.iinfo(np.int64).max) and found.n_nodes == 1


@pytest.mark.parametrize("use", [
    int, float, hash, str, repr, round, lambda n: [0] * n, lambda n: np.zeros(n), lambda n: np.array([n], np.int64), lambda n: range(n)[0], lambda n: n / 3,
    lambda n: 2**n, lambda n: n << 1, lambda n: {n}, lambda n: f"{n:3d}", lambda n: n.bit_length()])
def test_who_asks_for_the_plain_number_binds_it(use):
    found, n = number()
    use(n)
    assert found.limits(0) == (32, 32)


def test_it_passes_for_an_int_and_is_none():
    _, n = number()
    assert isinstance(n, int) and type(n) is SymbolicInt and not issubclass(type(n), int)
    with pytest.raises(TypeError):
        SymbolicInt()


def test_a_number_may_be_asked_for_without_binding_it():
    found, n = number()
    assert plain(3 * n + 1) == 97 and plain(5) == 5 and type(plain(n)) is int
    assert found.limits(0) == (1, np.iinfo(np.int64).max)


def test_numbers_of_other_sizes_are_plain_ones():
    (first, n), (second, m) = number(), number(5)
    assert n + m == 37 and n * m == 160
    assert first.limits(0) == (32, 32) and second.limits(0) == (5, 5)


def test_what_no_int64_holds_is_calculated_as_ints_are():
    found, n = number()
    assert n * 2**62 * 4 == 32 * 2**64 and n + 2**70 == 32 + 2**70
    assert found.limits(0) == (32, 32)


def test_what_no_int64_would_hold_for_other_numbers_does_not_hold():
    found, n = number()
    assert n * n * n > 5
    assert found.holds_for((100,)) and not found.holds_for((2**40,))


def test_symbols_are_refused_where_there_are_none():
    found, _ = number()
    for ask in (lambda: found.symbol(1), lambda: found.symbol(-1), lambda: found.limits(1), lambda: found.holds_for((1, 2))):
        with pytest.raises((IndexError, ValueError)):
            ask()


def test_sizes_stay_in_their_process():
    with pytest.raises(TypeError):
        pickle.dumps(number()[0])
