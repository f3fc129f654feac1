"""The specification as objects, read from the TOML files. Unknown fields, types, parameters and errors are refused."""

from __future__ import annotations

import keyword
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parent
WORDS = ("static", "classmethod", "property", "setter", "function", "written", "void", "plain")
FIELDS = {"kind", "doc", "call", "calls", "parameters", "result", "errors", "known_from", "since", "deprecated", "absent", "notes"}
KINDS = ("method", "static", "constructor", "property", "function", "none")
FIRST_RELEASE = "0.1.0"

FORM = re.compile(rf"^(?:({'|'.join(WORDS)}) )?([\w.]+)\((.*)\)(?: with (\w+) = ([\w.]+))?(?: -> (\w+\??))?$")
ARGUMENT = re.compile(r"^(\*|_ )?(\w+)(?:: (result \w+|length of \w+|handle \w+|\w+))?(?: as ([\w?]+))?(?: = (.+))?$")


class SpecError(Exception):
    """The specification contradicts itself or is malformed."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operation, which languages may name differently."""

    name: str
    type: str
    doc: str
    default: str | None = None


@dataclass(frozen=True)
class Argument:
    """A parameter of one language's form.

    role: parameter, self, result, length, allocator, aside or handle. of: the parameter or class that the role refers to. star: takes any number of arguments.
    result: an out-parameter."""

    name: str
    role: str
    of: str = ""
    type: str = ""
    default: str | None = None
    positional: bool = False
    star: bool = False
    result: bool = False


@dataclass(frozen=True, eq=False)
class Form:
    """The form of an operation in one language. word: one of WORDS, or "". owner: its class, "" for a function. fixed: parameter -> its value."""

    language: str
    operation: Operation
    word: str
    name: str
    owner: str
    arguments: tuple[Argument, ...]
    fixed: dict[str, str]
    result: str

    @property
    def rendered(self) -> bool:
        """Whether the form is rendered, rather than written by hand elsewhere and only recorded here."""
        return self.word != "written"

    @property
    def path(self) -> str:
        """The dotted name in the facade."""
        return f"{self.owner}.{self.name}" if self.owner and not self.name.startswith("ortrain.") else self.name

    @property
    def constructs(self) -> bool:
        """Whether the form creates the object that it belongs to."""
        return self.name == self.owner or self.language == "objc" and self.operation.kind in ("static", "constructor") and self.word != "function"


@dataclass(eq=False)
class Operation:
    """One operation of the public API."""

    object: str
    name: str
    kind: str
    doc: str
    call: str
    calls: dict[str, str]
    parameters: dict[str, Parameter]
    result: str
    result_doc: str
    errors: list[str]
    known_from: str
    since: str
    deprecated: dict[str, str]
    absent: dict[str, str]
    notes: dict[str, str]
    forms: dict[str, list[Form]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The canonical id, `object.name`."""
        return f"{self.object}.{self.name}"


class Spec:
    """The whole specification."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors = self.read("errors.toml")
        self.enums = self.read("enums.toml")
        self.types = self.read("types.toml")
        self.naming = self.read("naming.toml")
        self.languages = tuple(self.naming)
        """The languages, in the order of their sections in naming.toml."""
        self.removed = self.read("removed.toml")
        self.operations: dict[str, Operation] = {}
        for path in sorted((folder / "operations").glob("*.toml")):
            for name, record in self.read(f"operations/{path.name}").items():
                operation = self._operation(path.stem, name, record)
                self.operations[operation.id] = operation

    @classmethod
    def load(cls) -> Spec:
        """Load the project's specification. Raises SpecError."""
        return cls(HERE)

    def read(self, name: str) -> dict[str, Any]:
        """Read one file of the specification. Raises SpecError if it is not TOML."""
        try:
            with (self.folder / name).open("rb") as file:
                return tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise SpecError(f"{name}: {error}") from error

    def is_finished(self, language: str) -> bool:
        """Is every operation that a language lacks explained, and are its names kept in names.lock?"""
        return not self.naming[language].get("unfinished", False)

    def class_of(self, language: str, kind: str) -> str:
        """The class that stands for an object in a language. Raises SpecError when there is none."""
        section = self.naming[language]
        name = section.get("objects", {}).get(kind) or section["classes"].get(kind, {}).get("name")
        if not name:
            raise SpecError(f"naming.toml: expected a class of {language} for {kind}, which one of its forms takes or returns")
        return str(name)

    def forms(self, language: str) -> Iterator[Form]:
        """Yield every form of a language, in the order of the specification."""
        for operation in self.operations.values():
            yield from operation.forms.get(language, ())

    # ---- reading records

    def _operation(self, owner: str, name: str, record: dict[str, Any]) -> Operation:
        where = f"{owner}.{name}"
        unknown = set(record) - FIELDS - set(self.languages)
        if unknown:
            raise SpecError(f"{where}: unknown fields {sorted(unknown)}")
        missing = {"doc", "known_from"} - set(record)
        if missing:
            raise SpecError(f"{where}: fields {sorted(missing)} are missing")
        result = record.get("result", {"type": "none", "doc": ""})
        operation = Operation(
            owner, name, record.get("kind", "method"), record["doc"], record.get("call", ""), record.get("calls", {}),
            {item["name"]: Parameter(**item) for item in record.get("parameters", [])}, result["type"], result["doc"], record.get("errors", []),
            record["known_from"], record.get("since", FIRST_RELEASE), record.get("deprecated", {}), record.get("absent", {}), record.get("notes", {}))
        self._check(operation, where)
        for language in self.languages:
            texts = record.get(language, [])
            operation.forms[language] = [self._form(operation, language, text) for text in ([texts] if isinstance(texts, str) else texts)]
            if bool(texts) == (language in operation.absent) and (texts or self.is_finished(language)):
                raise SpecError(f"{where}: expected either a form for {language} or the reason why it is absent")
        return operation

    def _check(self, operation: Operation, where: str) -> None:
        if operation.kind not in KINDS:
            raise SpecError(f"{where}: unknown kind {operation.kind!r}")
        for parameter in operation.parameters.values():
            self._type(parameter.type, where)
        self._type(operation.result, where)
        for language in {*operation.absent, *operation.calls, *operation.notes}:
            if language not in self.languages:
                raise SpecError(f"{where}: unknown language {language!r}")
        for text in operation.errors:
            if text.partition(":")[0] not in self.errors:
                raise SpecError(f"{where}: unknown error {text!r}")
        for call in (operation.call, *operation.calls.values()):
            for used in re.findall(r"\{(\w+)\}", call):
                if used != "self" and used not in operation.parameters:
                    raise SpecError(f"{where}: the call uses {{{used}}}, which is not a parameter")

    def _type(self, name: str, where: str) -> None:
        if name not in self.types:
            raise SpecError(f"{where}: unknown type {name!r}")

    def _form(self, operation: Operation, language: str, text: str) -> Form:
        where = f"{operation.id} ({language})"
        match = FORM.match(text)
        if match is None:
            raise SpecError(f"{where}: {text!r} is not [word ]Name(arguments)[ with parameter = value][ -> type]")
        word, name, inside, fixed, value, result = match.groups()
        arguments = tuple(self._argument(operation, part, where) for part in inside.split(", ") if part) if word != "written" else ()
        if result:
            self._type(result, where)
        owner = self._class_name(operation, language, name)
        own = name if name.startswith("ortrain.") else name.rpartition(".")[2]
        return Form(language, operation, word or "", own, owner if word != "function" else "", arguments, {fixed: value} if fixed else {},
                    result or operation.result)

    def _class_name(self, operation: Operation, language: str, name: str) -> str:
        if "." in name:
            return name.rpartition(".")[0]
        classes = self.naming[language]["classes"]
        if name in {record["name"] for record in classes.values()}:
            return name
        return str(classes[operation.object]["name"]) if operation.object in classes else ""

    def _argument(self, operation: Operation, text: str, where: str) -> Argument:
        match = ARGUMENT.match(text)
        if match is None:
            raise SpecError(f"{where}: {text!r} is not name[: role][ as type][ = default]")
        mark, name, role, kind, default = match.groups()
        role = role or name
        name += "_" if keyword.iskeyword(name) else ""  # as PEP 8 writes them
        if kind:
            self._type(kind, where)
        marks = {"positional": mark == "_ ", "star": mark == "*"}
        if role in operation.parameters:
            return Argument(name, "parameter", role, kind or operation.parameters[role].type, default, **marks)
        word, _, of = role.replace("length of", "length").partition(" ")
        if word == "result" and of:
            return Argument(name, "parameter", of, kind or operation.parameters[of].type, default, result=True, **marks)
        if word not in ("self", "result", "length", "allocator", "aside", "handle"):
            raise SpecError(f"{where}: {role!r} is neither a parameter nor a role")
        return Argument(name, word, of, kind or (operation.object if word == "self" else ""), default, result=word == "result", **marks)
