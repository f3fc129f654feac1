"""What each operator means: one record each (inference, gradient rule, lowering), by family. Names kernels by string."""

import importlib

from ortrain.ops.definitions import defined
from ortrain.ops.record import FALLBACK, MICROSOFT, REGISTRY, OpRecord, record_of

FAMILIES = ("elementwise", "trigonometry", "activation", "linear", "determinant", "einsum", "conv", "channels_last", "transposed", "resize", "sampling",
            "regions", "pool", "folding", "norm", "cumulative", "reduce", "selection", "softmax", "attention", "transformer", "loss", "shape", "blocks",
            "indexing", "padding", "scattering", "random", "encoding", "fourier", "recurrent", "control", "loop", "quantization", "integer", "quantized",
            "training", "old_forms", "old_passes", "old_optimizers")
"""Each has a module here, kernels in _core/kernels (or those of another family) and samples; `custom` is the user's own."""

for _family in (*FAMILIES, "custom"):
    importlib.import_module(f"ortrain.ops.{_family}")

FALLBACK.append(defined)

__all__ = ["FAMILIES", "MICROSOFT", "REGISTRY", "OpRecord", "record_of"]
