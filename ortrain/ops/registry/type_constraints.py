"""Element types of inputs that may differ from the others of their node. Kernels assume that all other inputs have one type and would read beyond
narrower ones."""

from __future__ import annotations

from ortrain.dtypes import FLOATS
from ortrain.ops.registry.optimizers import UPDATES
from ortrain.ops.registry.record import DOMAINS, MICROSOFT, ORTRAIN, REGISTRY, InferenceContext, OpRecord

WHOLE = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int4", "uint4", "int2", "uint2"})
INDEX, FLOAT, BOOL = frozenset({"int32", "int64"}), FLOATS, frozenset({"bool"})
NUMBER = WHOLE | FLOAT
ANY = None

Own = dict[int, frozenset[str] | None]
"""Input position -> the element types it may have; None: any."""
SECOND: Own = {1: INDEX}
OWN: dict[tuple[str, str], Own] = {
    **{("", name): SECOND for name in (
        "AffineGrid", "CumProd", "CumSum", "Expand", "Gather", "GatherElements", "GatherND", "MaxPoolGrad", "MaxUnpool", "NegativeLogLikelihoodLoss",
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
        "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "SoftmaxCrossEntropyLoss", "Split", "Squeeze", "Tile", "TopK", "Trilu",
        "Unsqueeze")},
    **{("", name): {4: INDEX} for name in ("GRU", "LSTM", "RNN")},
    ("", "BatchNormalization"): dict.fromkeys(range(1, 5), FLOAT), ("", "Dropout"): {1: FLOAT, 2: BOOL}, ("", "DFT"): {1: INDEX, 2: INDEX},
    ("", "DequantizeLinear"): {1: FLOAT}, ("", "QuantizeLinear"): {1: FLOAT | WHOLE, 2: ANY}, ("", "OneHot"): {0: NUMBER, 1: NUMBER, 2: ANY},
    ("", "Pad"): {1: INDEX, 3: INDEX}, ("", "Pow"): {1: NUMBER}, ("", "RoiAlign"): {2: INDEX}, ("", "Slice"): dict.fromkeys(range(1, 5), INDEX),
    ("", "Where"): {0: BOOL}, ("", "Resize"): {1: FLOAT, 2: FLOAT, 3: INDEX}, ("", "Upsample"): {1: FLOAT},
    (MICROSOFT, "DropoutGrad"): {1: BOOL, 2: FLOAT, 3: BOOL}, (MICROSOFT, "GatherElementsGrad"): {1: INDEX, 2: INDEX},
    **{(MICROSOFT, name): {0: INDEX, 1: INDEX, 2: FLOAT} for name in ("GatherGrad", "GatherNDGrad")}, (MICROSOFT, "InPlaceAccumulatorV2"): {2: BOOL},
    (MICROSOFT, "ReduceSumTraining"): SECOND, (MICROSOFT, "Scale"): {1: INDEX | FLOAT}, (MICROSOFT, "SliceGrad"): dict.fromkeys(range(1, 6), INDEX),
    (MICROSOFT, "SplitTraining"): SECOND, (MICROSOFT, "SoftmaxCrossEntropyLossGrad"): {2: INDEX},
    (ORTRAIN, "ChannelsLastMaxPoolGrad"): SECOND, (ORTRAIN, "LossAndGradient"): SECOND, (ORTRAIN, "RoiAlignGrad"): {3: INDEX},
    (ORTRAIN, "ScatterElementsProductGrad"): {2: INDEX}, (ORTRAIN, "ScatterNDProductGrad"): {2: INDEX},
    **{(domain, name): {index: INDEX} for domain in (MICROSOFT, ORTRAIN)
       for name, index in (("LSTMTraining", 4), ("GRUTraining", 4), ("LSTMGrad", 3), ("GRUGrad", 4))},
    **{(ORTRAIN, name): {2: FLOAT, 3: BOOL} for name in UPDATES},
    (ORTRAIN, "GemmUpdate"): {4: FLOAT, 5: BOOL},
    (ORTRAIN, "RNNGrad"): {3: INDEX}, (ORTRAIN, "DFTGrad"): {2: INDEX, 3: INDEX},
}
"""The inputs of an operator that are not listed have one common type."""


def check_type_constraints(c: InferenceContext, record: OpRecord) -> None:
    """Raise ShapeInferenceError for inputs whose element types the operator's kernel does not accept together."""
    if record.lower is None or REGISTRY.get((record.domain, record.op_type)) is not record or record.domain not in DOMAINS or record.is_custom:
        return
    own = OWN.get((record.domain, record.op_type), {})
    shared = ""
    for index, kind in enumerate(c.types):
        if kind is None or kind.sequence:
            continue
        if index in own:
            allowed = own[index]
            if allowed is not None and kind.dtype not in allowed:
                raise c.error(f"expected input {index} of {' or '.join(sorted(allowed))}, got {kind.dtype}")
        elif not shared:
            shared = kind.dtype
        elif kind.dtype != shared:
            raise c.error(f"expected input {index} of {shared} as those before it, got {kind.dtype}")
