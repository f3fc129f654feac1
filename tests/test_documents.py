"""Documents: their code runs, the names, commands and links in them exist, and their tables equal the recorded results."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from benchmarks import documents, one, scaling, trainer
from benchmarks.floor import table_row
from ortrain.cli import COMMANDS
from ortrain.cli import main as run_command
from tests.documents import pages, setup

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bindings_spec" / "README.md"]


each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def python_blocks(path):
    return [block.code for block in pages.blocks(path.read_text(encoding="utf-8"))]


@each_page
def test_python_blocks_compile_and_import_existing_names(path):
    for block in python_blocks(path):
        compile(block, str(path), "exec")
        for module, names in re.findall(r"^from (ortrain[\w.]*) import (.+)$", block, re.MULTILINE):
            for name in names.split(","):
                assert hasattr(importlib.import_module(module), name.strip()), f"{module}.{name.strip()}"


@each_page
def test_names_in_ortrain_exist(path):
    for name in set(re.findall(r"`(ortrain(?:\.\w+)+)", path.read_text(encoding="utf-8"))):
        if name == "ortrain.drop_in":
            continue                                    # importing it replaces onnxruntime; tests/test_drop_in.py does so in processes of their own
        module, _, rest = name.partition(".")
        target = importlib.import_module(module)
        for part in rest.split("."):
            target = getattr(target, part) if hasattr(target, part) else importlib.import_module(f"{target.__name__}.{part}")


@each_page
def test_commands_exist(path):
    text = path.read_text(encoding="utf-8")
    for command in set(re.findall(r"python -m ortrain ([a-z][\w-]*)", text)):
        assert command in COMMANDS, command
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`?make ([a-z][\w-]*)`?", "\n".join(re.findall(r"`[^`\n]+`|^    .*$", text, re.MULTILINE)))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@each_page
def test_links_to_files_exist(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


@each_page
def test_links_to_sections_name_a_heading(path):
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", path.read_text(encoding="utf-8")):
        text = ((path.parent / target) if target else path).read_text(encoding="utf-8")
        anchors = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        assert anchor in anchors, f"{target}#{anchor}"


@pytest.fixture
def model_folder(tmp_path, monkeypatch):
    """A folder, which becomes the current one, with the model and the arrays that README.md takes for granted."""
    monkeypatch.chdir(tmp_path)
    setup.readme()
    return tmp_path


def test_the_commands_of_the_readme_run(model_folder):
    commands = re.findall(r"^    python -m ortrain (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["train", "report", "doctor"]
    for command in commands:
        assert not run_command(shlex.split(command, comments=True))
    assert (model_folder / "run" / "checkpoint").exists()


@pytest.mark.parametrize("path", documents.DOCUMENTS, ids=lambda path: path.name)
def test_tables_equal_the_recorded_results(path):
    text = path.read_text(encoding="utf-8")
    assert documents.TABLE.search(text)
    assert documents.render(text) == text, "run python -m benchmarks.documents"


def test_a_benchmark_run_is_recorded_and_rendered(tmp_path, monkeypatch):
    def row(ms, mb, version):
        return {"status": "ok", "version": version, "median_ms": ms, "growth_mb": mb, "loaded_growth_mb": mb / 2, "peak_rss_mb": 2 * mb, "cold_start_s": ms}

    failed = {"status": "unsupported", "reason": "no"}
    by_runtime = {"ortrain": row(1.0, 10.0, "0.1.0"), "ortrain-lowest-memory": row(1.5, 8.0, "0.1.0"), "onnxruntime": row(2.0, 20.0, "1.19.2"),
                  "torch-eager": row(4.0, 40.0, "2.13"), "jax": failed}
    without_peers = {"ortrain": row(1.0, 10.0, "0.1.0"), "jax": failed}
    summary = {"mlp": {"1": by_runtime, "2": by_runtime}, "alone": {"1": without_peers, "2": without_peers}}
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    documents.record(tmp_path / "chip.json", {"processor": "chip", "cpus": 2, "instruction set": "avx2"}, 3, summary)
    assert documents.load("chip")["versions"] == {"ortrain": "0.1.0", "onnxruntime-training": "1.19.2", "PyTorch": "2.13"}
    tables = documents.render("<!-- results: chip -->\nstale\n<!-- end of results -->\n<!-- results of all runtimes: chip -->\n<!-- end of results -->\n")
    assert "| mlp | 1.00 | 2.00 (onnxruntime-training) | 0.50 | 1.00 | 2.00 (onnxruntime-training) | 0.50 | 0.50 | 0.50 | 0.40 | 0.50 | 0.50 |" in tables
    assert "| mlp | 1.00 | 2.00 | 4.00 | - | - | 20 | 40 | 80 |" in tables
    assert "alone" not in tables
    assert "stale" not in tables


def test_the_other_benchmarks_run(tmp_path):
    step, plan, operations = scaling.measure(scaling.SWEEPS["tiny"][1][1], threads=1, seconds=0.0)
    assert step > 0 and plan > 0 and operations > 0
    row = trainer.measure("mlp 16-32-32-4, batch 8", threads=1, rounds=1)
    assert min(row.bare, row.fit, row.accuracy) > 0
    assert one.prepare("mlp-tiny-b1", tmp_path) == {"status": "ok"}
    assert table_row("mlp-tiny-b1", tmp_path, threads=1, steps=1).startswith("| mlp-tiny-b1 | 1 |")


def test_the_readme_and_the_performance_guide_stay_short():
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(readme) <= 150 and max(map(len, readme)) <= 120
    assert len((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").splitlines()) <= 200
