"""Optimizers as blocks: called with the trainable parameters inside `empty_base()`, they build the optimizer model.

Weight decay is coupled or decoupled: coupled, `weight_decay` times the weights is added to the gradients; decoupled, each step multiplies the weights by
1 - learning rate x weight_decay, whatever the gradients are (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019). All classes raise
ArgumentTypeError for hyperparameters that are no numbers and InvalidArgumentError for those out of range. onnxruntime-training can load the models of AdamW
and of SGD without options; those of the others have operators of ortrain's own domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import MICROSOFT, add_node
from ortrain.onnxblock.model_accessor import current_model
from ortrain.onnxblock.training import ForwardBlock
from ortrain.ops.registry import optimizers
from ortrain.ops.registry.optimizers import GRADIENTS, LEARNING_RATE, STEP, OptimizerAlgorithm
from ortrain.packages import onnx


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
        attributes = self.attributes()
        inputs = [gradients if name == GRADIENTS else name for name in self.algorithm.node_inputs(attributes)]
        return add_node(self.algorithm.operator, inputs, [self.updated], self.algorithm.domain, **attributes)[0]

    def build(self, parameters: Sequence[onnx.TensorProto]) -> Any:
        """Build the optimizer model for the trainable parameters. Raises InvalidArgumentError when there is none."""
        if not parameters:
            raise InvalidArgumentError(f"expected at least one trainable parameter for {type(self).__name__}, got none")
        graph = current_model().graph
        graph.input.append(onnx.helper.make_tensor_value_info(LEARNING_RATE, onnx.TensorProto.FLOAT, [1]))
        graph.input.append(onnx.helper.make_tensor_value_info(STEP, onnx.TensorProto.INT64, [1]))
        for name in self.algorithm.inputs(self.attributes())[2:]:
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


# ---- checks of hyperparameters


def _number(value: Any, what: str, fits: Callable[[float], bool], expected: str) -> float:
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise ArgumentTypeError(f"expected a number as {what}, got {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number) or not fits(number):
        raise InvalidArgumentError(f"expected a {what} {expected}, got {number:g}")
    return number


def _share(value: Any, what: str) -> float:
    """Return a factor of a moving average, in [0, 1)."""
    return _number(value, what, lambda number: 0 <= number < 1, "in [0, 1)")


def _amount(value: Any, what: str) -> float:
    """Return a number that is at least 0."""
    return _number(value, what, lambda number: number >= 0, ">= 0")


def _betas(betas: Any) -> dict[str, float]:
    if isinstance(betas, str) or not isinstance(betas, Sequence) or len(betas) != 2:
        raise ArgumentTypeError(f"expected two numbers as betas, got {betas!r}")
    return {"beta1": _share(betas[0], "beta1"), "beta2": _share(betas[1], "beta2")}


class _ConfiguredOptimizer(_Optimizer):
    """An optimizer whose attributes are set when it is created."""

    def __init__(self, clip_grad: ClipGradNorm | None, **attributes: float | int) -> None:
        super().__init__(clip_grad)
        self._attributes = attributes

    def attributes(self) -> dict[str, Any]:
        return self._attributes


class SGD(_ConfiguredOptimizer):
    """Stochastic gradient descent, with momentum on request (torch.optim.SGD).

    momentum: factor of the moving sum of gradients, in [0, 1); 0 keeps none. dampening: share by which each gradient after the first enters it less.
    weight_decay: coupled unless `decoupled`. nesterov: follow Nesterov's momentum (Sutskever and others, 2013). clip_grad: a ClipGradNorm.

    Raises InvalidArgumentError for nesterov without momentum or with dampening."""

    def __init__(self, clip_grad: ClipGradNorm | None = None, *, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False, decoupled: bool = False) -> None:
        momentum, dampening, weight_decay = _share(momentum, "momentum"), _share(dampening, "dampening"), _amount(weight_decay, "weight_decay")
        if nesterov and (momentum == 0 or dampening):
            raise InvalidArgumentError(f"expected a momentum and no dampening for nesterov, got {momentum:g} and {dampening:g}")
        self.algorithm, self.updated = optimizers.SGD, "update_completed"
        if momentum or weight_decay:
            self.algorithm = optimizers.MOMENTUM
            super().__init__(clip_grad, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=int(nesterov), decoupled=int(decoupled))
        else:
            super().__init__(clip_grad)


class Adam(_ConfiguredOptimizer):
    """Adam with bias correction (Kingma and Ba, 2015; torch.optim.Adam). weight_decay: coupled unless `decoupled`; clip_grad: a ClipGradNorm."""

    algorithm = optimizers.ADAM

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0, clip_grad: ClipGradNorm | None = None, *,
                 decoupled: bool = False) -> None:
        super().__init__(clip_grad, **_betas(betas), epsilon=_amount(eps, "eps"), weight_decay=_amount(weight_decay, "weight_decay"), decoupled=int(decoupled))


class Lion(_ConfiguredOptimizer):
    """Lion (Chen and others, Symbolic Discovery of Optimization Algorithms, 2023): each step changes every weight by the learning rate, in the direction of the
    sign of a moving average. It wants a learning rate 3 to 10 times smaller than AdamW's. weight_decay: decoupled; clip_grad: a ClipGradNorm."""

    algorithm = optimizers.LION

    def __init__(self, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__(clip_grad, **_betas(betas), weight_decay=_amount(weight_decay, "weight_decay"))


class RMSprop(_ConfiguredOptimizer):
    """RMSprop (Tieleman and Hinton, 2012; torch.optim.RMSprop).

    alpha: factor of the moving average of squared gradients. momentum: factor of the moving sum of updates, 0 for none. centered: divide by the estimated
    standard deviation instead (Graves, 2013). weight_decay: coupled unless `decoupled`. clip_grad: a ClipGradNorm."""

    algorithm = optimizers.RMSPROP

    def __init__(self, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False,
                 clip_grad: ClipGradNorm | None = None, *, decoupled: bool = False) -> None:
        super().__init__(clip_grad, alpha=_share(alpha, "alpha"), epsilon=_amount(eps, "eps"), momentum=_share(momentum, "momentum"),
                         weight_decay=_amount(weight_decay, "weight_decay"), centered=int(centered), decoupled=int(decoupled))


class Adagrad(_ConfiguredOptimizer):
    """Adagrad (Duchi, Hazan and Singer, 2011; torch.optim.Adagrad).

    lr_decay: step t, from 1, divides the learning rate by 1 + (t - 1) lr_decay. weight_decay: coupled unless `decoupled`. clip_grad: a ClipGradNorm."""

    algorithm = optimizers.ADAGRAD

    def __init__(self, lr_decay: float = 0.0, weight_decay: float = 0.0, eps: float = 1e-10, clip_grad: ClipGradNorm | None = None, *,
                 decoupled: bool = False) -> None:
        super().__init__(clip_grad, epsilon=_amount(eps, "eps"), learning_rate_decay=_amount(lr_decay, "lr_decay"),
                         weight_decay=_amount(weight_decay, "weight_decay"), decoupled=int(decoupled))


class Adafactor(_ConfiguredOptimizer):
    """Adafactor without momentum (Shazeer and Stern, 2018): the second moments of a matrix are kept as one row and one column.

    eps: added to squared gradients, and the least root mean square that scale_parameter assumes. clip_threshold: largest root mean square of an update before
    it is multiplied by the learning rate. decay_rate: the second moments' factor in step t is 1 - t^decay_rate. weight_decay: decoupled.
    scale_parameter: multiply the learning rate by the root mean square of the weights. relative_step: limit the learning rate of step t to 1 / sqrt(t).
    clip_grad: a ClipGradNorm."""

    algorithm = optimizers.ADAFACTOR

    def __init__(self, eps: tuple[float, float] = (1e-30, 1e-3), clip_threshold: float = 1.0, decay_rate: float = -0.8, weight_decay: float = 0.0,
                 scale_parameter: bool = False, relative_step: bool = False, clip_grad: ClipGradNorm | None = None) -> None:
        if isinstance(eps, str) or not isinstance(eps, Sequence) or len(eps) != 2:
            raise ArgumentTypeError(f"expected two numbers as eps, got {eps!r}")
        super().__init__(clip_grad, decay_rate=_number(decay_rate, "decay_rate", lambda number: number <= 0, "<= 0"), epsilon1=_amount(eps[0], "eps[0]"),
                         epsilon2=_amount(eps[1], "eps[1]"), clip_threshold=_number(clip_threshold, "clip_threshold", lambda number: number > 0, "> 0"),
                         weight_decay=_amount(weight_decay, "weight_decay"), scale_parameter=int(scale_parameter), relative_step=int(relative_step))


class LAMB(_ConfiguredOptimizer):
    """LAMB (You and others, Large Batch Optimization for Deep Learning, 2020): Adam whose update of each parameter is scaled to the norm of its weights.

    weight_decay: part of the update that is scaled. clip_grad: a ClipGradNorm."""

    algorithm = optimizers.LAMB

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01, bias_correction: bool = True,
                 clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__(clip_grad, **_betas(betas), epsilon=_amount(eps, "eps"), weight_decay=_amount(weight_decay, "weight_decay"),
                         correct_bias=int(bias_correction))


class Muon(_ConfiguredOptimizer):
    """Muon (Jordan and others, 2024; torch.optim.Muon): the momentum of each matrix is orthogonalized by Newton-Schulz iterations.

    Weights of higher rank count as matrices of their first dimension; those of rank 0 and 1 are updated by AdamW with adam_betas and adam_eps.
    match_rms: multiply updates by 0.2 sqrt(max(rows, columns)), so that AdamW's learning rate fits both (Liu and others, 2025); otherwise by
    sqrt(max(1, rows / columns)). weight_decay: decoupled. clip_grad: a ClipGradNorm.

    Raises InvalidArgumentError when newton_schulz_steps is not in 1 to 100."""

    algorithm = optimizers.MUON

    def __init__(self, momentum: float = 0.95, nesterov: bool = True, newton_schulz_steps: int = 5, weight_decay: float = 0.0, eps: float = 1e-7,
                 match_rms: bool = True, adam_betas: tuple[float, float] = (0.9, 0.999), adam_eps: float = 1e-8,
                 clip_grad: ClipGradNorm | None = None) -> None:
        steps = _number(newton_schulz_steps, "newton_schulz_steps", lambda number: number in range(1, 101), "that is a whole number from 1 to 100")
        super().__init__(clip_grad, **_betas(adam_betas), momentum=_share(momentum, "momentum"), weight_decay=_amount(weight_decay, "weight_decay"),
                         epsilon=_amount(eps, "eps"), adam_epsilon=_amount(adam_eps, "adam_eps"), nesterov=int(nesterov), newton_schulz_steps=int(steps),
                         match_rms=int(match_rms))


OPTIMIZERS: dict[str, type[_Optimizer]] = {
    "adamw": AdamW, "sgd": SGD, "adam": Adam, "lion": Lion, "rmsprop": RMSprop, "adagrad": Adagrad, "adafactor": Adafactor, "lamb": LAMB, "muon": Muon,
}
"""Name -> optimizer, with default hyperparameters."""


def optimizer_by_name(name: str) -> _Optimizer:
    """Return the optimizer of a name, in any case, with default hyperparameters. Raises InvalidArgumentError for an unknown name, with the known ones."""
    found = OPTIMIZERS.get(name.lower())
    if found is None:
        raise InvalidArgumentError(f"expected an optimizer among {', '.join(OPTIMIZERS)}, got {name!r}")
    return found()
