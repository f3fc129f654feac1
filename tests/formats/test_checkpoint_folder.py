"""Checkpoint folders of 1.15 are read, and invalid ones raise a named error. The recorded runs test training from them."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from ortrain.errors import InvalidCheckpointError
from ortrain.formats.checkpoint import read_checkpoint, write_checkpoint

FOLDER = Path(__file__).parents[1] / "data" / "ort_golden_versions" / "1.15.1" / "cnn_bn" / "checkpoint_after"


def test_a_folder_holds_parameters_properties_and_optimizer_state():
    found = read_checkpoint(FOLDER)
    assert found.properties == {"best": 0.5, "epoch": 3, "name": "abc"}
    assert set(found.frozen) == {"bn.running_mean", "bn.running_var"}
    group = found.optimizer_groups["group0"]
    assert (group.step, group.initial_learning_rate) == (5, pytest.approx(0.001))
    assert set(group.momentums) == set(found.trainable)
    assert all(set(moments) == {"momentum0", "momentum1"} for moments in group.momentums.values())


def test_a_folder_is_saved_as_a_file_of_the_current_version(tmp_path):
    found = read_checkpoint(FOLDER)
    write_checkpoint(found, tmp_path / "checkpoint")
    again = read_checkpoint(tmp_path / "checkpoint")
    assert again.properties == found.properties
    for name, array in found.trainable.items():
        np.testing.assert_array_equal(again.trainable[name], array)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_a_broken_file_in_a_folder_is_refused_or_read(name, tmp_path):
    whole = (FOLDER / name).read_bytes()
    folder = tmp_path / "checkpoint"
    shutil.copytree(FOLDER, folder)
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        (folder / name).write_bytes(whole[:length])
        with pytest.raises(InvalidCheckpointError):
            read_checkpoint(folder)
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 100):
        broken = bytearray(whole)
        broken[at] ^= int(rng.integers(1, 256))
        (folder / name).write_bytes(bytes(broken))
        with contextlib.suppress(InvalidCheckpointError):
            read_checkpoint(folder)


def test_any_other_folder_is_refused(tmp_path):
    with pytest.raises(InvalidCheckpointError, match="paramtrain"):
        read_checkpoint(tmp_path)
