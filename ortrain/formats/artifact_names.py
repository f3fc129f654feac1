"""The file names of training artifacts in onnxruntime-training."""

TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL = "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"
MODELS = (TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL)
CHECKPOINT, NOMINAL_CHECKPOINT = "checkpoint", "nominal_checkpoint"
