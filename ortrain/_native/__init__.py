"""The native library: libonnxruntime with ONNX Runtime's C interface on ortrain's engine. `source/` is its C, bridge.pyx what it calls of Python."""
