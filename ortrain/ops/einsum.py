"""Einsum: sums of products by index letters, as transpositions and matrix products; its gradients are Einsums too."""

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
    """The letters of each operand and of the result, ellipses written out."""

    operands: tuple[str, ...]
    result: str

    def __str__(self) -> str:
        return f"{','.join(self.operands)}->{self.result}"

    @property
    def has_diagonals(self) -> bool:
        """Does an operand name a letter twice?"""
        return any(len(set(letters)) < len(letters) for letters in self.operands)


def equation_of(c: InferenceContext) -> Equation:
    """The node's equation for the ranks of its inputs."""
    text = str(c.attribute("equation", "")).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    ranks = [len(c.shape(i)) for i in range(len(c.node.inputs))]
    if len(terms) != len(ranks):
        raise c.error(f"expected one operand per input, got {text!r} for {len(ranks)} inputs")
    spare = [letter for letter in ALPHABET if letter not in text]
    dots = [rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    shared = "".join(spare[: max(dots, default=0)])
    operands = tuple(term.replace("...", shared[len(shared) - count :] if count else "") for term, count in zip(terms, dots, strict=True))
    if any(len(letters) != rank for letters, rank in zip(operands, ranks, strict=True)):
        raise c.error(f"expected operands of the inputs' ranks {ranks}, got {text!r}")
    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        right = "..." * bool(shared) + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    result = right.replace("...", shared)
    if not set(result) <= set("".join(operands)):
        raise c.error(f"expected a result of letters that operands have, got {text!r}")
    return Equation(operands, result)


def sizes_of(c: InferenceContext, equation: Equation) -> dict[str, Dim]:
    """The size of each letter; sizes of 1 give way to others."""
    found: dict[str, Dim] = {}
    for i, letters in enumerate(equation.operands):
        for letter, size in zip(letters, c.shape(i), strict=True):
            have = found.get(letter, 1)
            if have != 1 and size != 1 and isinstance(have, int) and isinstance(size, int) and have != size:
                raise c.error(f"expected one size for index {letter!r}, got {have} and {size}")
            found[letter] = size if have == 1 else have
    return found


def einsum_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """Each operand's gradient is dY with the other operands; letters that only the operand has are spread over it."""
    equation = equation_of(g.context())
    if equation.has_diagonals:
        raise MissingGradientError(f"expected operands without diagonals where a gradient is taken, got {equation} (node {g.node.name!r})")
    return [_operand_gradient(g, equation, i) if g.needs(i) else None for i in range(len(g.inputs))]


def _operand_gradient(g: GradientBuilder, equation: Equation, index: int) -> str:
    own = equation.operands[index]
    others = [i for i in range(len(g.inputs)) if i != index]
    there = set(equation.result).union(*(equation.operands[i] for i in others))
    kept = "".join(letter for letter in own if letter in there)
    text = f"{','.join([equation.result, *(equation.operands[i] for i in others)])}->{kept}"
    gradient = g.op("Einsum", g.dy, *(g.inputs[i] for i in others), equation=text)
    missing = [axis for axis, letter in enumerate(own) if letter not in there]
    if not missing:
        return gradient
    return g.op("Expand", g.unsqueeze(gradient, missing), g.shape_of(g.inputs[index]))


def lower_einsum(c: LoweringContext) -> KernelCall:
    """In NumPy: diagonals, and elements that are no floats."""
    text = str(equation_of(c))
    dtype = c.dtype(0)
    return KernelCall("python", function=lambda *arrays: [np.asarray(np.einsum(text, *arrays), dtype)])


# ---- as matrix products


def decompose(g: NodeBuilder) -> list[str] | None:
    """Operand after operand; None where sizes are symbols, broadcast or on a diagonal."""
    kinds = [g.type(name) for name in g.inputs]
    if any(not kind.is_static or kind.dtype not in ("float32", "float64") for kind in kinds):
        return None
    equation = equation_of(g.context())
    sizes = {letter: size for letter, size in sizes_of(g.context(), equation).items() if isinstance(size, int)}
    whole = all(tuple(sizes[letter] for letter in letters) == kind.sizes for letters, kind in zip(equation.operands, kinds, strict=True))
    if equation.has_diagonals or not whole:
        return None
    name, letters = g.inputs[0], equation.operands[0]
    for i in range(1, len(g.inputs)):
        later = set(equation.result).union(*equation.operands[i + 1 :])
        name, letters = _product(g, (name, letters), (g.inputs[i], equation.operands[i]), later, sizes)
    name, letters = _summed(g, name, letters, set(equation.result))
    return [_transposed(g, name, letters, equation.result)]


def _summed(g: NodeBuilder, name: str, letters: str, kept: set[str]) -> tuple[str, str]:
    """Without the letters that nothing needs any more."""
    axes = [axis for axis, letter in enumerate(letters) if letter not in kept]
    if not axes:
        return name, letters
    return g.reduce_sum(name, axes, keepdims=False), "".join(letter for letter in letters if letter in kept)


def _transposed(g: NodeBuilder, name: str, letters: str, wanted: str) -> str:
    return name if letters == wanted else g.op("Transpose", name, perm=tuple(letters.index(letter) for letter in wanted))


def _product(g: NodeBuilder, first: tuple[str, str], second: tuple[str, str], later: set[str], sizes: dict[str, int]) -> tuple[str, str]:
    """The sum of products of two operands over the letters that both have and nothing later needs."""
    a, left = _summed(g, *first, later | set(second[1]))
    b, right = _summed(g, *second, later | set(left))
    batch = "".join(letter for letter in left if letter in right and letter in later)
    summed = "".join(letter for letter in left if letter in right and letter not in later)
    rows, columns = ("".join(letter for letter in own if letter not in other) for own, other in ((left, right), (right, left)))
    shape = [sizes[letter] for letter in batch]
    size = {part: prod(sizes[letter] for letter in part) for part in (rows, columns, summed)}
    a = g.op("Reshape", _transposed(g, a, left, batch + rows + summed), g.constant([*shape, size[rows], size[summed]]))
    b = g.op("Reshape", _transposed(g, b, right, batch + summed + columns), g.constant([*shape, size[summed], size[columns]]))
    letters = batch + rows + columns
    return g.op("Reshape", g.op("MatMul", a, b), g.constant([sizes[letter] for letter in letters])), letters


@operator("Einsum", lower=lower_einsum, gradient=einsum_gradient, decompose=decompose)
def einsum(c: InferenceContext) -> list[TensorType]:
    """The sum of products of the operands over the index letters that the result does not have"""
    equation = equation_of(c)
    sizes = sizes_of(c, equation)
    return [TensorType(c.dtype(0), tuple(sizes[letter] for letter in equation.result))]
