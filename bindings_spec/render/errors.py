"""Renders ortrain/errors.py."""

from __future__ import annotations

from render.spec import Spec
from render.text import NOTE

HEAD = '''"""Every error that ortrain raises. Each has the base class OrtrainError and the built-in exception that users would catch."""

from typing import ClassVar


class OrtrainError(RuntimeError):
    """Base class of all errors that ortrain raises on purpose; a RuntimeError, which onnxruntime-training raised."""

    code: ClassVar[int] = 1
    """ONNX Runtime's number of the error, a member of ortrain.enums.ErrorCode, which C, C#, Swift and Objective-C programs see."""

    def __str__(self) -> str:
        # KeyError would show the repr of its message
        return str(self.args[0]) if self.args else ""
'''


def render(spec: Spec) -> dict[str, str]:
    """Return the file with all error classes."""
    codes = {member["name"]: member["value"] for member in spec.enums["ErrorCode"]["members"]}
    parts = [NOTE.format(source="errors.toml") + HEAD]
    for name, record in spec.errors.items():
        parts.append(f'\n\nclass {name}({", ".join(record["bases"])}):\n    """{record["doc"]}"""\n\n    code = {codes[record["code"]]}\n')
    return {"ortrain/errors.py": "".join(parts)}
