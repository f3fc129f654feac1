"""The command profile: shows where the time of a training step goes, on a data file or on inputs that are made up."""

from __future__ import annotations

import argparse

import numpy as np

from ortrain.cli.common import count, existing_folder, session_options
from ortrain.cli.options import PRECISION_HELP
from ortrain.dtypes import numpy_dtype
from ortrain.errors import InvalidArgumentError
from ortrain.ir import TensorType
from ortrain.runs import DataOptions, ModelInputs, Split
from ortrain.runs.loaders import fit_preprocessing, labelled_loader
from ortrain.runtime.options import PRECISIONS
from ortrain.trainer.construction import input_roles
from ortrain.training.session import TrainingSession

WARM_UP = 3
"""Steps before those that are measured: planning, and the first touch of memory."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("folder", metavar="DIR", help="A folder with artifacts; nothing in it changes.")
    command.add_argument("--data", metavar="DATA", help="A folder of images, a table or arrays. Without it, small random numbers, and class 0.")
    command.add_argument("--target", metavar="NAME", help="The target's column or array. Without it, the one named labels, target, label or y.")
    command.add_argument("--batch-size", type=count(1), default=32, metavar="N", help="The batch size of models that leave it open. Default: 32.")
    command.add_argument("--steps", type=count(1), default=20, metavar="N", help="Train and optimizer steps that are measured. Default: 20.")
    command.add_argument("--precision", choices=PRECISIONS, default="float32", help=PRECISION_HELP + " Default: float32.")
    command.add_argument("--threads", type=count(1), metavar="N", help="Threads of the session. Without it, the physical cores, at most 8.")
    command.add_argument("--by", choices=("step", "kernel"), default="kernel", help="What the rows of the table are. Default: kernel.")
    command.add_argument("--most", type=count(1), metavar="N", help="The number of rows that are shown at most.")
    command.add_argument("--trace", metavar="FILE", help="A file for a Chrome trace, which chrome://tracing and Perfetto show.")


def run(options: argparse.Namespace) -> None:
    """Print the table, and write the trace on request."""
    with TrainingSession.from_artifacts(existing_folder(options.folder), options=session_options(options.threads, precision=options.precision)) as session:
        batch = made_up(session, options.batch_size) if options.data is None else from_file(session, options)
        for _ in range(WARM_UP):
            one_step(session, batch)
        with session.profile() as profile:
            for _ in range(options.steps):
                one_step(session, batch)
    print(profile.table(options.by, options.most))
    print(*profile.memory, sep="\n")
    if options.trace:
        profile.save(options.trace)


def one_step(session: TrainingSession, batch: list[np.ndarray]) -> None:
    """Run a whole training step."""
    session.train_step(*batch)
    if session.has_optimizer:
        session.optimizer_step()
    session.lazy_reset_grad()


def from_file(session: TrainingSession, options: argparse.Namespace) -> list[np.ndarray]:
    """Return the first batch of a data file."""
    roles = input_roles(session)
    preprocessing = fit_preprocessing(options.data, ModelInputs.of(session, roles), DataOptions(target=options.target, standardize=False), Split())
    return next(iter(labelled_loader(preprocessing, options.data, roles.training, roles.dtypes, options.batch_size).epoch(0)))


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
