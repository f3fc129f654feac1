"""Renders the facades from the operations: one module per group of classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from render import enums
from render.spec import Argument, Form, Operation, Spec
from render.text import MAX_LINE, NOTE, docstring, folded, imports_for, order, runtime_homes

INDENT = "    "
LENGTH = re.compile(r"^num_|_len$")
"""Out-parameters of C that receive the length of another one."""


def render(spec: Spec) -> dict[str, str]:
    """Return every module of every facade."""
    files: dict[str, str] = {}
    for language in spec.languages:
        files |= Facade(spec, language).modules()
    return files | {"ortrain/conformance/languages.py": _languages(spec)}


def _languages(spec: Spec) -> str:
    """The module that lists the languages for the conformance suite, which does not read the spec."""
    finished = [language for language in spec.languages if spec.is_finished(language)]
    return (NOTE.format(source="naming.toml") + '"""The languages that have a facade."""\n\n'
            + f"LANGUAGES = {_strings(spec.languages)}\n"
            + f'FINISHED = {_strings(finished)}\n"""Those whose facade has every operation, or a reason why not."""\n')


def _strings(names: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "") + ")"


class Facade:
    """The facade of one language. homes: name -> the module that it is imported from."""

    def __init__(self, spec: Spec, language: str) -> None:
        self.spec = spec
        self.language = language
        self.naming = spec.naming[language]
        self.package = self.naming["module"].replace(".", "/")
        self.homes = runtime_homes() | self._own_homes()

    def _own_homes(self) -> dict[str, str]:
        module = self.naming["module"]
        homes = {record["name"]: f"{module}.{record['module']}" for record in self.naming["classes"].values() if record["name"]}
        homes |= {mixin["name"]: f"{module}.{mixin['module']}" for mixin in self._mixins().values()}
        homes |= dict.fromkeys(self.naming.get("handles", {}), f"{module}.handles")
        homes |= {form.name: f"{module}.{self._module_of(form)}" for form in self.spec.forms(self.language) if form.word == "function"}
        homes |= dict.fromkeys(enums.exported(self.spec, self.language), f"{module}.enums")
        if self.language == "python":
            homes |= {"OrtValue": "ortrain.runtime.values", "SessionOptions": "ortrain.runtime.options", "FlatBuffer": "ortrain.runtime.flat_buffers"}
        return homes

    def _mixins(self) -> dict[str, dict[str, Any]]:
        """Return object -> the base class that holds the object's part of a large class."""
        return {name: record["mixin"] for name, record in self.naming["classes"].items() if "mixin" in record}

    def _module_of(self, form: Form) -> str:
        return str(self.naming["classes"][form.operation.object]["module"])

    # ---- modules

    def modules(self) -> dict[str, str]:
        """Return the facade's files."""
        bodies: dict[str, str] = {}
        for record in self._classes():
            bodies[record["module"]] = bodies.get(record["module"], "") + self._class(record)
        for name, mixin in self._mixins().items():
            bodies[mixin["module"]] = self._class(mixin | {"owner": self.naming["classes"][name]["name"]}, name)
        for form in self.spec.forms(self.language):
            if form.word == "function":
                bodies[self._module_of(form)] = bodies.get(self._module_of(form), "") + "\n\n" + self._callable(form, "")
        if "handles" in self.naming:
            bodies["handles"] = "".join(f'\n\nclass {name}({record["base"]}):\n{docstring(record["doc"], INDENT)}'
                                        for name, record in self.naming["handles"].items())
        files = {f"{self.package}/{name}.py": self._module(name, body) for name, body in bodies.items()}
        files[f"{self.package}/__init__.py"] = self._package()
        return files

    def _classes(self) -> Iterator[dict[str, Any]]:
        seen = set()
        for record in self.naming["classes"].values():
            if record["name"] and record["name"] not in seen:
                seen.add(record["name"])
                yield record

    def _module(self, name: str, body: str) -> str:
        extra = self.naming.get("reexports", {}).get(name, [])
        own = {n for n, home in self.homes.items() if home == f"{self.naming['module']}.{name}"}
        used = imports_for(body + "".join(f"\n{one}" for one in extra), self.homes, own)
        listed = sorted({*extra, *(n for n in own if re.search(rf"^(?:class|def) {n}\b", body, re.MULTILINE))}) if extra else []
        exports = f"\n__all__ = [{', '.join(repr(n) for n in listed)}]\n".replace("'", '"') if extra else ""
        contents = re.findall(r"^(?:class|def) (\w+)", body, re.MULTILINE)
        title = f"{self.naming['title']}: {', '.join(contents)}."
        return f"{NOTE.format(source='operations/')}{docstring(title, '')}\nfrom __future__ import annotations\n\n{used}\n{exports}{body}"

    def _package(self) -> str:
        module = self.naming["module"]
        names: dict[str, set[str]] = {}
        for name, home in self.homes.items():
            if home.startswith(f"{module}.") and name not in {mixin["name"] for mixin in self._mixins().values()}:
                names.setdefault(home, set()).add(name)
        for name in self.naming.get("exports", []):
            names.setdefault(self.homes[name], set()).add(name)
        body = "\n".join(name for group in names.values() for name in group)
        listed = sorted((name for group in names.values() for name in group), key=order)
        exports = "__all__ = [\n" + "".join(f'    "{name}",\n' for name in listed) + "]\n"
        return f"{NOTE.format(source='naming.toml')}{docstring(self.naming['doc'], '')}\n{imports_for(body, self.homes, set())}\n\n{exports}"

    def _class(self, record: dict[str, Any], only: str | None = None) -> str:
        """Return one class. only: the object whose part of a large class this mixin is; None for a whole class."""
        owner = record.get("owner", record["name"])
        mixins = self._mixins()
        bases = [record["base"]] if record.get("base") else []
        if only is None:
            bases += [mixin["name"] for name, mixin in mixins.items() if self.naming["classes"][name]["name"] == owner]
        base = f"({', '.join(bases)})" if bases else ""
        text = f"\n\nclass {record['name']}{base}:\n{docstring(record['doc'], INDENT)}"
        groups: dict[str, list[Form]] = {}
        for form in self.spec.forms(self.language):
            part = form.operation.object if form.operation.object in mixins else None
            if form.owner == owner and form.rendered and form.word != "function" and part == only:
                key = "__init__" if form.name == record["name"] else form.name + (" setter" if form.word == "setter" else "")
                groups.setdefault(key, []).append(form)
        after = ""
        for name, forms in sorted(groups.items(), key=lambda item: self._sort_key(item[0], groups)):
            if len(forms) == 1:
                text += "\n" + self._callable(forms[0], INDENT)
            else:
                members, table = self._overloaded(record["name"], name, forms)
                text, after = text + "\n" + members, after + table
        return text + after

    @staticmethod
    def _sort_key(name: str, groups: dict[str, list[Form]]) -> tuple[bool, int, str]:
        """Return the sort key of a member: constructors first, each setter after its property, the others in the order of the specification."""
        return name != "__init__", list(groups).index(name.removesuffix(" setter")), name

    # ---- one callable

    def _callable(self, form: Form, indent: str) -> str:
        body, returns = self._body(form), self._return_hint(form)
        name = "__init__" if form.name == form.owner else form.name
        lines = [f"{indent}@{mark}\n" for mark in self._marks(form)]
        lines.append(self._signature(f"{indent}def {name}", self._parameters(form), returns) + ":\n")
        lines.append(docstring(self._doc([form]), indent + INDENT))
        if form.operation.deprecated:
            lines.append(f"{indent}{INDENT}deprecation.warn(\"{self._deprecation(form.operation)}\")\n")
        if form.name == form.owner and self.naming["classes"][form.operation.object].get("base"):
            lines.append(f"{indent}{INDENT}super().__init__()\n")
        lines.append(folded(f"{indent}{INDENT}{'' if returns == 'None' else 'return '}{body}", indent + INDENT) + "\n")
        return "".join(lines)

    @staticmethod
    def _deprecation(operation: Operation) -> str:
        return f"deprecated since {operation.deprecated['since']}: use {operation.deprecated['instead']}"

    def _marks(self, form: Form) -> list[str]:
        if form.word == "setter":
            return [f"{form.name}.setter"]
        named = {"static": "staticmethod", "classmethod": "classmethod", "property": "property"}.get(form.word)
        if self.language == "c" and form.owner:
            named = "staticmethod"
        return [named] if named else []

    @staticmethod
    def _signature(head: str, parameters: list[str], returns: str) -> str:
        line = f"{head}({', '.join(parameters)}) -> {returns}"
        if len(line) <= MAX_LINE:
            return line
        lines, pad = [f"{head}("], " " * (len(head) + 1)
        for position, parameter in enumerate(parameters):
            piece = parameter + (", " if position < len(parameters) - 1 else f") -> {returns}")
            if len(lines[-1]) + len(piece) > 158:
                lines[-1] = lines[-1].rstrip()
                lines.append(pad)
            lines[-1] += piece
        return "\n".join(lines)

    def _parameters(self, form: Form, marker: bool = True) -> list[str]:
        """Return the parameters of a function definition. marker: include the * before keyword-only parameters."""
        first = {"static": [], "function": [], "classmethod": ["cls"]}.get(form.word, ["self"])
        first = [] if self.language == "c" else first
        labelled = self.naming.get("keywords") and form.word not in ("property", "setter", "function")
        shown = [self._shown(argument) for argument in form.arguments]
        if labelled and marker and any(not argument.positional for argument in form.arguments):
            position = sum(argument.positional for argument in form.arguments)
            shown.insert(position, "*")
        if self.naming.get("error_box") and form.word not in ("property", "function"):
            shown.append("error: outcomes.BoxLike | None")
        return first + shown

    def _shown(self, argument: Argument) -> str:
        star = "*" if argument.star else ""
        return f"{star}{argument.name}: {self._hint(argument)}" + (f" = {argument.default}" if argument.default else "")

    def _hint(self, argument: Argument) -> str:
        if argument.role == "result":
            return "outcomes.BoxLike"
        if argument.role in ("length", "aside"):
            return "int" if argument.role == "length" or argument.name == "property_type" else "Any"
        if argument.role == "allocator":
            return "OrtAllocator"
        if argument.role == "handle":
            return f"{argument.of} | None"
        return self._of_type(argument.type, "hint", "Any")

    def _of_type(self, name: str, key: str, default: str) -> str:
        record = self.spec.types[name]
        text = str(record.get(self.language, {}).get(key, record.get(key, default)))
        return re.sub(r"\{class (\w+)\}", lambda match: self.spec.class_of(self.language, match[1]), text)

    def _return_hint(self, form: Form) -> str:
        if form.name == form.owner or form.word in ("setter", "void"):
            return "None"
        if form.constructs:
            return "Self | None"
        hint = self._of_type(form.result, "give_hint", self._of_type(form.result, "hint", "None"))
        if self.naming.get("error_box") and form.result == "none" and form.word != "function":
            return "bool"
        if self.language == "c" and form.word != "plain" and not (form.word == "function" and form.result != "none"):
            return "outcomes.OrtStatus | None"
        return "Self" if form.result == "module" else hint

    # ---- bodies

    def _body(self, form: Form) -> str:
        handle = next((argument for argument in form.arguments if argument.role == "handle"), None)
        if handle is not None:
            return f"handles.released({handle.name}, {handle.of})"
        given = self._given(form, self._expression(form))
        if form.word in ("void", "plain") or form.word == "property" and self.naming.get("error_box"):
            return given
        if form.word == "function" and (self.naming.get("error_box") or self.language == "c"):
            return given
        if self.naming.get("error_box") and form.result == "none" and not form.constructs:
            return f"outcomes.boxed_success(error, lambda: {given})"
        nil = "None" if form.constructs else self._of_type(form.result, "nil", "None")
        return str(self.naming["guard"]).format(call=given, nil=nil)

    def _expression(self, form: Form) -> str:
        operation = form.operation
        values = {name: parameter.default or "None" for name, parameter in operation.parameters.items()} | form.fixed
        lengths = {argument.of: argument.name for argument in form.arguments if argument.role == "length"}
        own = self.naming["classes"].get(operation.object, {}).get("self", "None")
        owner_record = next((r for r in self.naming["classes"].values() if r["name"] == form.owner and "self" in r), None)
        if owner_record is not None:
            own = owner_record["self"]
        for argument in form.arguments:
            taken = self._of_type(argument.type, "take", "{}") if argument.type else "{}"
            text = taken.replace("{}", argument.name).replace("{name}", argument.name).replace("{length}", lengths.get(argument.of, "None"))
            text = re.sub(r", None\)$", ")", text)
            if argument.role == "self":
                own = text
            elif argument.role == "parameter":
                values[argument.of] = text
        call = operation.calls.get(self.language, operation.call)
        text = re.sub(r"\{(\w+)\}", lambda match: own if match[1] == "self" else values[match[1]], call)
        return re.sub(r"(?:, )?\b\w+=None(?=[,)])", "", text).replace("(, ", "(")

    def _given(self, form: Form, expression: str) -> str:
        natives = {argument.of: argument.name for argument in form.arguments if argument.role == "parameter"}
        if form.constructs:
            return f"self._hold({expression})"
        give = self._of_type(form.result, "give", "{}")
        store = self._of_type(form.result, "store", "")
        outs = [argument.name for argument in form.arguments if argument.result]
        give = re.sub(r"\{(\w+)\}", lambda match: natives[match[1]], give)
        if store:
            return store.replace("{out}", outs[0]).replace("{}", expression)
        if outs:
            return f"outcomes.put({outs[0]}, {give.replace('{}', expression)})"
        return give.replace("{}", expression)

    # ---- overloads

    def _overloaded(self, owner: str, name: str, forms: list[Form]) -> tuple[str, str]:
        """Return (the overloaded method with its overload signatures, the table from which the call chooses an overload)."""
        table = "_".join(["", *(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part.strip("_")) for part in (owner, name))]).upper()
        text = ""
        for form in forms:
            text += f"{INDENT}@overload\n" + self._signature(f"{INDENT}def {name}", self._parameters(form), self._return_hint(form)) + ": ...\n"
        returns = "None" if name == "__init__" else "Any"
        arguments = ["self", "**named: Any"] if self.naming.get("keywords") else ["self", "*arguments: Any", "**named: Any"]
        text += f"{INDENT}def {name}({', '.join(arguments)}) -> {returns}:\n" + docstring(self._doc(forms), INDENT * 2)
        if name == "__init__":
            text += f"{INDENT * 2}super().__init__()\n"
        given = "()" if self.naming.get("keywords") else "arguments"
        shown = owner if name == "__init__" else f"{owner}.{name}"
        call = str(self.naming["guard"]).format(call=f'overloads.choose("{shown}", self, {table}, {given}, named)', nil="None")
        text += f"{INDENT * 2}{'' if returns == 'None' else 'return '}{call}\n"
        rows = "".join(self._overload(form) for form in forms)
        return text, f"\n\n{table} = (\n{rows})\n"

    def _overload(self, form: Form) -> str:
        names = ", ".join(["self", *(argument.name for argument in form.arguments)])
        body = self._given(form, self._expression(form))
        if form.result == "none" and form.operation.result != "none":
            body = f"overloads.nothing({body})"
        kinds = [f"{argument.name}={self._of_type(argument.type, 'kind', 'object')}" for argument in form.arguments]
        return folded(f"{INDENT}overloads.Overload({', '.join([f'lambda {names}: {body}', *kinds])})", INDENT) + ",\n"

    # ---- documents

    def _doc(self, forms: list[Form]) -> str:
        groups = {form.operation: [one for one in forms if one.operation is form.operation] for form in forms}
        return "\n\n".join(self._doc_of(group) for group in groups.values())

    def _doc_of(self, forms: list[Form]) -> str:
        operation = forms[0].operation
        about = {}
        for form in forms:
            for argument in form.arguments:
                if argument.role == "parameter":
                    about[argument.name] = operation.parameters[argument.of].doc
                elif argument.role == "result" and operation.result_doc:
                    about[argument.name] = "receives their number" if LENGTH.search(argument.name) else f"receives {operation.result_doc}"
        sentences = [f"{name}: {doc}." for name, doc in about.items()]
        constructs = any(form.name == form.owner for form in forms)
        if operation.result_doc and not constructs and not any(argument.result for form in forms for argument in form.arguments):
            sentences.append(f"Returns {operation.result_doc}.")
        text = operation.doc + ("\n\n" + " ".join(sentences) if sentences else "")
        if self.language in operation.notes:
            text += f"\n\n{operation.notes[self.language]}"
        if operation.errors:
            text += f"\n\n{self._failures(forms[0], operation)}"
        if operation.deprecated:
            text += f"\n\n{self._deprecation(operation).capitalize()}."
        return f"{text}\n\nFrom {operation.known_from}." if operation.known_from != "ortrain" else text

    def _failures(self, form: Form, operation: Operation) -> str:
        errors = "; ".join(f"{name} ({when.strip()})" if when else name for name, _, when in (text.partition(":") for text in operation.errors))
        if form.word == "void":
            return f"Raises {errors}."
        if self.language == "c" and form.word != "plain":
            return f"Status: {errors}."
        if self.naming.get("error_box"):
            return f"Fills error with an NSError: {errors}."
        return f"Raises {self.naming['raises']}: {errors}." if "raises" in self.naming else f"Raises {errors}."
