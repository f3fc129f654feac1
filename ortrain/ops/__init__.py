"""The operators: one record each with shape inference, gradient rule and lowering, in one module per family of operators. Records name kernels by string."""

import importlib

from ortrain.ops.registry.onnx_definitions import onnx_record
from ortrain.ops.registry.record import MICROSOFT, RECORD_SOURCES, REGISTRY, OpRecord, record_of

FAMILIES = (
    "elementwise", "trigonometry", "activation", "linear", "strided_products", "determinant", "einsum", "conv", "channels_last",
    "conv_transpose", "resize", "sampling", "roi_pooling", "pool", "fold", "norm", "cumulative", "reduce",
    "selection", "softmax", "attention", "contrib.transformer", "loss", "ctc_loss", "shape", "space_to_depth", "indexing",
    "padding", "scattering", "dropout", "encoding", "fourier", "recurrent", "control_flow", "loop", "quantization",
    "integer", "contrib.quantized", "training", "contrib.alternative_forms", "contrib.graph_passes",
    "contrib.optimizers",
)
"""Modules of this package, each with samples in the module of the same name in tests/ops/samples."""

for _family in (*FAMILIES, "custom"):
    importlib.import_module(f"ortrain.ops.{_family}")

RECORD_SOURCES.append(onnx_record)

__all__ = ["FAMILIES", "MICROSOFT", "REGISTRY", "OpRecord", "record_of"]
