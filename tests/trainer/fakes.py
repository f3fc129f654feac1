"""A trainer that calls callbacks as the real one does, without training, and a small real session."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.trainer.records import EpochRecord, History, StepRecord


class FakeTrainer:
    """Runs `epochs` epochs of `steps_per_epoch` steps. figures: validation figures of each epoch, the losses of training being 1 / step."""

    def __init__(self, callbacks: list[Any], *, epochs: int = 3, steps_per_epoch: int | None = 4, session: Any = None,
                 validation: list[dict[str, float]] | None = None, settings: dict[str, Any] | None = None, fail_at: int | None = None) -> None:
        self.callbacks = callbacks
        self.epochs, self.steps_per_epoch, self.session = epochs, steps_per_epoch, session
        self.epoch = self.step = 0
        self.history = History()
        self.settings = {"seed": 0, "optimizer": {"name": "AdamW", "betas": [0.9, 0.999]}} if settings is None else settings
        self.output_folder = None
        self.rank = 0
        self.reason: str | None = None
        self.weights: Any = None
        self.restored: Any = None
        self._validation, self._fail_at = validation, fail_at

    def stop(self, reason: str) -> None:
        self.reason = reason

    def save_weights(self) -> Any:
        return f"weights of epoch {self.epoch}"

    def restore_weights(self, saved: Any) -> None:
        self.restored = saved

    def tell(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    def fit(self) -> History:
        """Train until self.epochs epochs are complete, or until stopped."""
        try:
            self.tell("on_fit_begin")
            while self.epoch < self.epochs and self.reason is None:
                self._run_epoch()
            self.tell("on_fit_end")
        except BaseException as error:
            self.tell("on_exception", error)
            raise
        return self.history

    def _run_epoch(self) -> None:
        self.tell("on_epoch_begin")
        steps = self.steps_per_epoch or 4
        for _ in range(steps):
            if self.step == self._fail_at:
                raise KeyboardInterrupt
            self.tell("on_gradients", 1)
            self.step += 1
            self.tell("on_step_end", StepRecord(self.step, self.epoch + 1, 1 / self.step, 0.01, 2.0 if self.step % 2 else None))
        validation = {} if self._validation is None else self._validation[self.epoch]
        if validation:
            self.tell("on_evaluation_end", validation)
        self.epoch += 1
        record = EpochRecord(self.epoch, self.step, {"loss": 1 / self.step, "accuracy": 0.5}, validation, 0.01, 0.25, 10)
        self.history.append(record)
        self.tell("on_epoch_end", record)


def new_session(name: str = "scores", **how: Any) -> TrainingSession:
    """x [n, 6] -> scores [n, 3] through the layers body and head."""
    rng = np.random.default_rng(7)
    weights = {"body.weight": (6, 16), "body.bias": (16,), "head.weight": (16, 3), "head.bias": (3,)}
    initializers = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), weight) for weight, shape in weights.items()]
    nodes = [helper.make_node("Gemm", ["x", "body.weight", "body.bias"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("Gemm", ["r", "head.weight", "head.bias"], [name])]
    graph = helper.make_graph(nodes, "classifier", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
                              [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, additional_output_names=[name], **how)
