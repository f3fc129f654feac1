"""File formats: checkpoints, ONNX models and ORT models, read and written."""
