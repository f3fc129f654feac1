"""Which arguments of an operator share a type, as the ORT format stores it for its reader to select kernels.

ONNX's operators have schemas. The table here holds the operators of onnxruntime-training, collected from files that it wrote: the type's name of
every input, then of every output, "-" where the type is fixed and nothing is stored."""

from __future__ import annotations

from ortrain.packages import require_onnx

ArgumentTypes = dict[str, list[tuple[int, int]]]
"""Type name -> (0 for inputs or 1 for outputs, number) of the arguments that have it."""

OWN_OPERATORS = {
    "AdamWOptimizer": "T1 T2 S_WEIGHT S_GRAD S_MOMENT S_MOMENT T_BOOL -> T_BOOL S_WEIGHT S_MOMENT S_MOMENT", "AveragePoolGrad": "T -> T",
    "BatchNormInternal": "T T1 T1 T2 T2 -> T T2 T2 T2 T2", "BatchNormalizationGrad": "T T T1 T2 T2 -> T T1 T1", "BiasFastGeluGrad_dX": "T T T -> T",
    "BiasGelu": "T T -> T", "BiasGeluGrad_dX": "T T T -> T", "BroadcastGradientArgs": "T T -> T T", "ConcatTraining": "T -> T Tint",
    "ConvGrad": "T T T -> T T T", "DropoutGrad": "T T2 T1 T2 -> T", "FastGelu": "T T -> T", "FastGeluGrad": "T T -> T", "FusedConv": "T T T T -> T",
    "FusedGemm": "T T T -> T", "FusedMatMul": "T T -> T", "GRUGrad": "T T T T TSize T T T T T -> T T T T T", "GRUTraining": "T T T T TSize T -> T T T",
    "GatherElementsGrad": "T I Tind -> T", "GatherGrad": "I Tind T -> T", "GatherNDGrad": "T1 Tind T -> T", "Gelu": "T -> T", "GeluGrad": "T T -> T",
    "InPlaceAccumulator": "T T_GRAD T_BOOL -> T", "InPlaceAccumulatorV2": "T T_GRAD T_BOOL -> T_BOOL T", "InplaceClipGradNorm": "S_GRAD -> S_GRAD",
    "LSTMGrad": "T T T TSize T T T T T T T T -> T T T T T T T", "LSTMTraining": "T T T T TSize T T T -> T T T T T", "LayerNormalization": "T V V -> V U U",
    "LayerNormalizationGrad": "V T V U U -> T V V", "LeakyReluGrad": "T T -> T", "LogSoftmaxGrad": "T T -> T", "LogSoftmaxGrad_13": "T T -> T",
    "MaxPoolGrad": "T I -> T", "QuickGelu": "T -> T", "QuickGeluGrad": "T T -> T", "ReduceAllL2": "TIn -> TOut", "ReduceSumTraining": "T axes -> T",
    "ReluGrad": "T T -> T", "SGDOptimizerV2": "T1 S_WEIGHT S_GRAD T_BOOL -> T_BOOL S_WEIGHT", "Scale": "T ScaleT -> T", "SigmoidGrad": "T T -> T",
    "SkipLayerNormalization": "T T T T T -> T U U T", "SliceGrad": "T I Tind Tind Tind Tind -> T", "SoftmaxCrossEntropyLossGrad": "T T Tind T -> T",
    "SoftmaxGrad": "T T -> T", "SoftmaxGrad_13": "T T -> T", "SplitTraining": "T split -> T", "TanhGrad": "T T -> T", "ZeroGradient": "T1 T2 -> T1",
}


def argument_types(op_type: str, domain: str, opset: int) -> ArgumentTypes | None:
    """Return the argument types of an operator, None when they are unknown."""
    if op_type in OWN_OPERATORS and domain in ("", "com.microsoft"):
        sides = [side.split() for side in OWN_OPERATORS[op_type].split(" -> ")]
    else:
        definitions = require_onnx("the types of operators in the ORT format", "onnx.defs")
        try:
            schema = definitions.get_schema(op_type, opset, domain)
        except definitions.SchemaError:
            return None
        constraints = {constraint.type_param_str for constraint in schema.type_constraints}
        # an argument of a fixed type is listed under its own name
        sides = [[p.type_str if p.type_str in constraints else p.name for p in parameters] for parameters in (schema.inputs, schema.outputs)]
    found: ArgumentTypes = {}
    for side, names in enumerate(sides):
        for number, name in enumerate(names):
            if name != "-":
                found.setdefault(name, []).append((side, number))
    return found
