"""Cases of operators that work element by element, with and without broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.operators.case import Case, integers, mask, positive

MICROSOFT = "com.microsoft"
SQUARE = (1024, 1024)
UNARY_SHAPES = (SQUARE, (1021, 7), (1, 1000))
"""Shapes of operators of one input: typical, odd, and one small row."""
BROADCASTS = {"same": (SQUARE, SQUARE), "a row": (SQUARE, (1024,)), "a column": (SQUARE, (1024, 1)), "a scalar": (SQUARE, ()),
              "channels": ((16, 64, 1024), (64, 1)), "odd row": ((149797, 7), (7,)), "odd column": ((149797, 7), (149797, 1)),
              "small row": ((1, 1000), (1, 1000))}
"""Name -> shapes of two inputs."""


def method(name: str, *arguments: Any) -> Callable[..., Any]:
    """Return a function that calls a method of its first tensor."""
    return lambda torch, x, *more: getattr(x, name)(*more, *arguments)


def functional(name: str, **options: Any) -> Callable[..., Any]:
    """Return a function that calls torch.nn.functional."""
    return lambda torch, *tensors: getattr(torch.nn.functional, name)(*tensors, **options)


CHEAP = {"Abs": method("abs"), "Neg": method("neg"), "Reciprocal": method("reciprocal"), "Sqrt": method("sqrt"), "Relu": method("relu"),
         "LeakyRelu": functional("leaky_relu"), "HardSigmoid": functional("hardsigmoid"), "HardSwish": functional("hardswish"),
         "ThresholdedRelu": functional("threshold", threshold=1.0, value=0.0), "Softsign": functional("softsign"), "Shrink": functional("hardshrink"),
         "Clip": lambda torch, x: x.clamp(-1.0, 1.0), "Sign": method("sign"), "Floor": method("floor"), "Ceil": method("ceil"), "Round": method("round"),
         "IsNaN": method("isnan"), "IsInf": method("isinf")}
"""Operator -> PyTorch's, without transcendental functions."""
TRANSCENDENTAL: dict[str, tuple[Callable[..., Any], tuple[int, int]]] = {
    "Exp": (method("exp"), (1, 0)), "Log": (method("log"), (1, 0)), "Sigmoid": (method("sigmoid"), (1, 0)), "Tanh": (method("tanh"), (1, 0)),
    "Erf": (method("erf"), (1, 1)), "Elu": (functional("elu"), (1, 0)), "Selu": (functional("selu"), (1, 0)), "Celu": (functional("celu"), (1, 0)),
    "Softplus": (functional("softplus"), (2, 1)), "Mish": (functional("mish"), (2, 2)), "Sin": (method("sin"), (1, 1)), "Cos": (method("cos"), (1, 1)),
    "Tan": (method("tan"), (1, 0)), "Asin": (method("asin"), (1, 0)), "Acos": (method("acos"), (1, 0)), "Atan": (method("atan"), (1, 0)),
    "Sinh": (method("sinh"), (1, 1)), "Cosh": (method("cosh"), (1, 1)), "Asinh": (method("asinh"), (1, 0)), "Acosh": (method("acosh"), (1, 0)),
    "Atanh": (method("atanh"), (1, 0)), "Gelu": (functional("gelu"), (1, 1))}
"""Operator -> (PyTorch's, evaluations per element in the forward pass and in the gradient)."""
MICROSOFT_UNARY = {"FastGelu": (functional("gelu", approximate="tanh"), (1, 1)), "QuickGelu": (lambda torch, x: x * torch.sigmoid(1.702 * x), (1, 1))}
DOMAINS = {"Acosh": lambda *shape: lambda rng: 1 + positive(*shape)(rng), **dict.fromkeys(("Log", "Sqrt", "Asin", "Acos", "Atanh"), positive)}
"""Operator -> a draw from its domain, where that is not all numbers."""
CLIP_LIMITS = (np.array(-1, np.float32), np.array(1, np.float32))
ATTRIBUTES = {"Shrink": {"lambd": 0.5}}
NOT_DIFFERENTIABLE = frozenset({"Sign", "Floor", "Ceil", "Round", "IsNaN", "IsInf"})


def times(counts: tuple[int, int], elements: int) -> tuple[int, int]:
    """Return counts per element as counts of all elements."""
    return counts[0] * elements, counts[1] * elements


def unary_cases() -> Iterator[Case]:
    """Yield the operators of one input."""
    table = {name: (peer, (0, 0), "") for name, peer in CHEAP.items()}
    table |= {name: (peer, counts, MICROSOFT if name == "Gelu" else "") for name, (peer, counts) in TRANSCENDENTAL.items()}
    table |= {name: (peer, counts, MICROSOFT) for name, (peer, counts) in MICROSOFT_UNARY.items()}
    for name, (peer, counts, domain) in table.items():
        for shape in UNARY_SHAPES:
            inputs = [DOMAINS[name](*shape) if name in DOMAINS else shape, *(CLIP_LIMITS if name == "Clip" else ())]
            yield Case(name, inputs, peer, ATTRIBUTES.get(name, {}), "x".join(map(str, shape)), () if name in NOT_DIFFERENTIABLE else (0,),
                       times(counts, math.prod(shape)), domain=domain)


def binary_cases() -> Iterator[Case]:
    """Yield the operators of two inputs with every kind of broadcasting."""
    operators = {"Add": ("add", (0, 0)), "Sub": ("sub", (0, 0)), "Mul": ("mul", (0, 0)), "Div": ("div", (0, 0)), "Pow": ("pow", (2, 3)),
                 "Max": ("maximum", (0, 0)), "Min": ("minimum", (0, 0)), "Mod": ("fmod", (0, 0)), "Equal": ("eq", (0, 0)), "Less": ("lt", (0, 0)),
                 "LessOrEqual": ("le", (0, 0)), "Greater": ("gt", (0, 0)), "GreaterOrEqual": ("ge", (0, 0))}
    for name, (peer, counts) in operators.items():
        compares = peer in ("eq", "lt", "le", "gt", "ge", "fmod")
        for label, (a, b) in BROADCASTS.items():
            if compares and label not in ("same", "a row"):
                continue
            inputs = [positive(*a), positive(*b)] if name == "Pow" else [a, b]
            yield Case(name, inputs, method(peer), {"fmod": 1} if name == "Mod" else {}, label, () if compares else None, times(counts, math.prod(a)))
    for name in ("And", "Or", "Xor"):
        yield Case(name, [mask(*SQUARE), mask(*SQUARE)], method(f"logical_{name.lower()}"), {}, "same")
    yield Case("Not", [mask(*SQUARE)], method("logical_not"), {}, "1024x1024")


def other_cases() -> Iterator[Case]:
    """Yield the operators of three inputs, casts and sums."""
    for label, (a, b) in BROADCASTS.items():
        yield Case("Where", [mask(*a), a, b], lambda torch, c, x, y: torch.where(c, x, y), {}, label)
    for label, slope in {"one slope": (1,), "a slope per channel": (64, 1, 1)}.items():
        yield Case("PRelu", [(16, 64, 32, 32), slope], lambda torch, x, w: torch.nn.functional.prelu(x, w.reshape(-1)), {}, label)
    yield Case("Sum", [SQUARE, SQUARE, SQUARE], lambda torch, a, b, c: a + b + c, {}, "of three")
    yield Case("Cast", [integers(9, *SQUARE)], lambda torch, x: x.float(), {"to": 1}, "integers to float32")
    yield Case("Dropout", [SQUARE, np.array(0.5, np.float32), np.array(True)], lambda torch, x: torch.nn.functional.dropout(x, 0.5), {}, "half", (0,))
    yield Case("Scale", [SQUARE, np.array(0.5, np.float32)], lambda torch, x: x * 0.5, {"scale_down": 0}, "by a constant", (0,), domain=MICROSOFT)
