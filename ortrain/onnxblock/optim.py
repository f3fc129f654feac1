"""Optimizers as blocks: called with the trainable parameters inside `empty_base()`, they build the optimizer model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx.helper

from ortrain.errors import InvalidArgumentError
from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import MICROSOFT, add_node
from ortrain.onnxblock.model_accessor import current_model
from ortrain.onnxblock.training import ForwardBlock
from ortrain.ops.registry import optimizers
from ortrain.ops.registry.optimizers import GRADIENTS, LEARNING_RATE, STEP, OptimizerAlgorithm


class ClipGradNorm(blocks.Block):
    """Scales a sequence of gradients, in place, so that their common L2 norm is at most max_norm."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self.max_norm = max_norm

    def build(self, gradients: str) -> str:
        output = add_node("InplaceClipGradNorm", [gradients], ["clip_grad_norm_output"], MICROSOFT, max_norm=float(self.max_norm))[0]
        graph = current_model().graph
        kind = next((value.type for value in graph.input if value.name == gradients), None)
        graph.value_info.append(onnx.ValueInfoProto(name=output, type=kind))
        return output


class _Optimizer(ForwardBlock):
    algorithm: OptimizerAlgorithm
    updated = "updated"
    """The name of the node's output."""

    def __init__(self, clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the optimizer's node."""
        return {}

    def update(self, gradients: str) -> str:
        """Add the optimizer's node and return its output; gradients: the sequence, clipped or not."""
        inputs = [gradients if name == GRADIENTS else name for name in self.algorithm.node_inputs]
        return add_node(self.algorithm.operator, inputs, [self.updated], MICROSOFT, **self.attributes())[0]

    def build(self, parameters: Sequence[onnx.TensorProto]) -> Any:
        """Build the optimizer model for the trainable parameters. Raises InvalidArgumentError when there is none."""
        if not parameters:
            raise InvalidArgumentError(f"expected at least one trainable parameter for {type(self).__name__}, got none")
        graph = current_model().graph
        graph.input.append(onnx.helper.make_tensor_value_info(LEARNING_RATE, onnx.TensorProto.FLOAT, [1]))
        graph.input.append(onnx.helper.make_tensor_value_info(STEP, onnx.TensorProto.INT64, [1]))
        for name in self.algorithm.inputs[2:]:
            graph.input.append(onnx.helper.make_tensor_sequence_value_info(name, parameters[0].data_type, None))
        gradients = GRADIENTS if self._clip_grad is None else self._clip_grad(GRADIENTS)
        output = self.update(gradients)
        graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.BOOL, [1]))
        return output


class AdamW(_Optimizer):
    """AdamW with decoupled weight decay; clip_grad: a ClipGradNorm."""

    algorithm, updated = optimizers.ADAMW, "adamw.updated_flag"

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        super().__init__(clip_grad)
        self._attributes: dict[str, Any] = {
            "adam_mode": 1, "alpha": float(betas[0]), "beta": float(betas[1]), "correct_bias": int(bias_correction),
            "epsilon": float(eps), "weight_decay": float(weight_decay),
        }

    def attributes(self) -> dict[str, Any]:
        return self._attributes


class SGD(_Optimizer):
    """Plain gradient descent; clip_grad: a ClipGradNorm."""

    algorithm, updated = optimizers.SGD, "update_completed"
