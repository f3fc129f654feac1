"""Train the digits model of examples/digits in several processes, on one machine or on several.

    pip install 'ortrain[demo,mpi]' mpich
    mpiexec -n 2 python examples/data_parallel/train_digits.py [--batch-size 16] [--epochs 12] [--out parallel_output]

    pip install 'ortrain[demo,ray]'
    python examples/data_parallel/train_digits.py --ray 2
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "digits"))

from digits_data import small_digits
from digits_model import STATISTICS, build_model, trainable_weights

from ortrain import SessionOptions, Trainer, set_seed
from ortrain.distributed import MPI, Ray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="samples in a step of each process")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="for the batch of all processes together")
    parser.add_argument("--ray", type=int, metavar="WORKERS", help="start so many workers by Ray, instead of mpiexec")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("parallel_output"))
    options = parser.parse_args()
    started = time.perf_counter()

    strategy = MPI() if options.ray is None else Ray(options.ray)
    set_seed(options.seed)
    digits = small_digits(options.seed)
    model = build_model(digits.train_images.shape[-1], options.seed)
    with Trainer.from_model(model, loss="cross-entropy", learning_rate=options.learning_rate, requires_grad=trainable_weights(model),
                            frozen_params=STATISTICS, seed=options.seed, folder=options.out, overwrite=True, strategy=strategy,
                            options=SessionOptions(intra_op_num_threads=strategy.threads() if options.ray is None else 0)) as trainer:
        history = trainer.fit(digits.train_images, digits.train_labels, epochs=options.epochs, batch_size=options.batch_size,
                              validation=(digits.test_images, digits.test_labels))
        trainer.export(options.out / "trained.onnx")
    if trainer.rank == 0:
        last = history[-1]
        print(f"{trainer.settings['workers']} workers with {options.batch_size} samples each: {last.epoch} epochs, {last.step} steps, "
              f"{time.perf_counter() - started:.1f} s, held-out accuracy {last.validation['accuracy']:.2%}")
        print(f"in {options.out}: trained.onnx, checkpoint")


if __name__ == "__main__":
    main()
