"""The trainer, under its public name; it lives in ortrain.training.trainer."""

from ortrain.training.trainer import Callback, EpochRecord, Evaluation, Trainer, batches, right_answers, save_learning_curve

__all__ = ["Callback", "EpochRecord", "Evaluation", "Trainer", "batches", "right_answers", "save_learning_curve"]
