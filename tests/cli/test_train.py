"""train: what it writes for images, tables and arrays, and that its options reach the trainer."""

import json

import numpy as np
import onnx
import pytest

from ortrain.formats.checkpoint import read_checkpoint
from ortrain.onnxblock.loss import losses_by_name
from ortrain.onnxblock.optim import OPTIMIZERS
from tests.cli.conftest import ANIMALS, SAMPLES
from tests.documents.models import perceptron
from tests.trainer.models import CLASSES, FEATURES

TRAIN = "train model.onnx data.npz --loss cross-entropy --out run --quiet"


def history_of(folder, name="run"):
    return json.loads((folder / name / "history.json").read_text())


def settings_of(folder, name="run"):
    return json.loads((folder / name / "settings.json").read_text())


def test_train_then_evaluate_and_export(command, folder):
    status, out, err = command(f"{TRAIN} --epochs 12 --batch-size 16 --learning-rate 0.02 --validation 0.2")
    assert (status, err) == (0, "") and "epoch 12, loss" in out
    assert {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint", "checkpoint.best", "trained.onnx", "history.json", "history.csv",
            "settings.json", "trainer.json"} <= {path.name for path in (folder / "run").iterdir()}
    history = history_of(folder)
    assert len(history) == 12 and history[-1]["validation"]["loss"] < history[0]["training"]["loss"] and history[0]["samples"] == 96
    assert (folder / "run" / "history.csv").read_text().splitlines()[0].startswith("epoch,step,loss,accuracy,validation_loss")

    status, out, _ = command("evaluate run data.npz")
    assert status == 0 and f"samples {SAMPLES}, loss" in out and "accuracy" in out
    assert command("eval run data.npz")[1] == out, "eval is another name of evaluate"
    assert command("evaluate run/trained.onnx data.npz")[1] == out
    (folder / "copy.onnx").write_bytes((folder / "run" / "trained.onnx").read_bytes())
    assert command("evaluate copy.onnx data.npz")[1] == out, "the exported model is the trained one"

    for line in ("export run --output-names scores again.onnx", "export run again.onnx --output-names scores", "export run again.onnx"):
        assert command(line)[0] == 0
        model = onnx.load(folder / "again.onnx")
        assert ([v.name for v in model.graph.input], [v.name for v in model.graph.output]) == (["x"], ["scores"])


def test_the_learning_curve_is_drawn_where_matplotlib_is_installed(command, folder):
    pytest.importorskip("matplotlib")
    assert "learning_curve.png" in command(f"{TRAIN} --epochs 2")[1]
    assert (folder / "run" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("loss", ["mse", "l1", "bce-with-logits", "huber"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion"])
def test_losses_and_optimizers_by_name_train(loss, optimizer, command, folder, arrays):
    x, _ = arrays
    np.savez(folder / "data.npz", x=x, wanted=(x[:, :CLASSES] > 0).astype(np.float64))
    status, _, err = command(f"train model.onnx data.npz --loss {loss} --optimizer {optimizer} --target wanted --epochs 5 --learning-rate 0.01 --validation 0 "
                             "--out run --quiet")
    assert (status, err) == (0, "")
    history = history_of(folder)
    assert history[-1]["training"]["loss"] < history[0]["training"]["loss"] and set(history[0]["training"]) == {"loss"} and not history[0]["validation"]


def test_every_loss_and_optimizer_of_the_library_can_be_named(command):
    _, out, _ = command("train --help")
    text = "".join(out.split())
    assert ",".join(losses_by_name()) in text and ",".join(OPTIMIZERS) in text


def test_images_of_classes_train_and_the_run_knows_how_to_read_others(command, folder, images):
    line = "train image.onnx photos --loss cross-entropy --mean 0.5 0.4 0.3 --std 0.25 --augment horizontal-flip brightness=0.1 --epochs 20 --batch-size 8 " \
           "--learning-rate 0.1 --validation 0.2 --out run --quiet"
    status, out, err = command(line)
    assert (status, err) == (0, "") and "validation accuracy 1.0000" in out
    stored = settings_of(folder)["preprocessing"]
    assert (stored["classes"], stored["size"], stored["channels"], stored["layout"]) == (["blue", "green", "red"], [6, 5], 3, "NCHW")
    assert (stored["mean"], stored["std"], stored["augment"]["brightness"]) == ([0.5, 0.4, 0.3], [0.25], 0.1)
    assert "samples 30," in command("evaluate run photos")[1] and "accuracy 100.00%" in command("evaluate run photos")[1]


def test_validation_images_have_the_shares_of_the_classes(command, folder, images):
    assert command("train image.onnx photos --loss cross-entropy --epochs 1 --validation 0.2 --metrics recall-macro confusion-matrix --out run --quiet")[0] == 0
    assert command("report run")[0] == 0
    assert "6 samples: 20%" in (folder / "run" / "report.html").read_text()
    assert history_of(folder)[0]["samples"] == 24


def test_a_table_with_text_and_missing_values_trains(command, folder, table):
    status, _, err = command("train model.onnx table.csv --target animal --loss cross-entropy --epochs 15 --learning-rate 0.02 --out run --quiet")
    assert (status, err) == (0, "")
    history = history_of(folder)
    assert history[-1]["training"]["accuracy"] > 0.6 > history[0]["training"]["accuracy"]
    encoding = settings_of(folder)["preprocessing"]["encoding"]
    assert encoding["target"] == {"name": "animal", "classes": ANIMALS} and [column["name"] for column in encoding["numbers"]] == ["a", "b", "c", "d"]
    assert encoding["categories"][0]["values"] == ["oslo", "rome"] and encoding["one_hot"]


def test_the_means_of_a_table_are_those_of_its_training_rows(command, folder, table):
    assert command("train model.onnx table.csv --target animal --loss cross-entropy --epochs 1 --validation 0.5 --out run --quiet")[0] == 0
    assert command("train model.onnx table.csv --target animal --loss cross-entropy --epochs 1 --validation 0 --out whole --quiet")[0] == 0
    part, whole = (settings_of(folder, name)["preprocessing"]["encoding"]["numbers"] for name in ("run", "whole"))
    column = np.loadtxt(folder / "table.csv", delimiter=",", skiprows=1, usecols=0)
    assert whole[0]["mean"] == pytest.approx(column.mean()) and part[0]["mean"] != pytest.approx(column.mean(), rel=1e-3)


def test_columns_that_are_not_standardized_train_like_the_arrays_they_were_written_from(command, folder, arrays):
    x, labels = arrays
    header = [*(f"column {number}" for number in range(FEATURES)), "labels"]
    rows = [[*map(str, row), str(label)] for row, label in zip(x.tolist(), labels.tolist(), strict=True)]
    (folder / "data.csv").write_text("\n".join(",".join(row) for row in [header, *rows]))
    assert command(f"{TRAIN} --epochs 2")[0] == 0
    of_arrays = history_of(folder)
    assert command(TRAIN.replace("data.npz", "data.csv") + " --epochs 2 --overwrite --no-standardize")[0] == 0
    assert [record["training"]["loss"] for record in history_of(folder)] == [record["training"]["loss"] for record in of_arrays]


def test_a_validation_file_of_its_own_is_used(command, folder, arrays):
    x, labels = arrays
    np.savez(folder / "other.npz", x=x[:9], labels=labels[:9])
    assert command(f"{TRAIN} --epochs 1 --validation other.npz")[0] == 0
    _, out, _ = command("evaluate run other.npz")
    record = history_of(folder)[0]
    assert record["samples"] == SAMPLES and f"loss {record['validation']['loss']:.6f}" in out


def test_weights_can_be_frozen_by_pattern_or_all_but_the_head(command, folder):
    assert command(f"{TRAIN} --epochs 1 --requires-grad head")[0] == 0
    checkpoint = read_checkpoint(folder / "run" / "checkpoint")
    assert set(checkpoint.trainable) == {"head.weight", "head.bias"}
    assert command(f"{TRAIN} --epochs 1 --overwrite --frozen 'hidden.*'")[0] == 0
    assert set(read_checkpoint(folder / "run" / "checkpoint").trainable) == {"head.weight", "head.bias"}


def fixed_model(folder, *, centered=False):
    """Write fixed.onnx, model.onnx for batches of 8; centered: the batch's mean is subtracted, so that samples depend on each other."""
    model = onnx.load(folder / "model.onnx")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 8
    if centered:
        for node in model.graph.node:
            node.input[:] = ["centered" if name == "x" else name for name in node.input]
        model.graph.node.insert(0, onnx.helper.make_node("Sub", ["x", "mean"], ["centered"]))
        model.graph.node.insert(0, onnx.helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]))
    onnx.save(model, folder / "fixed.onnx")
    return TRAIN.replace("model.onnx", "fixed.onnx") + " --epochs 1"


def test_a_fixed_batch_is_opened(command, folder):
    line = fixed_model(folder)
    assert command(f"{line} --batch-size 16")[0] == 0
    assert "samples 120" in command("evaluate run data.npz")[1] and command("predict run data.npz")[0] == 0 and command("report run")[0] == 0
    assert command(f"{line} --batch-size 16 --overwrite --input-shapes x=batch,{FEATURES}")[0] == 0


def test_a_fixed_batch_that_cannot_be_opened_takes_whole_batches_alone(command, folder):
    line = fixed_model(folder, centered=True)
    for size in (8, 16):                                    # 108 samples for training are no multiple of 8
        status, _, err = command(f"{line} --batch-size {size}")
        assert status == 1 and "got one with batches of 8 that cannot be opened" in err and not (folder / "run").exists()
    status, _, err = command(f"{line} --input-shapes x=batch,{FEATURES}")
    assert status == 1 and "ReduceMean" in err
    assert command(f"{line} --batch-size 8 --validation 0.2")[0] == 0, "96 and 24 samples are whole batches"


def test_adapters_are_trained_alone_and_written_with_the_merged_model(command, folder):
    pytest.importorskip("safetensors")
    assert command(f"{TRAIN} --epochs 3 --lora all-linear --lora-rank 2 --learning-rate 0.02")[0] == 0
    assert all("lora" in name for name in read_checkpoint(folder / "run" / "checkpoint").trainable)
    assert (folder / "run" / "adapter" / "adapter_model.safetensors").exists()
    (folder / "merged.onnx").write_bytes((folder / "run" / "merged.onnx").read_bytes())
    assert len(onnx.load(folder / "merged.onnx").graph.node) == len(onnx.load(folder / "model.onnx").graph.node)
    assert command("evaluate merged.onnx data.npz")[1] == command("evaluate run data.npz")[1]


def test_options_of_optimizer_loss_and_schedule_reach_the_run(command, folder):
    status, _, err = command(f"{TRAIN} --epochs 4 --optimizer sgd --optimizer-options momentum=0.9 nesterov=true weight_decay=0.01 --no-decay --clip 1 "
                             "--accumulate 2 --label-smoothing 0.1 --class-weight 1 2 1 --schedule cosine --schedule-options final_learning_rate=1e-5 "
                             "--warmup-steps 2 --weight-average 0.9 --metrics accuracy f1-macro top-2")
    assert (status, err) == (0, "")
    node = onnx.load(folder / "run" / "optimizer_model.onnx").graph.node[-1]
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert attributes["momentum"] == pytest.approx(0.9) and attributes["nesterov"] == 1
    properties = read_checkpoint(folder / "run" / "checkpoint").properties
    assert set(json.loads(properties["ortrain.parameter_groups"])[0]["names"]) == {"*bias"}
    history = history_of(folder)
    assert set(history[0]["validation"]) == {"loss", "accuracy", "f1-macro", "top-2"} and history[0]["step"] == 2
    assert history[-1]["learning_rate"] < history[1]["learning_rate"] / 2


def test_balanced_class_weights_make_all_classes_count_the_same(command, folder, arrays):
    x, labels = arrays
    order = np.argsort(labels, kind="stable")
    kept = order[: SAMPLES // 2 + 8]
    np.savez(folder / "data.npz", x=x[kept], labels=labels[kept])
    assert command(f"{TRAIN} --epochs 1 --validation 0 --class-weight balanced")[0] == 0
    model = onnx.load(folder / "run" / "eval_model.onnx")
    weights = next(onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.dims == [CLASSES])
    counts = np.bincount(labels[kept], minlength=CLASSES)
    np.testing.assert_allclose(weights * counts, np.where(counts > 0, len(kept) / np.count_nonzero(counts), 0), rtol=1e-5)


def test_the_best_weights_are_exported_after_early_stopping(command, folder, arrays):
    x, _ = arrays
    np.savez(folder / "data.npz", x=x, labels=np.random.default_rng(1).integers(0, CLASSES, SAMPLES))
    status, out, _ = command(f"{TRAIN} --epochs 60 --patience 2 --learning-rate 0.05 --validation 0.3")
    history = history_of(folder)
    assert status == 0 and "stopped early: validation_loss has not improved" in out and len(history) < 60
    _, page, _ = command("report run")
    best = min(record["validation"]["loss"] for record in history)
    assert f"<b>{best:.4f}</b><span>validation loss" in (folder / "run" / "report.html").read_text(), page


def test_products_take_bfloat16_operands_on_request(command, folder):
    drawn = np.random.default_rng(4)
    np.savez(folder / "wide.npz", input=drawn.standard_normal((64, 128)).astype(np.float32), labels=drawn.integers(0, 64, 64))
    perceptron(str(folder / "wide.onnx"), [128, 256, 64], "input", "output", ["first", "second"])          # products that suit AMX tiles, too
    losses = {}
    for precision in ("float32", "bfloat16"):
        status, _, err = command(f"train wide.onnx wide.npz --loss cross-entropy --out {precision} --quiet --epochs 2 --batch-size 64 --precision {precision}")
        assert (status, err) == (0, "")
        losses[precision] = [epoch["training"]["loss"] for epoch in history_of(folder, precision)]
    assert losses["bfloat16"] != losses["float32"] and losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert command("train wide.onnx wide.npz --out bfloat16 --quiet --resume --epochs 3 --precision float32")[0] == 0


def test_weights_are_kept_in_bfloat16_on_request(command, folder):
    losses = {}
    for dtype in ("float32", "bfloat16"):
        status, _, err = command(f"train model.onnx data.npz --loss cross-entropy --out {dtype} --quiet --epochs 4 --parameter-dtype {dtype}")
        assert (status, err) == (0, "")
        losses[dtype] = [epoch["training"]["loss"] for epoch in history_of(folder, dtype)]
    assert losses["bfloat16"] != losses["float32"] and losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert command("train --out bfloat16 --quiet --resume --epochs 5")[0] == 0
    for array in read_checkpoint(folder / "bfloat16" / "checkpoint").trainable.values():
        assert array.dtype == np.float32 and not (array.view(np.uint32) & 0xFFFF).any(), "expected numbers of bfloat16"


def test_private_training_clips_and_adds_noise_on_request(command, folder):
    for number, noise in enumerate(("1e-6", "1e6")):
        status, _, err = command(f"{TRAIN.replace('run', f'run{number}')} --epochs 2 --learning-rate 0.05 --optimizer sgd --noise-multiplier {noise} "
                                 "--max-grad-norm 0.5")
        assert (status, err) == (0, "") and settings_of(folder, f"run{number}")["options"]["max_grad_norm"] == 0.5
    quiet, loud = (np.concatenate([array.ravel() for array in read_checkpoint(folder / name / "checkpoint").trainable.values()]) for name in ("run0", "run1"))
    assert abs(quiet).max() < 10 < abs(loud).max()
    assert command("train --resume --out run0 --quiet --epochs 3")[0] == 0 and len(history_of(folder, "run0")) == 3


@pytest.mark.parametrize("options", ["--delta 1e-5", "--max-epsilon 3", "--noise-multiplier 1 --max-epsilon 3"])
def test_the_accountant_needs_noise_and_a_delta(options, command, folder):
    status, _, err = command(f"{TRAIN} {options}")
    assert status != 0 and "expected --" in err


def test_epsilon_is_recorded_where_the_accountant_is_installed(command, folder):
    pytest.importorskip("dp_accounting")
    assert command(f"{TRAIN} --epochs 50 --noise-multiplier 2 --delta 1e-3 --max-epsilon 3")[0] == 0
    spent = [record["training"]["epsilon"] for record in history_of(folder)]
    assert spent == sorted(spent) and 2.5 < spent[-1] <= 3
    assert command("train --resume --out run --quiet --epochs 60")[0] != 0, "the budget is spent"


def test_logs_are_written_on_request(command, folder):
    pytest.importorskip("tensorboard")
    assert command(f"{TRAIN} --epochs 2 --log csv tensorboard")[0] == 0
    assert len((folder / "run" / "log.csv").read_text().splitlines()) == 3 and list((folder / "run" / "tensorboard").iterdir())


def test_labels_of_another_integer_type_fit_and_fractions_do_not(command, folder, arrays):
    x, labels = arrays
    np.savez(folder / "data.npz", x=x.astype(np.float64), labels=labels.astype(np.uint8))
    assert command(f"{TRAIN} --epochs 1")[0] == 0
    for wrong in (labels + 0.5, labels + CLASSES):
        np.savez(folder / "data.npz", x=x, labels=wrong)
        status, _, err = command(f"{TRAIN} --epochs 1 --overwrite")
        assert status == 1 and len(err.splitlines()) == 1


def test_a_run_that_is_overwritten_leaves_nothing_of_the_one_before(command, folder):
    pytest.importorskip("safetensors")
    assert command(f"{TRAIN} --epochs 2 --lora all-linear --log csv")[0] == 0
    (folder / "run" / "notes.txt").write_text("mine")
    assert command(f"{TRAIN} --epochs 1 --overwrite --optimizer sgd")[0] == 0
    names = {path.name for path in (folder / "run").iterdir()}
    assert "notes.txt" in names and not {"adapter", "merged.onnx", "log.csv"} & names
    assert onnx.load(folder / "run" / "optimizer_model.onnx").graph.node[-1].op_type.startswith("SGD")


def test_a_model_of_other_classes_gets_a_new_last_layer(command, folder, arrays):
    x, labels = arrays
    np.savez(folder / "two.npz", x=x, labels=np.where(labels == 0, 0, CLASSES + 1))
    line = f"{TRAIN} --epochs 8 --learning-rate 0.05".replace("data.npz", "two.npz")
    status, _, err = command(line)
    assert status == 1 and "label" in err and not (folder / "run").exists()
    assert command(f"{line} --num-classes {CLASSES + 2}")[0] == 0
    assert onnx.load(folder / "run" / "trained.onnx").graph.output[0].type.tensor_type.shape.dim[1].dim_value == CLASSES + 2
    assert command("evaluate run two.npz")[0] == 0


def test_a_folder_with_more_classes_than_the_model_has_names_the_option_for_a_new_last_layer(command, folder, images):
    (images / "white").mkdir()
    next((images / "red").iterdir()).rename(images / "white" / "0.png")
    line = "train image.onnx photos --loss cross-entropy --out run --epochs 2 --image-size 5x6 --validation 0"
    status, _, err = command(line)
    assert status == 1 and "--num-classes 4" in err and not (folder / "run").exists()
    assert command(f"{line} --num-classes 4 --requires-grad head")[0] == 0


def test_a_new_head_is_written_with_the_adapter(command, folder):
    numpy_files = pytest.importorskip("safetensors.numpy")
    assert command(f"{TRAIN} --epochs 3 --lora all-linear --lora-rank 2 --requires-grad head")[0] == 0
    trainable = set(read_checkpoint(folder / "run" / "checkpoint").trainable)
    beside = {name for name in trainable if "lora" not in name}
    keys = numpy_files.load_file(str(folder / "run" / "adapter" / "adapter_model.safetensors"))
    assert beside and {key.removeprefix("base_model.model.") for key in keys if ".lora_" not in key} == beside
    assert command("evaluate run/merged.onnx data.npz")[1] == command("evaluate run data.npz")[1]
