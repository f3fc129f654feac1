"""Operators of onnxruntime-training without a record, and the reasons: none of them can run in one process without PyTorch."""

from __future__ import annotations

from ortrain.ir import Node
from ortrain.ops.registry.record import canonical_domain

PYTORCH = "a call of PyTorch"
PROCESSES = "tensors exchanged between processes"
EVENTS = "records for TensorBoard, which no step needs: take it out of the graph"
LAYOUT = "bits in an order that CUDA kernels alone know"

ABSENT = {
    **dict.fromkeys(("PythonOp", "PythonOpGrad", "ATen", "YieldOp"), PYTORCH),
    **dict.fromkeys(("Send", "Recv", "NcclAllReduce", "NcclAllGather", "NcclReduceScatter", "AdasumAllReduce", "MegatronF", "MegatronG"), PROCESSES),
    **dict.fromkeys(("SummaryScalar", "SummaryHistogram", "SummaryMerge", "SummaryText"), EVENTS),
    **dict.fromkeys((f"GistPack{kind}{end}" for kind in ("1", "8", "Msfp15") for end in ("Encoder", "Decoder")), LAYOUT),
}


def reason_of(node: Node) -> str:
    """Return the reason why an operator has no record, to be appended to an error; empty where none is recorded."""
    reason = ABSENT.get(node.op_type) if canonical_domain(node.domain) in ("com.microsoft", "org.pytorch.aten") else None
    return f": {reason}" if reason else ""
