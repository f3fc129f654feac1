"""The compiled engine: tensors, programs, kernels, matrix multiplication and threads, independent of graphs and ONNX."""
