"""Workers that Ray Train starts, and starts anew when one is lost."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from ortrain.distributed.ray_worker import RayWorker, Register
from ortrain.distributed.strategy import Launcher
from ortrain.errors import WorkerFailedError
from ortrain.packages import require
from ortrain.runtime.numbers import check_count

SETTINGS = {"RAY_CHDIR_TO_TRIAL_DIR": "0", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
"""Of Ray Train, unless the environment has them: workers that stay in the folder of their cluster, on one machine that of the program, and how often it looks
whether workers have ended or were lost, which it does every two seconds otherwise."""
ONE_MACHINE_SETTINGS = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
"""Of Ray Train in a Ray of this machine alone, which no cloud takes back."""


class Ray(Launcher):
    """Starts workers as a worker group of Ray Train: `Trainer(..., strategy=Ray(workers=4)).fit(...)`, in a program that is itself no worker.

    workers: how many. cpus: processors of each, as many as the threads of its session unless its options say otherwise. restarts: how many times Ray Train
    starts all workers anew, from the last checkpoint in the folder of the run or without a folder from the beginning, after one was killed or its machine was
    lost (`FailureConfig(max_failures=...)`).

    The workers run in the cluster to which the program is connected or which RAY_ADDRESS names; otherwise on this machine, in a Ray that ends with them. Ray
    waits until the cluster has room for all. On several machines the folder of the run must be one that all of them share.

    Raises MissingPackageError without ray[train], InvalidArgumentError for numbers that are too small."""

    def __init__(self, workers: int, cpus: int = 1, restarts: int = 3) -> None:
        self.workers = check_count(workers, "workers", 1)
        self.cpus = check_count(cpus, "cpus", 1)
        self.restarts = check_count(restarts, "restarts")
        require("ray.train", "ray", "Ray")

    def run(self, work: Callable[[RayWorker, int], Any]) -> Any:
        ray = require("ray", "ray", "Ray")
        with _environment(SETTINGS), _cluster(ray, self.workers * self.cpus), tempfile.TemporaryDirectory(prefix="ortrain-ray-") as storage:
            here = require("ray.util.scheduling_strategies", "ray", "Ray").NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            register = ray.remote(Register).options(num_cpus=0, scheduling_strategy=here).remote(self.workers)
            try:
                return self._fit(ray, ray.put(work), register, storage)
            finally:
                ray.kill(register)

    def _fit(self, ray: Any, work: Any, register: Any, storage: str) -> Any:
        """Let Ray Train start the workers, and anew as often as is allowed; return the result of rank 0. work: a reference. storage: for files of Ray Train."""
        train = require("ray.train", "ray", "Ray")
        settings = train.RunConfig(storage_path=storage, failure_config=train.FailureConfig(max_failures=self.restarts), callbacks=[_losses(train, register)],
                                   logging_config=train.LoggingConfig(log_level="ERROR"))
        trainer = require("ray.train.v2.api.data_parallel_trainer", "ray", "Ray").DataParallelTrainer(
            partial(_work_in_group, work, register, self.cpus), run_config=settings,
            scaling_config=train.ScalingConfig(num_workers=self.workers, resources_per_worker={"CPU": self.cpus}))
        try:
            with _interruptible():
                result = trainer.fit().return_value
        except train.WorkerGroupError as error:
            lost = min(error.worker_failures, default=0)
            raise WorkerFailedError(f"rank {lost} of {self.workers} was lost, and {self.restarts} restarts were allowed") from error
        failed, losses = ray.get(register.report.remote())
        for ranks in losses:
            warnings.warn(f"rank {min(ranks, default=0)} of {self.workers} was lost, and Ray Train has started all workers anew", RuntimeWarning, stacklevel=5)
        if failed:
            raise _failure(failed, self.workers)
        return result


def _work_in_group(work: Any, register: Any, cpus: int) -> Any:
    """Do the work of one worker. Ray Train calls this in each; what rank 0 returns is the result."""
    ray, context = require("ray", "ray", "Ray"), require("ray.train", "ray", "Ray").get_context()
    rank = context.get_world_rank()
    broadcast = require("ray.train.collective", "ray", "Ray").broadcast_from_rank_zero
    attempt = broadcast(ray.get(register.begin.remote()) if rank == 0 else None)
    worker = RayWorker(register, rank, context.get_world_size(), cpus)
    try:
        return ray.get(work)(worker, attempt)
    except (Exception, SystemExit) as error:
        # Ray Train would start all workers anew, and the same error would come again
        worker.fail(_portable(error, worker))
        return None


def _losses(train: Any, register: Any) -> Any:
    """Return a callback that tells the register of lost workers, from where Ray Train watches them."""

    class Losses(train.UserCallback):       # type: ignore[misc]
        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, BaseException]) -> None:
            require("ray", "ray", "Ray").get(register.lose.remote(sorted(worker_exceptions)))

    return Losses()


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Have settings of Ray Train, which reads them from the environment, in the block, unless the environment has others."""
    missing = settings.keys() - os.environ.keys()
    os.environ.update({name: settings[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def _cluster(ray: Any, processors: int) -> Iterator[None]:
    """Be connected to a cluster in the block; to one of this machine alone where there is no other."""
    if ray.is_initialized():
        yield
        return
    with ExitStack() as stack:
        if "RAY_ADDRESS" in os.environ:
            ray.init()
        else:
            stack.enter_context(_environment(ONE_MACHINE_SETTINGS))
            ray.init(num_cpus=max(processors, os.cpu_count() or 1), include_dashboard=False, runtime_env={"worker_process_setup_hook": _show_errors_alone})
        try:
            yield
        finally:
            ray.shutdown()


def _show_errors_alone() -> None:
    """Keep a process of Ray Train from warning every second that it cannot ask the dashboard, which is not started."""
    logging.getLogger("ray.train").setLevel(logging.ERROR)


@contextmanager
def _interruptible() -> Iterator[None]:
    """A block in which Ray Train handles Ctrl-C, by ending all workers and exiting. Raises KeyboardInterrupt then, and has the program's handler again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGINT, handler)


def _portable(error: BaseException, worker: RayWorker) -> BaseException:
    """Return an exception as it is, if it can be sent to another process; otherwise one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerFailedError(f"rank {worker.rank} of {worker.size} failed: {type(error).__name__}: {error}")
    return error


def _failure(failed: Mapping[int, BaseException], size: int) -> BaseException:
    """Return the error of a run: the one that all workers have, or that names the one that has failed."""
    told = [error for error in failed.values() if isinstance(error, WorkerFailedError)]
    if told:
        return told[0]
    rank = min(failed)
    if len(failed) == size:
        return failed[rank]
    failure = WorkerFailedError(f"rank {rank} of {size} failed: {type(failed[rank]).__name__}: {failed[rank]}")
    failure.__cause__ = failed[rank]
    return failure
