"""A program that mpiexec starts: trains the classifier of the tests and writes what each worker has seen. `python -m tests.distributed.program --help`."""

import argparse
import json
import os
import signal
from pathlib import Path

from ortrain import Trainer
from ortrain.distributed import MPI, BFloat16Synchronization, DiLoCo, OptimizerSharding, OverlappedSynchronization, TopKSynchronization
from ortrain.trainer import Callback
from tests.distributed.test_batch_normalization import IMAGES, LABELS, images_model
from tests.trainer.models import classifier, samples

HOW = {"optimizer": "adamw", "learning_rate": 0.01, "progress": False, "seed": 5, "metrics": ["accuracy", "f1"], "save_every_steps": 2}
EPOCHS = 3
SYNCHRONIZATIONS = {"overlapped": lambda: OverlappedSynchronization(1), "bfloat16": BFloat16Synchronization, "top-k": lambda: TopKSynchronization(0.3),
                    "diloco": lambda: DiLoCo(3), "sharded": OptimizerSharding}


class Watch(Callback):
    """Keeps the losses of steps, and lets one worker die or fail after a step."""

    def __init__(self, options):
        self.options = options
        self.losses = []

    def on_step_end(self, trainer, record):
        self.losses.append(record.loss)
        if trainer.rank == self.options.rank and record.step == self.options.step:
            if self.options.event == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.options.event == "fail":
                raise OSError("no space left")
            if self.options.event == "exit":
                raise SystemExit("gives up")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a folder; receives rank-N.json and the run")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--synchronization", choices=SYNCHRONIZATIONS)
    parser.add_argument("--normalized", action="store_true", help="train a network whose batch normalizations are synchronized")
    parser.add_argument("--event", choices=("kill", "fail", "exit", "fail outside"), help="what happens to worker RANK after step STEP")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--step", type=int, default=7)
    options = parser.parse_args()
    strategy, watch = MPI(), Watch(options)
    if options.event == "fail outside" and strategy.rank == options.rank:
        raise OSError("no such file")
    how = HOW | {"strategy": strategy, "callbacks": [watch], "synchronization": options.synchronization and SYNCHRONIZATIONS[options.synchronization]()}
    if options.resume:
        trainer = Trainer.from_artifacts(options.out / "run", resume=True, **{name: value for name, value in how.items() if name != "optimizer"})
    else:
        how["synchronized_batch_normalization"] = options.normalized
        trainer = Trainer.from_model(images_model() if options.normalized else classifier(), loss="cross-entropy", folder=options.out / "run", **how)
    trainer.fit(*((IMAGES, LABELS) if options.normalized else samples()), epochs=EPOCHS, batch_size=options.batch_size, validation=0.2)
    found = {"size": strategy.size, "threads": strategy.threads(), "losses": watch.losses, "figures": [record.figures for record in trainer.history],
             "weights": trainer.save_weights().tolist()}
    (options.out / f"rank-{strategy.rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
