"""Artifacts that ortrain makes, trained by the real onnxruntime-training 1.19.2 in an environment of its own: `python -m tests.peer`."""
