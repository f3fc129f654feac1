"""Operators of onnxruntime-training 1.19 that ortrain does not support, with the reason for each."""

from __future__ import annotations

from ortrain.ir import Node
from ortrain.ops.registry.record import canonical_domain

PYTORCH = "a call into PyTorch"
PROCESSES = "communication between processes"
EVENTS = "output for TensorBoard, which training does not need: remove the node from the model"
LAYOUT = "a compressed layout that only ONNX Runtime's CUDA kernels define"

UNSUPPORTED_OPERATORS = {
    **dict.fromkeys(("PythonOp", "PythonOpGrad", "ATen", "YieldOp"), PYTORCH),
    **dict.fromkeys(("Send", "Recv", "NcclAllReduce", "NcclAllGather", "NcclReduceScatter", "AdasumAllReduce", "MegatronF", "MegatronG"), PROCESSES),
    **dict.fromkeys(("SummaryScalar", "SummaryHistogram", "SummaryMerge", "SummaryText"), EVENTS),
    **dict.fromkeys((f"GistPack{kind}{end}" for kind in ("1", "8", "Msfp15") for end in ("Encoder", "Decoder")), LAYOUT),
}
"""op_type -> why it is not supported."""


def unsupported_reason(node: Node) -> str:
    """Return ": " and the reason why an operator is not supported, to be appended to an error message; "" where no reason is listed."""
    reason = UNSUPPORTED_OPERATORS.get(node.op_type) if canonical_domain(node.domain) in ("com.microsoft", "org.pytorch.aten") else None
    return f": {reason}" if reason else ""
