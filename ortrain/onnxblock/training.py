"""ForwardBlock and TrainingBlock: blocks whose result is a model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ortrain.errors import InvalidStateError
from ortrain.formats.onnx_files import to_proto
from ortrain.loading.loader import load_model
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.building import check, register_outputs
from ortrain.onnxblock.model_accessor import current_model
from ortrain.onnxblock.training_graph import TrainingGraphs, make_training_graphs
from ortrain.packages import onnx

Tensors = list["onnx.TensorProto"]


def output_names(output: Any) -> list[str]:
    """Return the result of build() as a list of names."""
    return [output] if isinstance(output, str) else list(output)


class ForwardBlock(Block):
    """A block whose outputs become the outputs of the model."""

    def __init__(self) -> None:
        super().__init__()
        self._model: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add the block to the model being edited; return the name of its output, or a tuple of names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the block and make its outputs the model's. Raises InvalidModelError when the result is not a valid model."""
        output = super().__call__(*args, **kwargs)
        self._model = current_model()
        register_outputs(self._model, output_names(output))
        check(self._model)
        return output

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model. Raises InvalidStateError before the block was called."""
        if self._model is None:
            raise InvalidStateError("Please build the forward models first before trying to retrieve them.")
        return self._model


class TrainingBlock(Block):
    """A block whose first output is the loss; calling it builds the training model and the eval model."""

    def __init__(self) -> None:
        super().__init__()
        self._requires_grad: set[str] = set()
        self._frozen: set[str] = set()
        self._graphs: TrainingGraphs | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add the block to the model being edited; return the name of the loss, or a tuple that starts with it."""

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Set whether an initializer (or input) gets a gradient; with False an initializer becomes a frozen parameter."""
        (self._requires_grad if value else self._frozen).add(argument_name)
        (self._frozen if value else self._requires_grad).discard(argument_name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the block and differentiate.

        Raises InvalidModelError, ParameterNotFoundError for an unknown name given to requires_grad, UnreachableParameterError, MissingGradientError."""
        output = super().__call__(*args, **kwargs)
        model = current_model()
        register_outputs(model, output_names(output))
        check(model)
        self._graphs = make_training_graphs(load_model(model), self._requires_grad, self._frozen)
        return output

    def parameters(self) -> tuple[Tensors, Tensors]:
        """Return the trainable and the frozen parameters. Raises InvalidStateError before the block was called."""
        if self._graphs is None:
            raise InvalidStateError("Please build the training model first before trying to retrieve the parameters.")
        trainable, frozen = (
            [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
            for arrays in (self._graphs.checkpoint.trainable, self._graphs.checkpoint.frozen)
        )
        return trainable, frozen

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return the training model and the eval model. Raises InvalidStateError before the block was called."""
        if self._graphs is None:
            raise InvalidStateError("Please build the training and eval models first before trying to retrieve them.")
        return to_proto(self._graphs.training), to_proto(self._graphs.eval)
