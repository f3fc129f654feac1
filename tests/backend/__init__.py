"""The cases of onnx.backend.test, run by ortrain.backend."""
