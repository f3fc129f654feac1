"""Installing the native library, and finding Python from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from ortrain._native import location
from ortrain._native.installation import flags, install
from ortrain.cli import main
from ortrain.errors import ArtifactNotFoundError
from tests.native.conftest import ARTIFACTS, compiler

PROBE = """
#include "ortrain_c_api.h"
#include <stdio.h>
int main(int argc, char **argv) {
    const OrtApi *ort = OrtGetApiBase()->GetApi(19);
    OrtCheckpointState *state;
    OrtStatus *status = ort->GetTrainingApi(19)->LoadCheckpoint(argv[argc - 1], &state);
    puts(status == NULL ? "loaded" : ort->GetErrorMessage(status));
    return status != NULL;
}
"""


@pytest.fixture
def probe(installation, tmp_path):
    """A function that runs a program which loads a checkpoint by the library of a folder; returns its exit status and output."""
    source, program = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text(PROBE)
    built = flags(installation).replace(f"-Wl,-rpath,{installation.resolve()}", "").split()
    subprocess.run([compiler("cc"), str(source), "-o", str(program), *built], check=True)

    def run(folder, **environment):
        settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ORTRAIN"))}
        done = subprocess.run([str(program), str(ARTIFACTS / "checkpoint")], env=settings | {"LD_LIBRARY_PATH": str(folder)} | environment,
                              capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout

    return run


def test_an_installation_has_the_library_its_links_headers_and_a_pkg_config_file(installation):
    names = {path.relative_to(installation).as_posix() for path in installation.rglob("*")}
    assert names == {"libonnxruntime.so.1.19.2", "libonnxruntime.so.1", "libonnxruntime.so", "libonnxruntime.pc", "ortrain-native.cfg", "include",
                     "include/ortrain_c_api.h", "include/ortrain_extensions.h"}
    assert (installation / "libonnxruntime.so").resolve().name == "libonnxruntime.so.1.19.2"
    if shutil.which("pkg-config"):
        found = {option: subprocess.run(["pkg-config", option, "libonnxruntime"], env=os.environ | {"PKG_CONFIG_PATH": str(installation)}, check=True,
                                        capture_output=True, text=True).stdout.split() for option in ("--modversion", "--libs", "--cflags")}
        assert found == {"--modversion": ["1.19.2"], "--libs": [f"-L{installation}", "-lonnxruntime"], "--cflags": [f"-I{installation}/include"]}


def test_the_command_installs_and_prints_the_flags(installation, tmp_path, capsys):
    assert main(["native", "install", str(tmp_path / "into" / "here")]) == 0
    assert str(tmp_path / "into" / "here" / "libonnxruntime.so") in capsys.readouterr().out.splitlines()
    assert main(["native", "flags", str(tmp_path / "into" / "here")]) == 0
    assert capsys.readouterr().out == flags(tmp_path / "into" / "here") + "\n"
    assert main(["native", "flags", str(tmp_path)]) == 1
    assert "native install" in capsys.readouterr().err


def test_a_second_installation_replaces_the_first(installation):
    before = (installation / "libonnxruntime.so.1.19.2").stat().st_ino
    install(installation)
    assert (installation / "libonnxruntime.so.1.19.2").stat().st_ino != before


def test_a_program_finds_python_by_the_file_beside_the_library(probe, installation):
    assert probe(installation) == (0, "loaded\n")


def test_a_program_finds_python_by_the_variable(probe, installation, tmp_path):
    shutil.copy(installation / "libonnxruntime.so.1.19.2", tmp_path / "libonnxruntime.so.1")
    status, printed = probe(tmp_path)
    assert status == 1 and "ortrain-native.cfg" in printed and "ORTRAIN_PYTHON" in printed
    packages = location.text().split("path=")[1].strip()
    assert probe(tmp_path, ORTRAIN_PYTHON=sys.executable, PYTHONPATH=packages) == (0, "loaded\n")
    status, printed = probe(tmp_path, ORTRAIN_PYTHON="no such program")
    assert status == 1 and "no such program" in printed


@pytest.mark.parametrize(("before", "after", "said"), [
    ("library=", "library=/nonexistent", "expected the shared library of Python"),
    (f"version={sys.version_info.major}.{sys.version_info.minor}", "version=2.7", "got 2.7"),
    ("executable=", "program=", "expected a line executable="),
])
def test_a_wrong_description_of_python_is_a_status(probe, installation, tmp_path, before, after, said):
    shutil.copy(installation / "libonnxruntime.so.1.19.2", tmp_path / "libonnxruntime.so.1")
    text = (installation / "ortrain-native.cfg").read_text()
    assert before in text
    (tmp_path / "ortrain-native.cfg").write_text(text.replace(before, after))
    status, printed = probe(tmp_path)
    assert status == 1 and said in printed


def test_a_python_without_a_shared_library_is_refused(monkeypatch):
    monkeypatch.setattr(location.sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr(location.sys, "base_prefix", "/nonexistent")
    with pytest.raises(ArtifactNotFoundError, match="expected the shared library of Python"):
        location.libpython()


def test_the_library_needs_no_python_to_be_loaded(installation):
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not there")
    shown = subprocess.run(["readelf", "-d", str(installation / "libonnxruntime.so")], check=True, capture_output=True, text=True).stdout
    assert "[libonnxruntime.so.1]" in shown and "python" not in shown
