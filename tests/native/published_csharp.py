"""The published C# sources as mono's compiler mcs can read them, and with the table of functions of version 1.19.

mcs stops at C# 7, which the sources exceed in few places, each rewritten here to what it stands for. Version 1.21 reads four functions of adapters beyond
the end of the table of 1.19 when its class is loaded, as 1.19's sources do not: those lines are left out."""

from __future__ import annotations

import re
from pathlib import Path

REWRITTEN = {
    r"\bis null\b": "== null",
    r"([\w.]+) is not (\w+)": r"!(\1 is \2)",
    r"(where \w+ : )unmanaged": r"\1struct",
    r"\busing var (\w+) = (.*);$": r"using (var \1 = \2)",                              # each stands before one statement
    r"\b([A-Z]\w+(?:<[\w, ]+>)?) (\w+) = new\(": r"\1 \2 = new \1(",
    r"([\w.]+)\.Span\[(\w+)\] = (.*);": r"{ var span = \1.Span; span[\2] = \3; }",      # an element of a span that a property returns
    r"(\w+\[0\]) = (\w+\[1\]) = (\w+);": r"\2 = \3; \1 = \3;",
    r"fixed \(T\* memPtr = value\)": "using (var memory = new Memory<T>(value).Pin())",   # pointers to generic types
    r"\(IntPtr\)memPtr": "(IntPtr)memory.Pointer",
    r"ORT_API_VERSION = 21\b": "ORT_API_VERSION = 19",
}
ADAPTERS = (r"^ +public IntPtr \w*LoraAdapter\w*;\n", r"^ +\w*LoraAdapter\w* =\s[^;]*;\n")


def rewritten(name: str, text: str) -> str:
    """Return the text of a source file as mcs reads it."""
    for pattern, replacement in REWRITTEN.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    if name.startswith("NativeMethods"):
        for pattern in ADAPTERS:
            text = re.sub(pattern, "", text, flags=re.MULTILINE)
    return text


def copy_csharp(sources: Path, folder: Path) -> None:
    """Write the sources of the managed assembly into a folder, flat."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (sources / "csharp" / "src" / "Microsoft.ML.OnnxRuntime").rglob("*.shared.cs"):
        (folder / path.name).write_text(rewritten(path.name, path.read_text(encoding="utf-8-sig")), encoding="utf-8")
