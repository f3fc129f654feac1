"""Artifacts of ortrain, trained by onnxruntime-training 1.19.2 in a separate environment: `python -m tests.peer`."""
