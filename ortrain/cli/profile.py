"""profile: shows where the time of a training step goes, on the arrays of an .npz file or on inputs that are made up."""

from __future__ import annotations

import argparse

import numpy as np

from ortrain.cli.common import existing_folder, session_arrays
from ortrain.data.files import read_arrays
from ortrain.dtypes import numpy_dtype
from ortrain.errors import InvalidArgumentError
from ortrain.ir import TensorType
from ortrain.runtime.options import SessionOptions
from ortrain.training.session import TrainingSession

WARM_UP = 3
"""Steps before those that are measured: planning, and the first touch of memory."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="DIR", help="a folder with artifacts; nothing in it changes")
    command.add_argument("--data", metavar="data.npz", help="inputs and target (default: made up: small random numbers, and class 0)")
    command.add_argument("--target", metavar="NAME", help="name of the target's array (default: labels or target)")
    command.add_argument("--batch-size", type=int, default=32, help="of inputs whose first size is open (default: 32)")
    command.add_argument("--steps", type=int, default=20, help="train and optimizer steps that are measured (default: 20)")
    command.add_argument("--threads", type=int, help="threads of the session (default: the physical cores, at most 8)")
    command.add_argument("--by", choices=("step", "kernel"), default="kernel", help="one row for each (default: kernel)")
    command.add_argument("--most", type=int, metavar="N", help="so many rows of the table")
    command.add_argument("--trace", metavar="FILE", help="write a Chrome trace (chrome://tracing, Perfetto) there")


def run(options: argparse.Namespace) -> None:
    """Print the table, and write the trace on request."""
    if options.steps < 1 or options.batch_size < 1:
        raise InvalidArgumentError(f"expected --steps and --batch-size above 0, got {options.steps} and {options.batch_size}")
    settings = SessionOptions() if options.threads is None else SessionOptions(intra_op_num_threads=options.threads)
    with TrainingSession.from_artifacts(existing_folder(options.folder), options=settings) as session:
        batch = made_up(session, options.batch_size) if options.data is None else from_file(session, options)
        for _ in range(WARM_UP):
            one_step(session, batch)
        with session.profile() as profile:
            for _ in range(options.steps):
                one_step(session, batch)
    print(profile.table(options.by, options.most))
    if options.trace:
        profile.save(options.trace)


def one_step(session: TrainingSession, batch: list[np.ndarray]) -> None:
    session.train_step(*batch)
    if session.has_optimizer:
        session.optimizer_step()
    session.lazy_reset_grad()


def from_file(session: TrainingSession, options: argparse.Namespace) -> list[np.ndarray]:
    """Return the first batch of a data file."""
    inputs, target = session_arrays(read_arrays(options.data), session.input_names(), options.target, session.training_model)
    return [array[: options.batch_size] for array in (*inputs, target)]


def made_up(session: TrainingSession, batch_size: int) -> list[np.ndarray]:
    """Return inputs of the model's types. Raises InvalidArgumentError where dimensions other than the first are dynamic."""
    rng = np.random.default_rng(0)
    types = session.training_model.graph.types
    return [example(name, types.get(name), batch_size, rng) for name in session.input_names()]


def example(name: str, kind: TensorType | None, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    """Return an array for one input: zeros for integers, which are usually labels or indices."""
    shape = None if kind is None or kind.shape is None else tuple(batch_size if i == 0 and not isinstance(d, int) else d for i, d in enumerate(kind.shape))
    if kind is None or shape is None or not all(isinstance(d, int) for d in shape):
        raise InvalidArgumentError(f"expected --data for the input {name!r} of open sizes {None if kind is None else kind.shape}")
    sizes = tuple(int(d) for d in shape)
    dtype = numpy_dtype(kind.dtype)
    return rng.standard_normal(sizes).astype(dtype) if dtype.kind == "f" else np.zeros(sizes, dtype)
