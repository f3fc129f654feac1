"""The runner: executes cases through a connection and judges the replies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortrain import errors
from ortrain.conformance.cases import ARTIFACTS, Case, resolved
from ortrain.conformance.service import Connection
from ortrain.conformance.values import decoded, difference, encoded
from ortrain.enums import ErrorCode
from ortrain.runtime.inference_session import InferenceSession

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""The default tolerance: the agreement of recorded runs of onnxruntime-training."""


def file_exists(path: str) -> bool:
    """Return whether a file exists."""
    return Path(path).is_file()


def infer(path: str, inputs: list[Any]) -> list[Any]:
    """Run a model for inference that a call has written."""
    session = InferenceSession(path)
    return [encoded(array) for array in session.run(None, {kind.name: array for kind, array in zip(session.get_inputs(), inputs, strict=True)})]


def mean(tensors: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of tensors of one shape, as several workers compute that of their gradients."""
    return tensors[0] | {"data": [sum(elements) / len(elements) for elements in zip(*(tensor["data"] for tensor in tensors), strict=True)]}


def decoded_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Decode the arguments of a check."""
    return {name: decoded(value) for name, value in message["arguments"].items()}


CHECKS: dict[str, Callable[..., Any]] = {"file_exists": file_exists, "infer": infer}
"""Calls that the runner answers itself; they examine what the facade or port has written."""


READING = {"checkpoint_state.gradient", "checkpoint_state.requires_grad", "checkpoint_state.parameter_names"}
"""Calls without which a case goes on where a language lacks them, because they change nothing: the rest of the case is still judged."""


def code_of(name: str) -> ErrorCode:
    """Return the code of an error of ortrain, by which it is known where its name is not."""
    code: ErrorCode = getattr(errors, name).code
    return code


@dataclass
class Outcome:
    """The outcome of a case: passed, failed or absent (the language lacks some of its operations), with the errors as the language reports them."""

    verdict: str
    detail: str = ""
    shown: list[str] = field(default_factory=list)


def run_case(connection: Connection, case: Case) -> Outcome:
    """Run one case from a clean start, in a temporary folder."""
    connection.request({"call": "reset"})
    with tempfile.TemporaryDirectory() as folder:
        return _Run(connection, case, Path(folder)).outcome()


def run_cases(connection: Connection, cases: Iterable[Case]) -> dict[str, Outcome]:
    """Run cases; return case name -> outcome."""
    return {case.name: run_case(connection, case) for case in cases}


class _Run:
    """One case in progress."""

    def __init__(self, connection: Connection, case: Case, folder: Path) -> None:
        self.connection, self.case, self.folder = connection, case, folder
        self.language = connection.request({"call": "hello"})["result"]["language"]
        self.values: dict[str, Any] = {}
        self.shown: list[str] = []

    def outcome(self) -> Outcome:
        if self.case.languages and self.language not in self.case.languages:
            return Outcome("absent", f"a case of {', '.join(self.case.languages)}")
        missing = []
        for number, call in enumerate((*self.case.setup, *self.case.calls)):
            if not self._saved(call) <= set(self.values):
                continue
            check = CHECKS.get(call["call"])
            message = self._message(call)
            reply = self.connection.request(message) if check is None else {"result": check(**decoded_arguments(message))}
            if "absent" in reply:
                missing.append(str(reply["absent"]))
                if call["call"] in READING:
                    continue
                break
            said = self._judge(call, reply)
            if said is not None:
                return Outcome("failed", f"call {number} ({call['call']}): {said}", self.shown)
        return Outcome("absent", "; ".join(dict.fromkeys(missing)), self.shown) if missing else Outcome("passed", shown=self.shown)

    def _saved(self, value: Any) -> set[str]:
        """Return the names of saved results that a call compares with or passes on."""
        if isinstance(value, dict) and set(value) == {"mean_of"}:
            return set(value["mean_of"])
        if isinstance(value, dict):
            return {value["saved"]} if "saved" in value else {name for item in value.values() for name in self._saved(item)}
        return {name for item in value for name in self._saved(item)} if isinstance(value, list) else set()

    def _message(self, call: dict[str, Any]) -> dict[str, Any]:
        message = {"call": call["call"], "arguments": self._with_values(resolved(call.get("arguments", {}), ARTIFACTS / self.case.artifacts, self.folder))}
        return message | {key: call[key] for key in ("on", "as") if key in call}

    def _with_values(self, value: Any) -> Any:
        if isinstance(value, dict) and "saved" in value:
            saved = self.values[value["saved"]]
            return saved[value["at"]] if "at" in value else saved
        if isinstance(value, dict) and set(value) == {"mean_of"}:
            return mean([self.values[name] for name in value["mean_of"]])
        if isinstance(value, dict):
            return {name: self._with_values(item) for name, item in value.items()}
        return [self._with_values(item) for item in value] if isinstance(value, list) else value

    def _judge(self, call: dict[str, Any], reply: dict[str, Any]) -> str | None:
        """Return what is wrong with a reply, or None."""
        if "error" in call:
            return self._judge_error(call["error"], reply)
        if "error" in reply:
            return f"expected a result, got {reply['error'].get('shown')}"
        if "result" not in reply:
            return f"expected a result, got {reply}"
        if "as" in call:
            self.values[call["as"]] = reply["result"]
        if "result" not in call:
            return None
        tolerance = self.case.tolerance | call.get("tolerance", {})
        wanted = self._with_values(resolved(call["result"], ARTIFACTS / self.case.artifacts, self.folder))
        return difference(reply["result"], wanted, tolerance.get("relative", RELATIVE), tolerance.get("absolute", ABSOLUTE))

    def _judge_error(self, wanted: dict[str, Any], reply: dict[str, Any]) -> str | None:
        got = reply.get("error")
        if got is None:
            return f"expected {wanted['name']}, got {reply}"
        self.shown.append(str(got.get("shown", "")))
        if got["name"] is not None and got["name"] != wanted["name"]:
            return f"expected {wanted['name']}, got {got['name']}: {got['message']}"
        code = ErrorCode[wanted["code"]] if "code" in wanted else code_of(wanted["name"]) if got["name"] is None else got["code"]
        if got["code"] != code:
            return f"expected code {ErrorCode(code).name}, got {got['code']}: {got['message']}"
        missing = [part for part in wanted.get("says", []) if part not in got["message"]]
        return f"expected a message with {missing}, got {got['message']!r}" if missing else None
