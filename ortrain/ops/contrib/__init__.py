"""Operators of the domain com.microsoft, as ONNX Runtime's training, optimizer and quantizer write them."""
