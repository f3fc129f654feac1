"""What a trainer is made from on the command line: the model, the loss, the optimizer and the data that options describe."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortrain import lora
from ortrain.cli.common import made_by_name, session_options
from ortrain.cli.options import NO_DECAY
from ortrain.cli.workers import make_synchronization
from ortrain.distributed import Launcher, Strategy
from ortrain.errors import InvalidArgumentError, MissingPackageError
from ortrain.ir import Model
from ortrain.loading.loader import load_model
from ortrain.onnxblock.optim import OPTIMIZERS
from ortrain.passes.new_head import replace_head
from ortrain.runs import DataOptions, ModelInputs, Preprocessing, Split, TrainingData
from ortrain.runs.loaders import check_fits, class_labels, fit_preprocessing
from ortrain.runs.preprocessing import augment_from
from ortrain.runtime.differential_privacy import DifferentialPrivacy
from ortrain.runtime.options import SessionOptions
from ortrain.trainer import Trainer
from ortrain.training.parameter_groups import no_decay_groups

BALANCED = "balanced"


def data_options(settings: Mapping[str, Any]) -> DataOptions:
    """Return how data are to be read."""
    words = settings["augment"]
    return DataOptions(target=settings["target"], features=settings["features"], categorical=settings["categorical"], missing=settings["missing"],
                       standardize=settings["standardize"], image_size=settings["image_size"], resize=settings["resize"], mean=settings["mean"],
                       std=settings["std"], augment=augment_from(words) if words else None)


def forward_model(settings: Mapping[str, Any]) -> Model:
    """Return the model to be trained, with a new head and with adapters if there are to be some."""
    model = load_model(settings["model"])
    if settings["num_classes"] is not None:
        model = replace_head(model, settings["num_classes"], seed=settings["seed"])
    if not settings["lora"]:
        return model
    if importlib.util.find_spec("safetensors") is None:
        raise MissingPackageError("expected the package safetensors for --lora: pip install 'ortrain[lora]'")
    return lora.add(model, settings["lora"], settings["lora_rank"], alpha=settings["lora_alpha"], seed=settings["seed"],
                    modules_to_save=settings["requires_grad"])


def make_trainer(settings: Mapping[str, Any], *, folder: Path | None = None, overwrite: bool = False, class_weight: np.ndarray | None = None,
                 strategy: Strategy | Launcher | None = None, **more: Any) -> Trainer:
    """Return a trainer on a new session. more: further settings of the trainer.

    Its eval model returns all outputs of the forward model, so that predictions and the trained model have them."""
    model = forward_model(settings)
    requires_grad = lora.parameters(model) if settings["lora"] else settings["requires_grad"]
    input_shapes = {name: tuple(shape) for name, shape in (settings["input_shapes"] or {}).items()}
    trainer = Trainer.from_model(
        model, loss=settings["loss"], loss_options=loss_options(settings), optimizer=optimizer(settings), learning_rate=settings["learning_rate"],
        class_weight=class_weight, requires_grad=requires_grad, frozen_params=settings["frozen"], folder=folder,
        additional_output_names=list(model.graph.outputs), input_shapes=input_shapes or None,
        options=options_of(settings, strategy), overwrite=overwrite, strategy=strategy, **trainer_settings(settings), **more)
    if settings["no_decay"] is not None:
        trainer.session.set_parameter_groups(no_decay_groups(trainer.session, settings["no_decay"] or NO_DECAY))
    return trainer


def options_of(settings: Mapping[str, Any], strategy: Strategy | Launcher | None) -> SessionOptions:
    """Return the options of the session."""
    return session_options(settings["threads"], strategy, settings["precision"], settings["parameter_dtype"], privacy(settings))


def privacy(settings: Mapping[str, Any]) -> DifferentialPrivacy | None:
    """Return the settings of private training, None without noise. Raises InvalidArgumentError for an accountant's settings without what it needs."""
    if settings["noise_multiplier"] is None:
        if settings["delta"] is not None or settings["max_epsilon"] is not None:
            raise InvalidArgumentError("expected --noise-multiplier with --delta and --max-epsilon")
        return None
    if settings["max_epsilon"] is not None and settings["delta"] is None:
        raise InvalidArgumentError("expected --delta with --max-epsilon")
    return DifferentialPrivacy(settings["noise_multiplier"], settings["max_grad_norm"])


def trainer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a Trainer."""
    return {"seed": settings["seed"], "metrics": settings["metrics"] or "auto", "schedule": settings["schedule"], "warmup_steps": settings["warmup_steps"],
            "schedule_options": settings["schedule_options"] or {}, "accumulate": settings["accumulate"], "clip_norm": settings["clip_norm"],
            "weight_average": settings["weight_average"], "patience": settings["patience"], "monitor": monitor(settings),
            "save_every_steps": settings["save_every_steps"], "synchronization": make_synchronization(settings),
            "synchronized_batch_normalization": settings["synchronized_batch_normalization"]}


def monitor(settings: Mapping[str, Any]) -> str:
    """Return the monitored figure."""
    return settings["monitor"] or ("loss" if not Split.of(settings["validation"], 0).has_samples else "validation_loss")


def loss_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the loss."""
    smoothing = {} if settings["label_smoothing"] is None else {"label_smoothing": settings["label_smoothing"]}
    return dict(settings["loss_options"] or {}) | smoothing


def optimizer(settings: Mapping[str, Any]) -> Any:
    """Return the optimizer. Raises InvalidArgumentError for options that it does not have."""
    return made_by_name("optimizer", settings["optimizer"], OPTIMIZERS, dict(settings["optimizer_options"] or {}), internal=("clip_grad",))


def open_data(trainer: Trainer, settings: Mapping[str, Any], preprocessing: Preprocessing | None = None) -> tuple[Preprocessing, Split, TrainingData]:
    """Return the preprocessing, which is fitted unless it is given, the split and the loaders. Raises InvalidArgumentError for data that do not fit."""
    held_out = Split.of(settings["validation"], settings["seed"])
    if preprocessing is None:
        preprocessing = fit_preprocessing(settings["data"], ModelInputs.of(trainer.session, trainer.roles), data_options(settings), held_out)
    preprocessing.check_classes(number_of_classes(trainer))
    data = TrainingData.open(preprocessing, settings["data"], trainer, held_out, settings["batch_size"], settings["seed"])
    return preprocessing, held_out, data


def check_run(trainer: Trainer, data: TrainingData) -> None:
    """Raise the error of a run that cannot succeed, before anything is written: data that do not fit the model, and an unknown figure to be monitored."""
    check_fits(trainer, data)
    figures = trainer.figures(data.validation is not None)
    if trainer.options.monitor not in figures:
        raise InvalidArgumentError(f"expected to monitor one of {', '.join(figures)}, got {trainer.options.monitor!r}")


def number_of_classes(trainer: Trainer) -> int | None:
    """Return the number of the model's scores where its target is one of some classes per sample; None where that is unknown."""
    roles, session = trainer.roles, trainer.session
    model = session.eval_model or session.training_model
    target, scores = model.graph.types.get(roles.targets[0]), model.graph.types.get(roles.predictions or "")
    if target is None or scores is None or target.shape is None or scores.shape is None or not target.dtype.startswith("int"):
        return None
    if len(scores.shape) != 2 or len(target.shape) != 1 or not isinstance(scores.shape[1], int):
        return None
    return scores.shape[1]


def class_weights(words: list[str], trainer: Trainer, data: TrainingData) -> np.ndarray:
    """Return a weight for each class, float32 [classes]: the given ones, or such that all classes count the same.

    Raises InvalidArgumentError where samples have no classes, for words that are no numbers, and for another number of weights than classes."""
    classes = number_of_classes(trainer)
    if words != [BALANCED]:
        try:
            weights = np.array([float(word) for word in words], np.float32)
        except ValueError as error:
            raise InvalidArgumentError(f"expected numbers or {BALANCED} as --class-weight, got {' '.join(words)}") from error
        if classes is not None and len(weights) != classes:
            raise InvalidArgumentError(f"expected {classes} numbers as --class-weight, got {len(weights)}")
        return weights
    labels = class_labels(data.training)
    if labels is None or classes is None:
        raise InvalidArgumentError(f"expected samples with one of some classes each for --class-weight {BALANCED}, got other targets")
    counts = np.bincount(labels[(labels >= 0) & (labels < classes)], minlength=classes)
    return np.where(counts > 0, len(labels) / (np.maximum(counts, 1) * np.count_nonzero(counts)), 0).astype(np.float32)
