"""The operators: one record each with shape inference, gradient rule and lowering, in one module per family of operators. Records name kernels by string."""

from ortrain.ops.registry.record import MICROSOFT, RECORD_SOURCES, REGISTRY, OpRecord, record_of


def _onnx_record(domain: str, op_type: str) -> OpRecord | None:
    from ortrain.ops.registry.onnx_definitions import onnx_record  # few models have operators without a record

    return onnx_record(domain, op_type)


RECORD_SOURCES.append(_onnx_record)

__all__ = ["MICROSOFT", "REGISTRY", "OpRecord", "record_of"]
