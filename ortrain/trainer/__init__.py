"""The trainer: fit, evaluate and predict on a model, with metrics, schedules, callbacks, checkpoints and exact resume."""

from ortrain.trainer.callbacks import Callback, EarlyStopping, GradualUnfreezing, LambdaCallback
from ortrain.trainer.learning_rate_finder import LearningRateCurve
from ortrain.trainer.privacy import PrivacyAccountant, PrivacyBudget
from ortrain.trainer.records import EpochRecord, History, StepRecord
from ortrain.trainer.trainer import Trainer

__all__ = ["Callback", "EarlyStopping", "EpochRecord", "GradualUnfreezing", "History", "LambdaCallback", "LearningRateCurve", "PrivacyAccountant",
           "PrivacyBudget", "StepRecord", "Trainer"]
