"""Weights stored in fewer bits, and quantization-aware training: a model trained with the rounding errors that it will have in int8.

    prepared = quantization.prepare("model.onnx", calibration_batches)
    trainer = Trainer.from_model(prepared, loss="cross-entropy")
    trainer.fit(data, labels, epochs=2)
    write_model(quantization.convert(trainer.session.inference_model()), "int8.onnx")

prepare puts pairs of QuantizeLinear and DequantizeLinear around the inputs of dense layers and convolutions (QDQ format), through which gradients flow by the
straight-through estimator. convert stores the weights as int8, which runtimes such as onnxruntime execute with integer kernels.

quantize_weights stores weights that stay frozen as int8 or in half precision, without calibration, so that a model with adapters trains in less memory."""

from ortrain.quantization.conversion import convert
from ortrain.quantization.preparation import prepare
from ortrain.quantization.weights import quantize_weights

__all__ = ["convert", "prepare", "quantize_weights"]
