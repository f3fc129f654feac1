"""Operators of the domain com.microsoft that ONNX Runtime's graph optimizer, quantizer and training emit, as decompositions."""
