"""Loggers: callbacks that write the figures of a run into CSV files, TensorBoard event files, MLflow or Weights & Biases."""

from ortrain.trainer.loggers.base import Logger, RunLogger
from ortrain.trainer.loggers.csv_files import CSVLogger
from ortrain.trainer.loggers.mlflow_runs import MLflowLogger
from ortrain.trainer.loggers.tensorboard_files import TensorBoardLogger
from ortrain.trainer.loggers.wandb_runs import WandbLogger

__all__ = ["CSVLogger", "Logger", "MLflowLogger", "RunLogger", "TensorBoardLogger", "WandbLogger"]
