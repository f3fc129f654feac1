"""The digits program in seven languages: each does what Python does, bit for bit, and reads what the others have saved."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.native.conftest import PROGRAMS
from tests.native.languages import EXAMPLES, LANGUAGES, SCENARIOS, Programs, train_in_python
from tests.native.published import SOURCES
from tests.native.published_csharp import ADAPTERS, REWRITTEN


@pytest.fixture(scope="module")
def programs(installation, artifacts, tmp_path_factory) -> Programs:
    return Programs(installation, tmp_path_factory.mktemp("programs"), artifacts)


@pytest.fixture(scope="module")
def epochs(programs, tmp_path_factory):
    """The first and the second epoch of Python."""
    folder = tmp_path_factory.mktemp("python")
    first = train_in_python(programs.artifacts, programs.artifacts / "checkpoint", folder / "1")
    return first, train_in_python(programs.artifacts, first.checkpoint, folder / "2")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_trains_evaluates_saves_exports_infers_and_reads_to_the_bits_of_the_python_api(programs, epochs, tmp_path, language):
    if LANGUAGES[language].missing:
        pytest.skip(f"{LANGUAGES[language].title}: {LANGUAGES[language].missing}")
    assert programs.outcomes(language, *epochs, tmp_path) == dict.fromkeys(SCENARIOS, True)


def test_each_language_goes_on_with_what_the_language_before_it_saved(programs, tmp_path):
    languages = [name for name, language in LANGUAGES.items() if not language.missing]
    if len(languages) < 2:
        pytest.skip("expected the compilers of two languages")
    checkpoint = expected = programs.artifacts / "checkpoint"
    for place, language in enumerate(languages):
        epoch, _ = programs.train(language, checkpoint, tmp_path / language)
        reference = train_in_python(programs.artifacts, expected, tmp_path / f"python-{place}")
        assert epoch.epochs == place + 1
        assert epoch.checkpoint.read_bytes() == reference.checkpoint.read_bytes(), language
        checkpoint, expected = epoch.checkpoint, reference.checkpoint


def test_the_project_s_own_classes_serve_the_program_in_csharp_as_the_published_ones_do(programs, epochs, tmp_path):
    if LANGUAGES["csharp"].missing:
        pytest.skip(f"C#: {LANGUAGES['csharp'].missing}")
    arguments = f"{programs.artifacts} {programs.artifacts / 'checkpoint'} {tmp_path}"
    programs.make("run-csharp", arguments, OUT=tmp_path / "built", CSHARP_SOURCES=EXAMPLES / "OrtTraining.cs")
    assert (tmp_path / "trained.checkpoint").read_bytes() == epochs[0].checkpoint.read_bytes()


def test_a_property_replaces_the_library_of_a_java_package_and_keeps_its_shim(programs, installation, epochs, tmp_path):
    if LANGUAGES["java"].missing:
        pytest.skip(f"Java: {LANGUAGES['java'].missing}")
    programs.make("java", OUT=tmp_path / "built", LINK=f"-L{installation} -lonnxruntime")
    packed = tmp_path / "jar" / "ai" / "onnxruntime" / "native" / "linux-x64"       # where the jar keeps both libraries
    packed.mkdir(parents=True)
    shutil.move(tmp_path / "built" / "java" / "native" / "libonnxruntime4j_jni.so", packed)
    (packed / "libonnxruntime.so").write_bytes(b"the library of the package")
    classes = f"{tmp_path / 'built' / 'java' / 'classes'}:{tmp_path / 'jar'}"
    property_ = f"-Donnxruntime.native.onnxruntime.path={installation / 'libonnxruntime.so'}"
    subprocess.run(["java", property_, "-cp", classes, "TrainDigits", programs.artifacts, programs.artifacts / "checkpoint", tmp_path], check=True, timeout=300)
    assert (tmp_path / "trained.checkpoint").read_bytes() == epochs[0].checkpoint.read_bytes()


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the published sources are not there: python -m tests.native.published fetches them")
def test_every_construct_that_is_rewritten_for_mono_s_compiler_stands_in_the_published_sources():
    texts = [path.read_text(encoding="utf-8-sig") for path in SOURCES.glob("csharp/src/Microsoft.ML.OnnxRuntime/**/*.shared.cs")]
    assert [pattern for pattern in (*REWRITTEN, *ADAPTERS) if not any(re.search(pattern, text, re.MULTILINE) for text in texts)] == []


def test_the_makefile_of_the_examples_installs_the_library_and_writes_the_artifacts(installation, tmp_path):
    if LANGUAGES["c"].missing:
        pytest.skip(LANGUAGES["c"].missing)
    alone = Programs(tmp_path / "lib", tmp_path, tmp_path / "artifacts")
    alone.make("prepare")
    epoch, refused = alone.train("c", tmp_path / "artifacts" / "checkpoint", tmp_path / "out")
    assert epoch.accuracy > 0.8 and "no such checkpoint" in refused


@pytest.mark.parametrize("language", ["csharp", "java", "go"])
def test_the_signals_of_a_virtual_machine_and_those_of_the_library_do_not_meet(programs, epochs, tmp_path, language):
    if LANGUAGES[language].missing:
        pytest.skip(f"{LANGUAGES[language].title}: {LANGUAGES[language].missing}")
    arguments = f"{programs.artifacts} {programs.artifacts / 'checkpoint'} {tmp_path}"
    if language == "go":
        for source in (EXAMPLES / "train_digits.go", PROGRAMS / "stress.go"):
            shutil.copy(source, tmp_path)
        variables = {"GO_SOURCES": f"{tmp_path}/train_digits.go {tmp_path}/stress.go"}
        folders = [tmp_path]
    else:
        variables = {"MAIN": "Stress", "EXTRA": PROGRAMS / ("Stress.cs" if language == "csharp" else "Stress.java")}
        folders = [tmp_path / str(number) for number in range(4)]
    printed = programs.make(f"run-{language}", arguments, OUT=tmp_path / "built", **variables)
    assert language == "go" or "disturbed true" in printed.lower()
    assert {(folder / "trained.checkpoint").read_bytes() for folder in folders} == {epochs[0].checkpoint.read_bytes()}
