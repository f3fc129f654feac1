"""The command ops: lists every operator with its opsets, the data types of its compiled kernel, the kind of its kernel and the state of its gradient.

Kernels are compiled, composed of other operators' by ortrain or by ONNX's function body, or ONNX's reference implementation as a Python step of the program."""

from __future__ import annotations

import argparse

from ortrain.operator_support import NOT_YET, Operator, counts, operators
from ortrain.ops.registry.unsupported import UNSUPPORTED_OPERATORS
from ortrain.packages import require_onnx


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("--not-yet", action="store_true", help="List only operators whose gradient is not implemented yet.")
    command.add_argument("--counts", action="store_true", help="Print only how many operators of the default domain there are of each kind.")
    command.add_argument("--markdown", action="store_true", help="Print the page docs/operators.md.")


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    if options.markdown:
        print(page(), end="")
        return
    if not options.counts:
        rows = [row for row in operators() if not options.not_yet or row.gradient == NOT_YET]
        for row in rows:
            print(f"{full_name(row):<42} {opsets(row):<12} {row.kernel:<10} {row.gradient:<16} {' '.join(row.dtypes)}".rstrip())
        print()
    for name, count in counts().items():
        print(f"{count:5d} {name}")


def full_name(row: Operator) -> str:
    """Return domain and name."""
    return f"{row.domain}::{row.name}" if row.domain else row.name


def opsets(row: Operator) -> str:
    """Return the first and the last opset that changed the operator."""
    return "" if not row.opsets else str(row.opsets[0]) if len(row.opsets) == 1 else f"{row.opsets[0]} … {row.opsets[-1]}"


def page() -> str:
    """Return the page docs/operators.md."""
    lines = ["# Operators", "", f"With onnx {require_onnx('the list of operators').__version__}; rendered by `python -m ortrain ops --markdown`.", "",
             "Kernels: *compiled*; *composed* of other operators' by ortrain; of the *function* body that ONNX defines; ONNX's *reference*",
             "implementation as a Python step. A dtype without a compiled kernel runs by the reference implementation. Gradients: by a rule of the",
             "operator's own, of its parts, none by nature, first order only (operators that are parts of gradients), or not yet.", "",
             "| | operators of the default domain |", "|---|---:|"]
    lines += [f"| {name} | {count} |" for name, count in counts().items()]
    lines += ["", "| operator | opsets | kernel | dtypes | gradient |", "|---|---|---|---|---|"]
    lines += [f"| {full_name(row)} | {opsets(row)} | {row.kernel} | {', '.join(row.dtypes)} | {row.gradient} |" for row in operators()]
    lines += ["", "These operators of onnxruntime-training are not supported. A model that has one of them is refused with the reason:", ""]
    for reason in dict.fromkeys(UNSUPPORTED_OPERATORS.values()):
        lines.append(f"- {', '.join(name for name, why in UNSUPPORTED_OPERATORS.items() if why == reason)}: {reason}.")
    return "\n".join(lines) + "\n"
