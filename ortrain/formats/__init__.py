"""Bytes to objects and back: checkpoints and ONNX models."""
