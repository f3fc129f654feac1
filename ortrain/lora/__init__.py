"""Low-rank adaptation of frozen weights (LoRA; E. J. Hu et al., 2021), on float and on quantized weights (QLoRA; T. Dettmers et al., 2023).

    adapted = lora.add("model.onnx", targets="*attention*", rank=8)
    trainer = Trainer.from_model(adapted, loss="cross-entropy", requires_grad=lora.parameters(adapted))
    trainer.fit(data, labels, epochs=3)
    lora.save(trainer.session, "adapter")                                     # the adapter alone, a few hundred kB
    write_model(lora.merge(trainer.session.inference_model()), "merged.onnx")

An adapter adds x A B alpha / rank to the output of a layer, A [inputs, rank] and B [rank, outputs] being the only trained weights, beside those of modules
that are trained in full (lora.add(..., modules_to_save="classifier")). Memory for gradients and moments is that of the trained weights."""

from ortrain.lora.adapters import Adapter, adapters
from ortrain.lora.full_weights import parameters
from ortrain.lora.injection import add
from ortrain.lora.merging import merge, remove
from ortrain.lora.peft_files import load, save

__all__ = ["Adapter", "adapters", "add", "load", "merge", "parameters", "remove", "save"]
