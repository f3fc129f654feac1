"""Reads the inner loops of compiled arm64 kernels: how many products they have for each load, and whether registers suffice.

    python -m tests.arm.disassembly MODULE.so [FUNCTION ...]     prints the loops that multiply and add"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OBJDUMP = "aarch64-linux-gnu-objdump"
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
BRANCH = re.compile(r"(?:\S+, )*([0-9a-f]+) <")
VECTOR_OPERANDS = re.compile(r"\bv\d+\.(?:4s|2d|8h|16b)")


@dataclass
class Instruction:
    """An instruction with its address; target: where a branch goes."""

    address: int
    name: str
    operands: str
    target: int | None = None

    @property
    def is_vector_product(self) -> bool:
        """Whether it multiplies and adds whole vectors."""
        return self.name in ("fmla", "fmls", "bfmmla", "bfdot", "sdot", "udot") and bool(VECTOR_OPERANDS.search(self.operands))

    @property
    def is_scalar_product(self) -> bool:
        """Whether it multiplies and adds single numbers."""
        return self.name in ("fmadd", "fmsub", "fnmadd", "fnmsub")

    @property
    def is_load(self) -> bool:
        """Whether it reads memory; pairs count as one, as processors read them at once."""
        return self.name.startswith("ld")

    @property
    def is_spill(self) -> bool:
        """Whether it moves a vector register to or from the stack."""
        return "[sp" in self.operands and self.name in ("ldr", "str", "ldp", "stp") and self.operands[0] in "qd"


@dataclass
class Loop:
    """The instructions of an innermost loop in the order of memory, from the target of its branch to the branch."""

    function: str
    instructions: list[Instruction]

    def count(self, kind: str) -> int:
        """Return how many instructions have a property `is_KIND`."""
        return sum(getattr(instruction, f"is_{kind}") for instruction in self.instructions)

    def assembly(self) -> str:
        """Return the loop in the assembler's language; its branches lead to one name, since addresses mean nothing outside of the module."""
        operands = (re.sub(r"[0-9a-f]+ <.*", "target", i.operands) if i.target is not None else i.operands for i in self.instructions)
        return "".join(f"{i.name} {text.partition('//')[0]}\n" for i, text in zip(self.instructions, operands, strict=True))

    def __str__(self) -> str:
        return (f"{self.function}: {len(self.instructions)} instructions, {self.count('vector_product')} vector and {self.count('scalar_product')} scalar "
                f"products, {self.count('load')} loads, {self.count('spill')} spills")


def functions(module: Path) -> Iterator[tuple[str, list[Instruction]]]:
    """Yield the functions of a compiled module with their instructions."""
    text = subprocess.run([OBJDUMP, "-d", "--no-show-raw-insn", str(module)], check=True, capture_output=True, text=True).stdout
    name, found = "", []
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            if found:
                yield name, found
            name, found = match[1], []
        elif match := INSTRUCTION.match(line):
            branch = BRANCH.match(match[3]) if match[2][0] in "bct" else None
            found.append(Instruction(int(match[1], 16), match[2], match[3], int(branch[1], 16) if branch and match[2] != "bl" else None))
    if found:
        yield name, found


def natural_loop(instructions: list[Instruction], predecessors: dict[int, list[int]], first: int, last: int) -> frozenset[int]:
    """Return the addresses of the loop that a branch at `last` to `first` closes: all from which `last` is reached without passing `first`.

    Empty if one of them is the entry of the function, or cannot be reached: such a branch leads back from code that the compiler put behind a loop."""
    body, unvisited = {first}, [last]
    while unvisited:
        address = unvisited.pop()
        if address in body:
            continue
        if address == instructions[0].address or address not in predecessors:
            return frozenset()
        body.add(address)
        unvisited += predecessors[address]
    return frozenset(body)


def innermost_loops(name: str, instructions: list[Instruction]) -> Iterator[Loop]:
    """Yield the loops that contain no other loop."""
    predecessors: dict[int, list[int]] = {}
    for instruction, following in zip(instructions, instructions[1:] + [None], strict=True):
        if following is not None and instruction.name not in ("b", "br", "ret"):
            predecessors.setdefault(following.address, []).append(instruction.address)
        if instruction.target is not None:
            predecessors.setdefault(instruction.target, []).append(instruction.address)
    bodies = {natural_loop(instructions, predecessors, i.target, i.address) for i in instructions if i.target is not None and i.target <= i.address}
    for body in sorted(bodies - {frozenset()}, key=min):
        if not any(other < body for other in bodies - {frozenset()}):
            yield Loop(name, [i for i in instructions if i.address in body])


def loops(module: Path, names: str = "") -> list[Loop]:
    """Return the innermost loops with products of the functions whose names match a regular expression."""
    found = [loop for name, instructions in functions(module) if re.search(names, name) for loop in innermost_loops(name, instructions)]
    return [loop for loop in found if loop.count("vector_product") + loop.count("scalar_product")]


if __name__ == "__main__":
    for shown in loops(Path(sys.argv[1]), "|".join(sys.argv[2:])):
        print(shown)
