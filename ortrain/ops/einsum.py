"""Einsum as transpositions and matrix multiplications; its gradients are Einsums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ortrain.errors import MissingGradientError
from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import InferenceContext, KernelCall, LoweringContext, operator

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Equation:
    """An einsum equation: the index letters of each operand and of the result, with ellipses replaced by letters."""

    operands: tuple[str, ...]
    result: str

    def __str__(self) -> str:
        return f"{','.join(self.operands)}->{self.result}"

    @property
    def has_diagonals(self) -> bool:
        """Whether an operand has the same letter twice."""
        return any(len(set(letters)) < len(letters) for letters in self.operands)


def equation_of(c: InferenceContext) -> Equation:
    """Return the equation of an Einsum node, resolved for the ranks of its inputs."""
    text = str(c.attribute("equation", "")).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    ranks = [len(c.shape(i)) for i in range(len(c.node.inputs))]
    if len(terms) != len(ranks):
        raise c.error(f"expected one operand per input, got {text!r} for {len(ranks)} inputs")
    spare = [letter for letter in ALPHABET if letter not in text]
    ellipsis_ranks = [rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    ellipsis = "".join(spare[: max(ellipsis_ranks, default=0)])
    operands = tuple(term.replace("...", ellipsis[len(ellipsis) - count :] if count else "")
                     for term, count in zip(terms, ellipsis_ranks, strict=True))
    if any(len(letters) != rank for letters, rank in zip(operands, ranks, strict=True)):
        raise c.error(f"expected operands of the inputs' ranks {ranks}, got {text!r}")
    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        right = "..." * bool(ellipsis) + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    result = right.replace("...", ellipsis)
    if not set(result) <= set("".join(operands)):
        raise c.error(f"expected a result of letters that operands have, got {text!r}")
    return Equation(operands, result)


def sizes_of(c: InferenceContext, equation: Equation) -> dict[str, Dim]:
    """Return the size of each letter; an operand's size 1 broadcasts against the others'."""
    sizes: dict[str, Dim] = {}
    for i, letters in enumerate(equation.operands):
        for letter, size in zip(letters, c.shape(i), strict=True):
            known = sizes.get(letter, 1)
            if known != 1 and size != 1 and isinstance(known, int) and isinstance(size, int) and known != size:
                raise c.error(f"expected one size for index {letter!r}, got {known} and {size}")
            sizes[letter] = size if known == 1 else known
    return sizes


def einsum_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """Return, for each operand, the Einsum of dY and the other operands, expanded along the letters that only this operand has."""
    equation = equation_of(g.context())
    if equation.has_diagonals:
        raise MissingGradientError(f"expected operands without diagonals where a gradient is taken, got {equation} (node {g.node.name!r})")
    return [_operand_gradient(g, equation, i) if g.needs(i) else None for i in range(len(g.inputs))]


def _operand_gradient(g: GradientBuilder, equation: Equation, index: int) -> str:
    letters = equation.operands[index]
    others = [i for i in range(len(g.inputs)) if i != index]
    available = set(equation.result).union(*(equation.operands[i] for i in others))
    kept = "".join(letter for letter in letters if letter in available)
    text = f"{','.join([equation.result, *(equation.operands[i] for i in others)])}->{kept}"
    gradient = g.op("Einsum", g.dy, *(g.inputs[i] for i in others), equation=text)
    missing = [axis for axis, letter in enumerate(letters) if letter not in available]
    if not missing:
        return gradient
    return g.op("Expand", g.unsqueeze(gradient, missing), g.shape_of(g.inputs[index]))


def lower_einsum(c: LoweringContext) -> KernelCall:
    """Lower the nodes that einsum_decomposition leaves, those with diagonals, broadcast letters or integers, to numpy.einsum."""
    text = str(equation_of(c))
    dtype = c.dtype(0)
    return KernelCall("python", function=lambda *arrays: [np.asarray(np.einsum(text, *arrays), dtype)])


# ---- decomposition into matrix multiplications


def einsum_decomposition(g: NodeBuilder) -> list[str] | None:
    """Contract the operands from left to right by one MatMul each; None where sizes are symbolic or broadcast, or a letter repeats in an operand."""
    kinds = [g.type(name) for name in g.inputs]
    if any(not kind.is_static or kind.dtype not in ("float32", "float64") for kind in kinds):
        return None
    equation = equation_of(g.context())
    sizes = {letter: size for letter, size in sizes_of(g.context(), equation).items() if isinstance(size, int)}
    has_no_broadcast = all(tuple(sizes[letter] for letter in letters) == kind.sizes for letters, kind in zip(equation.operands, kinds, strict=True))
    if equation.has_diagonals or not has_no_broadcast:
        return None
    name, letters = g.inputs[0], equation.operands[0]
    for i in range(1, len(g.inputs)):
        later = set(equation.result).union(*equation.operands[i + 1 :])
        name, letters = _contract(g, (name, letters), (g.inputs[i], equation.operands[i]), later, sizes)
    name, letters = _sum_over_unused(g, name, letters, set(equation.result))
    return [_transpose_to(g, name, letters, equation.result)]


def _sum_over_unused(g: NodeBuilder, name: str, letters: str, kept: set[str]) -> tuple[str, str]:
    """Return an operand summed over the letters that are not in `kept`, and its remaining letters."""
    axes = [axis for axis, letter in enumerate(letters) if letter not in kept]
    if not axes:
        return name, letters
    return g.reduce_sum(name, axes, keepdims=False), "".join(letter for letter in letters if letter in kept)


def _transpose_to(g: NodeBuilder, name: str, letters: str, order: str) -> str:
    return name if letters == order else g.op("Transpose", name, perm=tuple(letters.index(letter) for letter in order))


def _contract(g: NodeBuilder, first: tuple[str, str], second: tuple[str, str], later: set[str], sizes: dict[str, int]) -> tuple[str, str]:
    """Return the contraction of two operands (name, letters) over their common letters that are not in `later`, with its letters."""
    a, left = _sum_over_unused(g, *first, later | set(second[1]))
    b, right = _sum_over_unused(g, *second, later | set(left))
    batch = "".join(letter for letter in left if letter in right and letter in later)
    summed = "".join(letter for letter in left if letter in right and letter not in later)
    rows, columns = ("".join(letter for letter in letters if letter not in other) for letters, other in ((left, right), (right, left)))
    shape = [sizes[letter] for letter in batch]
    size = {part: prod(sizes[letter] for letter in part) for part in (rows, columns, summed)}
    a = g.op("Reshape", _transpose_to(g, a, left, batch + rows + summed), g.constant([*shape, size[rows], size[summed]]))
    b = g.op("Reshape", _transpose_to(g, b, right, batch + summed + columns), g.constant([*shape, size[summed], size[columns]]))
    letters = batch + rows + columns
    return g.op("Reshape", g.op("MatMul", a, b), g.constant([sizes[letter] for letter in letters])), letters


@operator("Einsum", lower=lower_einsum, gradient=einsum_gradient, decompose=einsum_decomposition)
def einsum(c: InferenceContext) -> list[TensorType]:
    """y = the products of the operands' elements, summed over the index letters that the result lacks (as numpy.einsum)"""
    equation = equation_of(c)
    sizes = sizes_of(c, equation)
    return [TensorType(c.dtype(0), tuple(sizes[letter] for letter in equation.result))]
