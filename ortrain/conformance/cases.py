"""The conformance cases: JSON files beside this module, the artifacts they use, and the known failures."""

from __future__ import annotations

import base64
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortrain.formats.artifact_names import EVAL_MODEL, OPTIMIZER_MODEL, TRAINING_MODEL

HERE = Path(__file__).parent
ARTIFACTS = HERE / "artifacts"

OBJECTS: dict[str, list[dict[str, Any]]] = {
    "state": [{"call": "checkpoint_state.load", "arguments": {"path": "$artifacts/checkpoint"}, "as": "state"}],
    "nominal_state": [{"call": "checkpoint_state.load", "arguments": {"path": "$artifacts/nominal_checkpoint"}, "as": "state"}],
    "session": [{"call": "training_session.create", "as": "session", "arguments": {
        "state": {"object": "state"}, "train_model": f"$artifacts/{TRAINING_MODEL}", "eval_model": f"$artifacts/{EVAL_MODEL}",
        "optimizer_model": f"$artifacts/{OPTIMIZER_MODEL}"}}],
    "session_without_optimizer": [{"call": "training_session.create", "as": "session", "arguments": {
        "state": {"object": "state"}, "train_model": f"$artifacts/{TRAINING_MODEL}", "eval_model": f"$artifacts/{EVAL_MODEL}"}}],
    "session_without_eval": [{"call": "training_session.create", "as": "session", "arguments": {
        "state": {"object": "state"}, "train_model": f"$artifacts/{TRAINING_MODEL}", "optimizer_model": f"$artifacts/{OPTIMIZER_MODEL}"}}],
}
"""Names in `given.objects` -> the calls that create the object."""


@dataclass(frozen=True)
class Case:
    """One case: the given objects, and the calls with their expected results or errors."""

    name: str
    documentation: str
    calls: list[dict[str, Any]]
    artifacts: str = "classifier"
    objects: list[str] = field(default_factory=list)
    tolerance: dict[str, float] = field(default_factory=dict)
    languages: list[str] = field(default_factory=list)
    """The languages that the case applies to; empty: all."""
    file: str = ""

    @property
    def setup(self) -> list[dict[str, Any]]:
        """Return the calls that create the given objects."""
        return [call for name in self.objects for call in OBJECTS[name]]

    def operations(self) -> set[str]:
        """Return the operations that the case calls, including those that create given objects."""
        return {str(call["call"]) for call in (*self.setup, *self.calls)}


def load_cases() -> list[Case]:
    """Load every case, in the order of the files."""
    found = []
    for path in sorted((HERE / "cases").glob("*.json")):
        for record in json.loads(path.read_text(encoding="utf-8")):
            given = record.get("given", {})
            found.append(Case(record["name"], record["documentation"], record["calls"], given.get("artifacts", "classifier"), given.get("objects", []),
                              record.get("tolerance", {}), record.get("languages", []), path.stem))
    return found


def known_failures() -> dict[str, dict[str, str]]:
    """Return the known failures per language: case -> reason."""
    return tomllib.loads((HERE / "known_failures.toml").read_text(encoding="utf-8"))


def resolved(value: Any, artifacts: Path, temporary: Path) -> Any:
    """Resolve folders' paths, and the bytes of named files, in a value of a case."""
    if isinstance(value, str):
        return value.replace("$artifacts", str(artifacts)).replace("$temporary", str(temporary))
    if isinstance(value, dict) and set(value) == {"bytes_of"}:
        return {"bytes": base64.b64encode(Path(resolved(value["bytes_of"], artifacts, temporary)).read_bytes()).decode("ascii")}
    if isinstance(value, dict):
        return {name: resolved(item, artifacts, temporary) for name, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, artifacts, temporary) for item in value]
    return value
