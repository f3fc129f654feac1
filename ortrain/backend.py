"""The ONNX Backend interface (onnx.backend.base)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortrain.errors import OrtrainError
from ortrain.packages import require_onnx
from ortrain.runtime.inference_session import InferenceSession

require_onnx("the ONNX Backend interface")
import onnx  # noqa: E402  the line above says what to install where it is missing
import onnx.checker  # noqa: E402
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict  # noqa: E402


class OrtrainRep(BackendRep):
    """A prepared model."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Return the outputs, as a named tuple, for inputs in the model's order, by name, or a single array. Raises the input errors of
        InferenceSession.run."""
        names = [kind.name for kind in self.session.get_inputs()]
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            feeds = dict(zip(names, [inputs] if isinstance(inputs, np.ndarray) else inputs, strict=False))
        outputs = self.session.run(None, feeds)
        made: tuple[Any, ...] = namedtupledict("Outputs", [kind.name for kind in self.session.get_outputs()])(*outputs)
        return made


class OrtrainBackend(Backend):
    """ortrain as an ONNX backend for inference on the CPU."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Return whether the model can be prepared."""
        try:
            InferenceSession(model)
        except OrtrainError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> OrtrainRep:
        """Prepare a model. Raises InvalidModelError and the other errors of loading."""
        return OrtrainRep(InferenceSession(model))

    @classmethod
    def run_node(cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
                 **options: Any) -> tuple[Any, ...]:
        """Run one node and return its outputs; opset_version selects the opset (default: the newest)."""
        given = [np.asarray(value) for value in inputs]
        names = [name for name in node.input if name]
        values = [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                  for name, array in zip(names, given, strict=True)]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        opset = onnx.helper.make_opsetid("", options.get("opset_version", onnx.defs.onnx_opset_version()))
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "node", values, outputs), opset_imports=[opset])
        return cls.prepare(model, device).run(given)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device is supported: only the CPU."""
        return bool(Device(device).type == DeviceType.CPU)


prepare, run_model, run_node, supports_device, is_compatible = (
    OrtrainBackend.prepare, OrtrainBackend.run_model, OrtrainBackend.run_node, OrtrainBackend.supports_device, OrtrainBackend.is_compatible)
"""The interface as module-level functions, which some tools expect."""
