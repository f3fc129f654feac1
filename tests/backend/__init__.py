"""The cases of onnx.backend.test through ortrain.backend."""
