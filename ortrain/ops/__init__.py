"""What each operator means: one record each (inference, gradient rule, lowering), grouped by family. Kernels are named by string."""

import importlib

from ortrain.ops.registry.onnx_definitions import defined
from ortrain.ops.registry.record import FALLBACK, MICROSOFT, REGISTRY, OpRecord, record_of

FAMILIES = ("elementwise", "trigonometry", "activation", "linear", "determinant", "einsum", "conv", "channels_last", "conv_transpose", "resize", "sampling",
            "roi_pooling", "pool", "fold", "norm", "cumulative", "reduce", "selection", "softmax", "attention", "contrib.transformer", "loss", "shape", "space_to_depth",
            "indexing", "padding", "scattering", "dropout", "encoding", "fourier", "recurrent", "control_flow", "loop", "quantization", "integer", "contrib.quantized",
            "training", "contrib.alternative_forms", "contrib.graph_passes",
            "contrib.optimizers")
"""Each family has a module here, kernels in _core/kernels (or those of another family) and samples in tests/ops/samples; `custom` holds users'
operators."""

for _family in (*FAMILIES, "custom"):
    importlib.import_module(f"ortrain.ops.{_family}")

FALLBACK.append(defined)

__all__ = ["FAMILIES", "MICROSOFT", "REGISTRY", "OpRecord", "record_of"]
