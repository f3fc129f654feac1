"""Generated files are up to date, contradictory specifications are refused, and stubs have the names of the compiled modules."""

import ast
import importlib
import json
import shutil
import sys
import tomllib
from enum import IntEnum
from pathlib import Path

import jsonschema
import pytest

from ortrain import dtypes, enums, errors

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "bindings_spec"
STUBS = sorted((ROOT / "ortrain" / "_core").glob("*.pyi"))
RECORDS = sorted((SPEC / "operations").glob("*.toml"))


@pytest.fixture
def generate(monkeypatch):
    monkeypatch.syspath_prepend(str(SPEC))
    yield importlib.import_module("generate")
    for name in [name for name in sys.modules if name.split(".")[0] in ("generate", "render")]:
        del sys.modules[name]


@pytest.fixture
def changed_spec(generate, tmp_path):
    """Return a function that loads a copy of the specification with one text replaced."""
    from render.spec import Spec

    folder = tmp_path / "bindings_spec"
    shutil.copytree(SPEC, folder, ignore=shutil.ignore_patterns("__pycache__"))

    def change(name, before, after):
        text = (folder / name).read_text(encoding="utf-8")
        assert before in text
        (folder / name).write_text(text.replace(before, after), encoding="utf-8")
        return Spec(folder)

    return change


def test_the_generated_files_are_up_to_date(generate, capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def test_a_stale_file_is_shown(generate):
    files = generate.targets(generate.Spec.load())
    files["ortrain/enums.py"] = files["ortrain/enums.py"].replace("AdamW = 1", "AdamW = 3")
    (difference,) = generate.find_stale(files)
    assert "+    AdamW = 3" in difference


def test_a_name_that_disappears_is_refused_until_it_is_explained(generate, changed_spec):
    before, after = '"RegisterLinearLRScheduler(warmupStepCount', '"RegisterSchedule(warmupStepCount'
    spec = changed_spec("operations/training_session.toml", before, after)
    (missing,) = generate.lock.missing_names(spec)
    assert missing.startswith("csharp TrainingSession.RegisterLinearLRScheduler(")
    spec = changed_spec("removed.toml", "# Public", f'"{missing}" = {{ since = "0.2", instead = "RegisterSchedule" }}\n# Public')
    assert generate.lock.missing_names(spec) == []


def test_an_altered_parameter_is_a_name_that_disappears(generate, changed_spec):
    spec = changed_spec("operations/training_session.toml", "setLearningRate_error_(lr: learning_rate)", "setLearningRate_error_(rate: learning_rate)")
    assert generate.lock.missing_names(spec) == ["objc ORTTrainingSession.setLearningRate_error_(lr) -> bool"]


def test_a_deprecated_operation_is_documented_and_warns(generate, changed_spec):
    deprecated = 'deprecated = { since = "0.2", instead = "nothing" }\nswift = "schedulerStep()"'
    spec = changed_spec("operations/training_session.toml", 'swift = "schedulerStep()"', deprecated)
    text = generate.facades.render(spec)["ortrain/swift/training_session.py"]
    assert 'deprecation.warn("deprecated since 0.2: use nothing")' in text and "Deprecated since 0.2: use nothing." in text
    assert "from ortrain._facade_runtime import arguments, deprecation," in text


ESPERANTO = """
[esperanto]
title = "Esperanto"
module = "ortrain.esperanto"
guard = "{call}"
doc = "A Esperanto API."
unfinished = true

[esperanto.classes.checkpoint_state]
name = "OrtCheckpoint"
module = "checkpoint"
base = "DisposableState"
self = "self._state"
doc = "Parameters, optimizer state and properties."

[c]
"""


def test_an_unfinished_language_needs_a_section_and_the_forms_that_it_has(generate, changed_spec):
    changed_spec("naming.toml", "\n[c]\n", ESPERANTO)
    spec = changed_spec("operations/checkpoint_state.toml", 'swift = "ORTCheckpoint(path)"', 'swift = "ORTCheckpoint(path)"\nesperanto = "static load(path)"')
    files = generate.facades.render(spec)
    assert "def load(path: str | os.PathLike[str]) -> OrtCheckpoint:" in files["ortrain/esperanto/checkpoint.py"]
    assert 'LANGUAGES = ("python", "csharp", "swift", "objc", "esperanto", "c")' in files["ortrain/conformance/languages.py"]
    assert 'FINISHED = ("python", "csharp", "swift", "objc", "c")' in files["ortrain/conformance/languages.py"]
    assert "Esperanto is unfinished" in generate.documents.render(spec)["docs/reference.md"]
    assert not [line for line in generate.lock.lines(spec) if line.startswith("esperanto")]
    assert generate.lock.missing_names(spec) == []


def test_a_finished_language_explains_every_operation_that_it_lacks(generate, changed_spec):
    from render.spec import SpecError

    with pytest.raises(SpecError, match="expected either a form for esperanto"):
        changed_spec("naming.toml", "\n[c]\n", ESPERANTO.replace("unfinished = true", ""))


def test_a_form_that_takes_an_object_without_a_class_is_refused(generate, changed_spec):
    from render.spec import SpecError

    changed_spec("naming.toml", "\n[c]\n", ESPERANTO)
    form = 'swift = "getParameter(withName: name)"'
    spec = changed_spec("operations/checkpoint_state.toml", form, form + '\nesperanto = "get(name)"')
    with pytest.raises(SpecError, match="expected a class of esperanto for tensor"):
        generate.facades.render(spec)


@pytest.mark.parametrize(("file", "before", "after", "said"), [
    ("operations/training_session.toml", "[load_optimizer.absent]", '[load_optimizer.absent]\nklingon = "no reason"', "unknown language 'klingon'"),
    ("operations/training.toml", 'kind = "function"', 'kind = "verb"', "unknown kind"),
    ("operations/training.toml", "known_from", "knwon_from", "unknown fields"),
    ("operations/training.toml", 'type = "integer"', 'type = "intger"', "unknown type"),
    ("operations/training.toml", "set_seed({seed})", "set_seed({sed})", "is not a parameter"),
    ("operations/training.toml", '"static SetSeed(seed)"', '"static SetSeed(sed)"', "neither a parameter nor a role"),
    ("operations/training.toml", '"static SetSeed(seed)"', '"SetSeed"', "is not"),
    ("operations/training.toml", 'swift = "function ORTSetSeed(_ seed: seed)"\n', "", "or the reason why it is absent"),
    ("operations/environment.toml", '"UseAfterRelease', '"UseAfterRelaese', "unknown error"),
    ("types.toml", "[path]", "[path", "types.toml"),
])
def test_a_spec_that_contradicts_itself_is_refused(changed_spec, file, before, after, said):
    from render.spec import SpecError

    with pytest.raises(SpecError, match=said):
        changed_spec(file, before, after)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_records_conform_to_the_schema(path):
    schema = json.loads((SPEC / "schema" / "operations.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(tomllib.loads(path.read_text(encoding="utf-8")), schema)


def test_enums_have_the_values_of_onnxruntime_training():
    assert {m.name: int(m) for m in enums.LossType} == {"MSELoss": 1, "CrossEntropyLoss": 2, "BCEWithLogitsLoss": 3, "L1Loss": 4}
    assert {m.name: int(m) for m in enums.OptimType} == {"AdamW": 1, "SGD": 2}
    assert all(issubclass(kind, IntEnum) for kind in (enums.LossType, enums.OptimType))


def test_element_types_are_onnx_numbers():
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    old = {names.get(name, name.upper()): number for name, number in dtypes.NUMBERS.items() if number <= dtypes.NUMBERS["bfloat16"]}
    assert old | {"UNDEFINED": 0} == {m.name: int(m) for m in enums.ElementType}


@pytest.mark.parametrize("error", [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)], ids=lambda e: e.__name__)
def test_every_error_shows_its_plain_message_and_has_a_code(error):
    assert issubclass(error, errors.OrtrainError)
    assert error.__doc__
    assert str(error("expected a, got 'b'")) == "expected a, got 'b'"
    assert enums.ErrorCode(error.code) is not enums.ErrorCode.OK


@pytest.mark.parametrize("stub", STUBS, ids=lambda p: p.stem)
def test_a_stub_has_the_names_of_the_compiled_module(stub):
    module = importlib.import_module(f"ortrain._core.{stub.stem}")
    named = {"": set()}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            named[""].add(node.name)
        if isinstance(node, ast.ClassDef):
            named[node.name] = {member.name if isinstance(member, ast.FunctionDef) else member.target.id for member in node.body}
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")}
    assert named.pop("") == own
    for name, members in named.items():
        public = {member for member in vars(getattr(module, name)) if not member.startswith("_")}
        assert {member for member in members if not member.startswith("__")} == public, name
