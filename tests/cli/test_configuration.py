"""--config: values of a TOML file, checked by the rules of the command line, which takes precedence."""

import json

import pytest

CONFIGURATION = """
model = "model.onnx"
data = "data.npz"
out = "run"
loss = "cross-entropy"
epochs = 3
batch-size = 16
learning_rate = 0.02
metrics = ["accuracy", "f1-macro"]
standardize = false
validation = 0.2
quiet = true
overwrite = false

[optimizer_options]
weight_decay = 0.01
betas = [0.8, 0.95]
"""


@pytest.fixture
def options(command, folder):
    """Writes a configuration and trains; gives the stored options, or the error."""
    def call(text, line=""):
        (folder / "run.toml").write_text(text)
        status, _, err = command(f"train --config run.toml {line}")
        return err if status else json.loads((folder / "run" / "settings.json").read_text())["options"]

    return call


def test_a_configuration_has_the_names_of_options_with_hyphens_or_underscores(options):
    found = options(CONFIGURATION)
    assert (found["epochs"], found["batch_size"], found["learning_rate"], found["metrics"]) == (3, 16, 0.02, ["accuracy", "f1-macro"])
    assert found["optimizer_options"] == {"weight_decay": 0.01, "betas": [0.8, 0.95]} and found["standardize"] is False and found["validation"] == "0.2"


def test_the_command_line_takes_precedence(options, folder):
    found = options(CONFIGURATION, "--epochs 1 --metrics accuracy --optimizer-options weight_decay=0.5 --standardize")
    assert (found["epochs"], found["metrics"], found["optimizer_options"], found["standardize"]) == (1, ["accuracy"], {"weight_decay": 0.5}, True)


def test_a_path_on_the_command_line_is_not_swallowed_by_a_list_of_the_configuration(command, folder, options):
    (folder / "other.npz").write_bytes((folder / "data.npz").read_bytes())
    (folder / "run.toml").write_text(CONFIGURATION)
    assert command("train model.onnx other.npz --config run.toml")[0] == 0
    assert json.loads((folder / "run" / "settings.json").read_text())["data"].endswith("other.npz")


@pytest.mark.parametrize(("change", "words"), [
    ("epoch = 3", "expected the names of options in 'run.toml', got epoch; known are accumulate"),
    ("config = 'other.toml'", "got config"),
    ("patience = 'many'", "argument --patience: expected a whole number of at least 1, got 'many'"),
    ("loss_options = 'gamma'", "argument --loss-options: expected NAME=VALUE, got 'gamma'"),
    ("patience = true", "expected a value for patience"),
    ("patience = 1979-05-27", "expected text, numbers, true or false for patience"),
    ("schedule = 'cosinus'", "argument --schedule: invalid choice: 'cosinus'"),
    ("patience = ", "expected a TOML file as --config"),
])
def test_a_wrong_configuration_is_a_usage_error_that_names_what_is_wrong(change, words, options, folder):
    err = options(f"{change}\n{CONFIGURATION}")
    assert "usage:" in err and words in err and not (folder / "run").exists()


def test_the_learning_rate_finder_reads_configurations_too(command, folder):
    (folder / "run.toml").write_text("model = 'model.onnx'\ndata = 'data.npz'\nloss = 'cross-entropy'\nbatch_size = 16\n")
    status, out, err = command("lr-find --config run.toml --steps 30")
    assert (status, err) == (0, "") and "suggested learning rate: " in out
    (folder / "run.toml").write_text("epochs = 3\n")
    assert command("lr-find model.onnx data.npz --loss mse --config run.toml")[0] == 2
