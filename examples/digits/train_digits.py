"""Train a forward ONNX model and export it for onnxruntime: artifacts, training, checkpoint, resume, export.

    python examples/digits/train_digits.py [--epochs 12] [--mnist FOLDER] [--out demo_output]
"""

import argparse
import time
from pathlib import Path

import numpy as np
import onnx
from digits_data import Digits, mnist, small_digits
from digits_model import STATISTICS, build_model, trainable_weights

from ortrain import TrainingSession, artifacts, set_seed
from ortrain.errors import InvalidStateError
from ortrain.trainer import History, Trainer


def make_artifacts(size: int, seed: int, folder: Path) -> None:
    """Run the offline phase: write the training, eval and optimizer model and the checkpoint of the forward model."""
    model = build_model(size, seed)
    onnx.save(model, folder / "forward.onnx")
    artifacts.generate_artifacts(
        model, requires_grad=trainable_weights(model), frozen_params=STATISTICS, loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, additional_output_names=["logits"], artifact_directory=str(folder))


def train(digits: Digits, folder: Path, epochs: int, options: argparse.Namespace, resume: bool) -> History:
    """Train until `epochs` epochs are complete, in a new session, and export the model. A checkpoint is saved after each epoch."""
    learning_rate = None if resume else options.learning_rate
    with Trainer.from_artifacts(folder, learning_rate=learning_rate, seed=options.seed, resume=resume, overwrite=not resume) as trainer:
        trainer.fit(digits.train_images, digits.train_labels, epochs=epochs, batch_size=options.batch_size,
                    validation=(digits.test_images, digits.test_labels))
        trainer.export(folder / "trained.onnx")
    return trainer.history


def draw(history: History, path: Path) -> bool:
    """Draw the learning curve and return whether matplotlib is there to do so."""
    try:
        history.plot(path)
    except InvalidStateError:
        return False
    return True


def check_with_onnxruntime(digits: Digits, folder: Path, accuracy: float) -> None:
    """Compare the exported model in onnxruntime with ortrain. Raises SystemExit if their accuracies differ."""
    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is not installed: the exported model was not cross-checked")
        return
    exported = onnxruntime.InferenceSession(str(folder / "trained.onnx"), providers=["CPUExecutionProvider"])
    expected = exported.run(["logits"], {"image": digits.test_images})[0]
    with TrainingSession.from_artifacts(folder) as session:
        logits = session.predict(digits.test_images)[0]
    exported_accuracy = float(np.mean(expected.argmax(1) == digits.test_labels))
    print(f"exported model in onnxruntime {onnxruntime.__version__}: accuracy {exported_accuracy:.2%} (ortrain {accuracy:.2%}), "
          f"largest difference of a logit {np.abs(logits - expected).max():.2e}")
    if exported_accuracy != accuracy:
        raise SystemExit("the exported model and the training session disagree")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mnist", metavar="FOLDER", help="train on MNIST instead, from its four IDX files in FOLDER")
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    options = parser.parse_args()
    started = time.perf_counter()

    digits = mnist(options.mnist) if options.mnist else small_digits(options.seed)
    size = digits.train_images.shape[-1]
    print(f"{len(digits.train_labels)} digits of {size}x{size} pixels to train on, {len(digits.test_labels)} held out")
    options.out.mkdir(parents=True, exist_ok=True)
    set_seed(options.seed)
    make_artifacts(size, options.seed, options.out)
    print(f"artifacts in {options.out}: training_model.onnx, eval_model.onnx, optimizer_model.onnx, checkpoint")

    train(digits, options.out, options.epochs, options, resume=False)
    print("a fresh session resumes from the checkpoint for one more epoch")
    history = train(digits, options.out, options.epochs + 1, options, resume=True)

    last = history[-1]
    has_curve = draw(history, options.out / "learning_curve.png")
    check_with_onnxruntime(digits, options.out, last.validation["accuracy"])
    print(f"\n{last.epoch} epochs, {last.step} steps, {time.perf_counter() - started:.1f} s in total")
    print(f"held-out loss {last.validation['loss']:.4f}, held-out accuracy {last.validation['accuracy']:.2%}")
    curve = ", learning_curve.png" if has_curve else " (matplotlib is not installed: no learning curve)"
    print(f"in {options.out}: trained.onnx, checkpoint{curve}")


if __name__ == "__main__":
    main()
