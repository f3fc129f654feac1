"""`python -m benchmarks accuracy`: it trains in both precisions, records and draws what came of it, and its networks do multiply in bfloat16."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import documents
from benchmarks.accuracy import data, run, training
from benchmarks.accuracy.picture import PICTURE, fingerprint
from benchmarks.accuracy.tables import accuracy_table, gradients_table, is_within
from benchmarks.accuracy.tasks import TASKS
from ortrain import SessionOptions, TrainingSession
from ortrain.distributed.compression import bfloat16_of, float32_of

RECORDED = re.search(r"<!-- accuracy: ([\w-]+) -->", (documents.ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"))[1]
"""The results of which docs/accuracy.md tells."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder into which results and the picture are written."""
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    monkeypatch.setattr(run, "PICTURE", tmp_path / "accuracy.svg")
    return tmp_path


@pytest.fixture(autouse=True)
def pairs(monkeypatch):
    """Products are computed in pairs on processors with AMX, too, where those that are too small for tiles would stay in float32."""
    options_of = training.options_of
    monkeypatch.setattr(training, "options_of", lambda *arguments: replace(options_of(*arguments), enable_amx=False))


@pytest.fixture
def few_digits(monkeypatch):
    """The task "digits" with 256 samples."""
    few = data.digits().first(256)
    monkeypatch.setitem(run.TASKS, "digits", replace(TASKS["digits"], data=lambda: few))


def test_a_short_run_trains_in_both_precisions_from_the_same_weights_and_records_it(folder, few_digits, capsys):
    run.main(["--tasks", "digits", "--seeds", "2", "--epochs", "2", "--record", "trial"])
    found = json.loads((folder / "trial.json").read_text(encoding="utf-8"))
    digits = found["tasks"]["digits"]
    assert {precision: [one["seed"] for one in runs] for precision, runs in digits["runs"].items()} == {"float32": [0, 1], "bfloat16": [0, 1]}
    exact, narrow = ([one["held_out_losses"] for one in digits["runs"][precision]] for precision in ("float32", "bfloat16"))
    assert np.shape(exact) == (2, 2) and exact != narrow and exact[0] != exact[1]
    np.testing.assert_allclose(narrow, exact, rtol=0.05)
    for moment in ("start", "end"):
        cosines = digits["cosines"][moment]
        assert min(cosines["bfloat16"]) > 0.98 > max(cosines["other_batch"])
        assert {"stem.conv", "blocks.0.expand.conv", "head"} < set(cosines["layers"])
    assert fingerprint(found) in (folder / "accuracy.svg").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert accuracy_table(found) in printed and gradients_table(found) in printed


def test_tasks_are_added_to_those_recorded_on_the_same_machine(folder):
    path = folder / "trial.json"
    run.save(path, run.describe_run() | {"tasks": {"mnist": {"title": "kept"}}})
    assert run.load(path)["tasks"] == {"mnist": {"title": "kept"}}
    run.save(path, run.describe_run() | {"chip": "another", "tasks": {}})
    with pytest.raises(SystemExit, match="expected results of this machine"):
        run.load(path)


def test_a_package_that_is_missing_is_named_before_anything_is_trained(few_digits, monkeypatch):
    monkeypatch.setitem(run.TASKS, "mnist", replace(TASKS["mnist"], package="no-such-package"))
    monkeypatch.setattr(run, "run_task", lambda *_: pytest.fail("a task was trained"))
    with pytest.raises(SystemExit, match="expected no-such-package, in which the data of 'mnist' ship"):
        run.main(["--tasks", "digits", "mnist"])


@pytest.mark.parametrize("name", TASKS)
def test_most_of_a_networks_products_take_bfloat16_operands(name):
    sizes = {size: 1 if size == "layers" else value for size, value in TASKS[name].sizes.items()}
    task, rng = replace(TASKS[name], batch_size=24, sizes=sizes), np.random.default_rng(0)
    graph = task.forward(0).model.graph
    shape = [axis.dim_value for axis in graph.input[0].type.tensor_type.shape.dim]
    scores = [axis.dim_value for axis in graph.output[0].type.tensor_type.shape.dim]
    inputs = rng.integers(0, task.sizes["vocabulary"], shape) if "vocabulary" in task.sizes else rng.standard_normal(shape).astype(np.float32)
    targets = rng.standard_normal(scores).astype(np.float32) if task.metric == "r2" else rng.integers(0, scores[-1], scores[:-1])
    found = training.products_in_bfloat16(task, data.Split(inputs, targets, inputs, targets))
    assert found["share"] > 0.85


def test_no_product_takes_bfloat16_operands_where_all_nodes_are_exceptions(monkeypatch):
    split = data.digits()
    monkeypatch.setattr(training, "options_of", lambda precision, float32_nodes=(): SessionOptions(precision=precision, float32_nodes=["*"]))
    assert training.products_in_bfloat16(TASKS["digits"], split) == {"nodes": 11, "in_bfloat16": 0, "share": 0}


@pytest.mark.parametrize(("losses", "within"), [([0.2, 0.4], True), ([0.5, 0.5], True), ([0.4, 0.7], False), ([0.1, 0.2], False)])
def test_a_mean_in_bfloat16_is_compared_with_the_lowest_and_the_highest_seed_in_float32(losses, within):
    runs = {"float32": [{"loss": 0.3, "r2": 0.8}, {"loss": 0.5, "r2": 0.9}], "bfloat16": [{"loss": loss, "r2": 0.85} for loss in losses]}
    task = {"title": "a network", "metric": "r2", "runs": runs}
    assert is_within(task, "loss") is within
    first, second = accuracy_table({"tasks": {"small": task}}).splitlines()[2:]
    assert first.startswith("| small: a network | loss | 0.4000 ± 0.1414 (0.3000 to 0.5000) | ")
    assert first.split(" | ")[4] == ("yes" if within else "no")
    assert second == "|  | R² | 0.8500 ± 0.0707 (0.8000 to 0.9000) | 0.8500 ± 0.0000 (0.8500 to 0.8500) | yes | 0.0500 |"


def test_the_layer_with_the_lowest_mean_cosine_is_named():
    cosines = {"bfloat16": [0.99999, 0.99997], "other_batch": [0.5, 0.7], "layers": {"first": [0.9995, 0.9997], "last": [0.9, 1.0]}}
    task = {"products": {"nodes": 4, "in_bfloat16": 3, "share": 0.75}, "cosines": {"start": cosines, "end": cosines}}
    half = "0.999980 | 0.9500 (`last`) | 0.60"
    assert gradients_table({"tasks": {"small": task}}).splitlines()[2] == f"| small | 3 of 4, 75% | {half} | {half} |"


def test_in_float32_the_gradient_of_the_digits_turns_about_as_far_if_the_weights_alone_are_rounded():
    task, split = TASKS["digits"], data.digits()
    forward, batch = task.forward(0), (split.inputs[:64], split.targets[:64])
    with TrainingSession.from_model(forward.model, loss=task.loss, requires_grad=forward.trained, frozen_params=forward.frozen) as session:
        weights = session.to_buffer()
    exact, narrow, rounded = (np.concatenate(list(training.gradients(task, forward, batch, values, training.options_of(precision)).values()))
                              for values, precision in ((weights, "float32"), (weights, "bfloat16"), (float32_of(bfloat16_of(weights)), "float32")))
    assert 1 - training.cosine(exact, rounded) > 0.5 * (1 - training.cosine(exact, narrow)) > 1e-3


def test_text_is_numbered_by_an_alphabet_of_ascii():
    assert data._alphabet("\n ~é").tolist() == [0, 1, data.CHARACTERS - 1, data.CHARACTERS - 1]


def test_columns_are_standardized_over_the_training_rows():
    np.testing.assert_array_equal(data._standardized(np.array([[1.0, 5.0], [3.0, 5.0], [7.0, 6.0]]), [0, 1]), [[-1, 0], [1, 0], [5, 0]])


def test_the_recorded_results_are_those_of_all_tasks_with_five_seeds():
    recorded = documents.load(RECORDED)["tasks"]
    assert {name: (task.title, task.metric, task.epochs) for name, task in TASKS.items()} == {
        name: (task["title"], task["metric"], len(task["runs"]["float32"][0]["held_out_losses"])) for name, task in recorded.items()}
    assert all([one["seed"] for one in runs] == [0, 1, 2, 3, 4] for task in recorded.values() for runs in task["runs"].values())


def test_the_picture_is_that_of_the_recorded_results():
    assert fingerprint(documents.load(RECORDED)) in PICTURE.read_text(encoding="utf-8"), "run python -m benchmarks.accuracy.picture"
