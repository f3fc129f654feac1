"""Loggers write what the real packages read back, and close their files however training ends."""

import csv
import json
import math
import struct
import sys
import time

import pytest

from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidStateError
from ortrain.trainer.loggers import CSVLogger, MLflowLogger, TensorBoardLogger, WandbLogger
from ortrain.trainer.loggers.base import Logger, RunLogger
from tests.trainer.fakes import FakeTrainer

VALIDATION = [{"loss": 0.5, "top-5": 0.25}, {"loss": 0.25, "top-5": 0.5}, {"loss": 0.125, "top-5": 1.0}]
EXPECTED = {
    "step/loss": {step: 1 / step for step in (2, 4, 6, 8, 10, 12)},
    "step/learning_rate": dict.fromkeys((2, 4, 6, 8, 10, 12), 0.01),
    "training/loss": {4: 1 / 4, 8: 1 / 8, 12: 1 / 12},
    "training/accuracy": {4: 0.5, 8: 0.5, 12: 0.5},
    "validation/loss": {4: 0.5, 8: 0.25, 12: 0.125},
    "validation/top-5": {4: 0.25, 8: 0.5, 12: 1.0},
    "epoch/number": {4: 1, 8: 2, 12: 3},
    "epoch/learning_rate": {4: 0.01, 8: 0.01, 12: 0.01},
    "epoch/seconds": {4: 0.25, 8: 0.25, 12: 0.25},
    "epoch/samples_per_second": {4: 40, 8: 40, 12: 40},
}
"""Figure -> step -> value of a run of three epochs of four steps that logs every second step."""


def trained(logger, **how):
    trainer = FakeTrainer([logger], validation=VALIDATION, **how)
    trainer.fit()
    return trainer


def interrupted(logger):
    """Train, and be interrupted in the second epoch."""
    trainer = FakeTrainer([logger], validation=VALIDATION, fail_at=6)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    return trainer


def goes_on(trainer, logger):
    """Resume the interrupted run from the end of its first epoch."""
    again = FakeTrainer([logger], validation=VALIDATION)
    again.epoch, again.step = 1, 4
    again.history.extend(trainer.history)
    again.fit()


def same(found):
    assert found.keys() == EXPECTED.keys()
    for name, values in EXPECTED.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name


# ---- what all share


class Recording(Logger):
    """Keeps what it is told to write."""

    def __init__(self, every=2):
        super().__init__(every)
        self.written, self.closed = [], []

    def _open(self, trainer):
        self.written.append("open")

    def _write(self, figures, step):
        self.written += [(step, name) for name in figures]

    def _close(self, failed):
        self.closed.append(failed)


def test_a_logger_is_closed_once_however_training_ends():
    logger = Recording()
    trained(logger)
    logger.on_fit_end(None)
    assert logger.closed == [False]
    interrupted(logger)
    assert logger.closed == [False, True]


def test_an_error_while_closing_does_not_hide_the_first_one(monkeypatch):
    logger = Recording()
    monkeypatch.setattr(logger, "_close", lambda failed: 1 / 0)
    trainer = FakeTrainer([logger], fail_at=2)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit()
    assert "division by zero" in caught.value.__notes__[0]


def test_evaluations_are_written_once_and_only_during_training():
    logger = Recording(every=None)
    logger.on_evaluation_end(FakeTrainer([]), {"loss": 1.0})
    assert logger.written == []
    trained(logger)
    assert logger.written.count((4, "validation/loss")) == 1 and (4, "step/loss") not in logger.written


def test_the_number_of_steps_between_two_rows_is_checked():
    for every in (0, -1, 1.5, True):
        with pytest.raises(InvalidArgumentError, match="expected every"):
            Recording(every)


# ---- CSV


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_files_hold_epochs_steps_and_settings(tmp_path):
    trainer = trained(CSVLogger(tmp_path / "run.csv", every=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-settings.json", "run-steps.csv", "run.csv"]
    epochs = rows_of(tmp_path / "run.csv")
    assert [float(row["validation_top-5"]) for row in epochs] == [0.25, 0.5, 1.0] and [row["epoch"] for row in epochs] == ["1", "2", "3"]
    steps = rows_of(tmp_path / "run-steps.csv")
    assert {int(row["step"]): float(row["loss"]) for row in steps} == EXPECTED["step/loss"]
    assert [row["epoch"] for row in steps] == ["1", "1", "2", "2", "3", "3"]
    assert json.loads((tmp_path / "run-settings.json").read_text()) == trainer.settings


def test_gradient_norms_that_were_not_computed_are_empty(tmp_path):
    trained(CSVLogger(tmp_path / "run.csv", every=1), epochs=1)
    assert [row["gradient_norm"] for row in rows_of(tmp_path / "run-steps.csv")] == ["2.0", "", "2.0", ""]


def test_without_steps_there_is_no_file_of_steps(tmp_path):
    trained(CSVLogger(tmp_path / "run.csv", every=None))
    assert not (tmp_path / "run-steps.csv").exists()


def test_csv_files_of_a_resumed_run_equal_those_of_an_uninterrupted_one(tmp_path):
    trainer = interrupted(CSVLogger(tmp_path / "run.csv", every=1))
    steps = tmp_path / "run-steps.csv"
    assert len(rows_of(steps)) == 6, "rows of the epoch that was interrupted are there"
    with open(steps, "a") as file:
        file.write("1,1,0")           # cut off by a crash
    goes_on(trainer, CSVLogger(tmp_path / "run.csv", every=1))
    (tmp_path / "straight").mkdir()
    trained(CSVLogger(tmp_path / "straight" / "run.csv", every=1))
    for name in ("run.csv", "run-steps.csv", "run-settings.json"):
        assert (tmp_path / name).read_text() == (tmp_path / "straight" / name).read_text()
    trained(CSVLogger(tmp_path / "run.csv", every=1))
    assert len(rows_of(steps)) == 12, "a new run replaces the files"


def test_csv_files_go_into_an_existing_folder_and_do_not_replace_others(tmp_path):
    with pytest.raises(ArtifactNotFoundError):
        trained(CSVLogger(tmp_path / "none" / "run.csv"))
    (tmp_path / "run-steps.csv").write_text("my,own\n1,2\n")
    with pytest.raises(InvalidStateError, match="file of steps"):
        goes_on(FakeTrainer([]), CSVLogger(tmp_path / "run.csv"))
    assert [path.name for path in tmp_path.iterdir()] == ["run-steps.csv"]
    assert (tmp_path / "run-steps.csv").read_text() == "my,own\n1,2\n"


# ---- TensorBoard


def events_of(folder):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = loader.EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def scalars_of(folder):
    """Figure -> step -> value. The accumulator turns simple values into tensors unless asked for scalars."""
    found = events_of(folder)
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_the_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    trained(TensorBoardLogger(tmp_path / "events", every=2))
    same(scalars_of(tmp_path / "events"))
    (text,) = events_of(tmp_path / "events").Tensors("settings")
    assert text.tensor_proto.string_val[0].decode().splitlines()[2:] == ["| seed | 0 |", "| optimizer.name | AdamW |", "| optimizer.betas | [0.9, 0.999] |"]


def test_event_files_of_a_resumed_run_have_every_step_once(tmp_path):
    pytest.importorskip("tensorboard")
    trainer = interrupted(TensorBoardLogger(tmp_path, every=2))
    assert 6 in scalars_of(tmp_path)["step/loss"], "events of the epoch that was interrupted are there"
    time.sleep(1.1)                 # files are read in the order of their names, which hold the second
    goes_on(trainer, TensorBoardLogger(tmp_path, every=2))
    same(scalars_of(tmp_path))
    steps = [event.step for event in events_of(tmp_path).Scalars("step/loss")]
    assert steps == [2, 4, 6, 8, 10, 12]


def test_event_files_do_not_replace_a_file(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "events").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="expected a folder"):
        trained(TensorBoardLogger(tmp_path / "events"))
    assert (tmp_path / "events").read_text() == "mine"


# ---- MLflow


@pytest.fixture
def store(tmp_path):
    for name in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(name)
    return f"sqlite:///{tmp_path / 'runs.db'}"


def run_of(store, run_id):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(store)
    run = client.get_run(run_id)
    return run, {name: {m.step: m.value for m in client.get_metric_history(run_id, name)} for name in run.data.metrics}


def test_mlflow_reads_the_run(store):
    logger = MLflowLogger("trials", "first", tracking_uri=store, tags={"kind": "test"}, every=2)
    trained(logger)
    run, found = run_of(store, logger.run_id)
    same(found)
    assert run.info.status == "FINISHED" and run.info.run_name == "first" and run.data.tags["kind"] == "test"
    assert run.data.params == {"seed": "0", "optimizer.name": "AdamW", "optimizer.betas": "[0.9, 0.999]"}
    again = MLflowLogger("trials", tracking_uri=store)
    trained(again, settings={"a(b)": "x" * 1000})
    other = run_of(store, again.run_id)[0]
    assert other.info.experiment_id == run.info.experiment_id and other.data.params == {"a_b_": "x" * 500}


def test_an_interrupted_run_of_mlflow_fails_and_goes_on_when_resumed(store):
    first, second = (MLflowLogger(tracking_uri=store, every=2) for _ in range(2))
    trainer = interrupted(first)
    run, found = run_of(store, first.run_id)
    assert run.info.status == "FAILED" and found["step/loss"] == pytest.approx({2: 1 / 2, 4: 1 / 4, 6: 1 / 6})
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    goes_on(trainer, second)
    run, found = run_of(store, first.run_id)
    assert run.info.status == "FINISHED" and second.run_id == first.run_id
    same(found)


def test_a_run_of_mlflow_whose_settings_are_refused_fails(store):
    logger = MLflowLogger(tracking_uri=store)
    with pytest.raises(Exception, match="a_b"):
        trained(logger, settings={"a(b": 1, "a)b": 2})
    assert run_of(store, logger.run_id)[0].info.status == "FAILED"


def test_mlflow_is_not_given_numbers_that_databases_cannot_hold(store):
    logger = MLflowLogger(tracking_uri=store)
    FakeTrainer([logger], validation=[{"loss": math.nan, "f1": 0.5}], epochs=1).fit()
    assert "validation/loss" not in run_of(store, logger.run_id)[1] and run_of(store, logger.run_id)[1]["validation/f1"] == {4: 0.5}


# ---- Weights & Biases


HEADER, BLOCK, RECORD = 7, 32768, struct.Struct("<IHB")
"""Of the log format of LevelDB, in which wandb writes: the sizes of the file's header and of a block, and (checksum, length, kind) of a piece."""


def log_entries(data):
    """Yield the entries of a log: pieces of kind 1 are whole, others begin (2), go on (3) or end (4) an entry."""
    position, entry = HEADER, b""
    while position + RECORD.size <= len(data):
        left = BLOCK - position % BLOCK
        if left < RECORD.size:
            position += left
            continue
        _, length, kind = RECORD.unpack_from(data, position)
        position += RECORD.size
        entry += data[position : position + length]
        position += length
        if kind in (1, 4):
            yield entry
            entry = b""


def records_of(folder):
    """The records of the only run below a folder, as wandb wrote them."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()                # the process that writes the file may still be at it after the run is finished
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return [wandb_internal_pb2.Record.FromString(entry) for entry in log_entries(path.read_bytes())]


def history_of(records):
    """Figure -> step -> value."""
    found = {}
    for record in records:
        items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                found.setdefault(name, {})[items["_step"]] = value
    return found


def test_wandb_writes_the_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger("trials", "first", folder=tmp_path, mode="offline", every=2)
    trained(logger)
    records = records_of(tmp_path)
    found = history_of(records)
    assert found.pop("step/gradient_norm", None) is None, "steps 2, 4, ... have none"
    same(found)
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    settings = {item.key: json.loads(item.value_json) for item in run.config.update if not item.key.startswith("_")}
    assert (run.project, run.display_name, run.run_id) == ("trials", "first", logger.run_id)
    assert settings == {"seed": 0, "optimizer": {"name": "AdamW", "betas": [0.9, 0.999]}}
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0]


def test_an_interrupted_run_of_wandb_ends_with_exit_code_1(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    interrupted(WandbLogger(folder=tmp_path, mode="offline", every=2))
    records = records_of(tmp_path)
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [1]
    assert history_of(records)["step/loss"] == pytest.approx({2: 1 / 2, 4: 1 / 4, 6: 1 / 6})


def test_a_resumed_run_of_wandb_keeps_its_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    first, second = (WandbLogger(folder=tmp_path / part, mode="offline", every=2) for part in ("first", "second"))
    for part in ("first", "second"):
        (tmp_path / part).mkdir()
    trainer = interrupted(first)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    goes_on(trainer, second)
    assert second.run_id == first.run_id
    assert history_of(records_of(tmp_path / "second"))["step/loss"] == pytest.approx({6: 1 / 6, 8: 1 / 8, 10: 1 / 10, 12: 1 / 12})


def test_the_id_of_a_run_is_checked():
    class Runs(RunLogger, Recording):
        """Writes nothing into a run."""

    logger = Runs()
    assert logger.state_dict() == {"run_id": None}
    logger.load_state_dict({"run_id": "7"})
    for wrong in ({}, {"run_id": 8}, {"run_id": "8", "more": 1}):
        with pytest.raises(InvalidArgumentError, match="expected a run_id"):
            logger.load_state_dict(wrong)
    assert logger.run_id == "7"


# ---- missing packages


@pytest.mark.parametrize("name, make", [("mlflow", MLflowLogger), ("wandb", WandbLogger), ("tensorboard", lambda: TensorBoardLogger("x"))])
def test_a_missing_package_is_named_with_its_extra(name, make, monkeypatch):
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidStateError, match=rf"expected the package {name} .*pip install 'ortrain\[{name}\]'"):
        make()
