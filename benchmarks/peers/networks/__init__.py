"""The networks of benchmarks/networks as torch modules whose parameters have the same names. They take the same sizes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from benchmarks.peers.networks import dense_prediction, held_out, images, others, sequences, transformers

MODULES: dict[str, type[nn.Module]] = {
    "vit": transformers.VisionTransformer, "swin": transformers.Swin, "squeeze-excitation": images.SqueezeExcitation, "densenet": images.DenseNet,
    "inception": images.Inception, "convnext": images.ConvNeXt, "resnext": images.ResNeXt, "shufflenet": images.ShuffleNet,
    "spectrogram-cnn": images.Spectrogram, "unet": dense_prediction.UNet, "feature-pyramid": dense_prediction.FeaturePyramid,
    "single-shot-detector": dense_prediction.SingleShotDetector, "autoencoder": dense_prediction.Autoencoder, "text-cnn": sequences.TextCnn,
    "dilated-audio": sequences.DilatedAudio, "bilstm-attention": sequences.BiLstmAttention, "gru-seq2seq": sequences.GruSeq2Seq,
    "llama": transformers.Llama, "mixer": transformers.Mixer, "tabular": others.Tabular, "siamese": others.Siamese,
    "graph-network": others.GraphNetwork, "flow": others.Flow, "physics-informed": others.PhysicsInformed,
    "efficientnet": held_out.EfficientNet, "encoder-decoder": held_out.EncoderDecoder, "factorization-machine": held_out.FactorizationMachine,
    "super-resolution": held_out.SuperResolution, "conformer": held_out.Conformer, "pointnet": held_out.PointNet, "video": held_out.Video,
    "generator": held_out.Generator, "radiance-field": held_out.RadianceField, "diffusion": held_out.Diffusion,
}


def build(name: str, sizes: Mapping[str, int], state: Mapping[str, np.ndarray]) -> nn.Module:
    """Return the module of a network in training mode, with the weights of the ONNX graph. Raises RuntimeError where names or shapes differ."""
    module = MODULES[name](**sizes)
    counters = {key: value for key, value in module.state_dict().items() if key.endswith("num_batches_tracked")}
    module.load_state_dict({key: torch.from_numpy(array) for key, array in state.items()} | counters)
    return module
