"""Check of the element types of inputs before lowering.

A kernel is chosen by the element type of one input and reads the others with the same element size; a narrower input would be read beyond its end. So all
inputs of a node must have one element type, except for those listed here."""

from __future__ import annotations

from ortrain.dtypes import FLOATS
from ortrain.ops.registry.optimizers import UPDATES
from ortrain.ops.registry.record import DOMAINS, MICROSOFT, ORTRAIN, REGISTRY, InferenceContext, OpRecord

INTEGER = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int4", "uint4", "int2", "uint2"})
INDEX, FLOAT, BOOL = frozenset({"int32", "int64"}), FLOATS, frozenset({"bool"})
NUMBER = INTEGER | FLOAT
ANY = None

InputTypes = dict[int, frozenset[str] | None]
"""Input index -> the element types that the input may have; None: any."""
INDEX_SECOND: InputTypes = {1: INDEX}
INPUT_TYPES: dict[tuple[str, str], InputTypes] = {
    **{("", name): INDEX_SECOND for name in (
        "AffineGrid", "CumProd", "CumSum", "Expand", "Gather", "GatherElements", "GatherND", "MaxPoolGrad", "MaxUnpool", "NegativeLogLikelihoodLoss",
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
        "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "SoftmaxCrossEntropyLoss", "Split", "Squeeze", "Tile", "TopK", "Trilu",
        "Unsqueeze")},
    **{("", name): {4: INDEX} for name in ("GRU", "LSTM", "RNN")},
    ("", "BatchNormalization"): dict.fromkeys(range(1, 5), FLOAT), ("", "Dropout"): {1: FLOAT, 2: BOOL}, ("", "DFT"): {1: INDEX, 2: INDEX},
    ("", "DequantizeLinear"): {1: FLOAT}, ("", "QuantizeLinear"): {1: FLOAT | INTEGER, 2: ANY}, ("", "OneHot"): {0: NUMBER, 1: NUMBER, 2: ANY},
    ("", "Pad"): {1: INDEX, 3: INDEX}, ("", "Pow"): {1: NUMBER}, ("", "RoiAlign"): {2: INDEX}, ("", "Slice"): dict.fromkeys(range(1, 5), INDEX),
    ("", "Where"): {0: BOOL}, ("", "Resize"): {1: FLOAT, 2: FLOAT, 3: INDEX}, ("", "Upsample"): {1: FLOAT},
    (MICROSOFT, "DropoutGrad"): {1: BOOL, 2: FLOAT, 3: BOOL}, (MICROSOFT, "GatherElementsGrad"): {1: INDEX, 2: INDEX},
    **{(MICROSOFT, name): {0: INDEX, 1: INDEX, 2: FLOAT} for name in ("GatherGrad", "GatherNDGrad")}, (MICROSOFT, "InPlaceAccumulatorV2"): {2: BOOL},
    (MICROSOFT, "ReduceSumTraining"): INDEX_SECOND, (MICROSOFT, "Scale"): {1: INDEX | FLOAT}, (MICROSOFT, "SliceGrad"): dict.fromkeys(range(1, 6), INDEX),
    (MICROSOFT, "SplitTraining"): INDEX_SECOND, (MICROSOFT, "SoftmaxCrossEntropyLossGrad"): {2: INDEX},
    (ORTRAIN, "DequantizedDense"): {1: frozenset({"int8", "float16", "bfloat16"})},
    (ORTRAIN, "ChannelsLastMaxPoolGrad"): INDEX_SECOND, (ORTRAIN, "LossAndGradient"): INDEX_SECOND, (ORTRAIN, "RoiAlignGrad"): {3: INDEX},
    (ORTRAIN, "LinearCrossEntropy"): {2: INDEX},
    (ORTRAIN, "ScatterElementsProductGrad"): {2: INDEX}, (ORTRAIN, "ScatterNDProductGrad"): {2: INDEX},
    **{(domain, name): {index: INDEX} for domain in (MICROSOFT, ORTRAIN)
       for name, index in (("LSTMTraining", 4), ("GRUTraining", 4), ("LSTMGrad", 3), ("GRUGrad", 4))},
    **{(ORTRAIN, name): {1: FLOAT, 2: FLOAT, 3: BOOL} for name in UPDATES},
    (ORTRAIN, "GemmUpdate"): {2: FLOAT, 4: FLOAT, 5: BOOL, **dict.fromkeys(range(6, 9), FLOAT)},
    (ORTRAIN, "SoftmaxFocalLoss"): INDEX_SECOND, (ORTRAIN, "SoftmaxFocalLossGrad"): {3: INDEX},
    (ORTRAIN, "CTCLoss"): dict.fromkeys(range(1, 4), INDEX),
    (ORTRAIN, "PadGrad"): {2: INDEX, 4: INDEX}, (ORTRAIN, "RNNGrad"): {3: INDEX}, (ORTRAIN, "DFTGrad"): {2: INDEX, 3: INDEX},
}
"""(domain, op_type) -> the inputs whose element type may differ from that of the other inputs."""


def check_type_constraints(c: InferenceContext, record: OpRecord) -> None:
    """Raise ShapeInferenceError for inputs whose element types the operator's kernel does not accept together.

    Operators without a kernel and those that users registered are not checked."""
    if record.lower is None or REGISTRY.get((record.domain, record.op_type)) is not record or record.domain not in DOMAINS or record.is_custom:
        return
    exceptions = INPUT_TYPES.get((record.domain, record.op_type), {})
    common = ""
    for index, kind in enumerate(c.types):
        if kind is None or kind.sequence:
            continue
        if index in exceptions:
            allowed = exceptions[index]
            if allowed is not None and kind.dtype not in allowed:
                raise c.error(f"expected input {index} of {' or '.join(sorted(allowed))}, got {kind.dtype}")
        elif not common:
            common = kind.dtype
        elif kind.dtype != common:
            raise c.error(f"expected input {index} of {common} as those before it, got {kind.dtype}")
