"""The compiled engine: tensors, programs, kernels, products, threads. Knows no graphs and no ONNX."""
