"""Small networks of many kinds, each as an ONNX graph and as a torch module with the same weights: twenty-four that the engine was tuned with, and ten that
it was not."""

from __future__ import annotations

from benchmarks.measure import MEAN_SQUARED_ERROR
from benchmarks.networks import dense_prediction, held_out, images, others, sequences, transformers
from benchmarks.networks.builder import Network

NETWORKS = {
    "vit": Network("vision transformer", transformers.vision_transformer, {"batch": 16, "image": 32, "patch": 4, "width": 128, "heads": 4, "layers": 4},
                   {"batch": 2, "image": 8, "patch": 4, "width": 8, "heads": 2, "layers": 1}),
    "swin": Network("hierarchical transformer with shifted windows", transformers.swin,
                    {"batch": 8, "image": 32, "patch": 2, "width": 48, "heads": 3, "window": 4},
                    {"batch": 2, "image": 16, "patch": 2, "width": 8, "heads": 2, "window": 4}),
    "squeeze-excitation": Network("residual network with channel gates", images.squeeze_excitation, {"batch": 16, "image": 32, "width": 32},
                                  {"batch": 2, "image": 8, "width": 4}),
    "densenet": Network("densely connected network", images.densenet, {"batch": 16, "image": 32, "growth": 12}, {"batch": 2, "image": 8, "growth": 2}),
    "inception": Network("branches of several kernel sizes", images.inception, {"batch": 16, "image": 32, "width": 16},
                         {"batch": 2, "image": 8, "width": 4}),
    "convnext": Network("7 x 7 depthwise convolutions, layer normalization", images.convnext, {"batch": 8, "image": 64, "width": 48},
                        {"batch": 2, "image": 16, "width": 4}),
    "resnext": Network("grouped convolutions, odd batch", images.resnext, {"batch": 15, "image": 32, "width": 32, "groups": 8},
                       {"batch": 3, "image": 8, "width": 4, "groups": 2}),
    "shufflenet": Network("channel split and shuffle", images.shufflenet, {"batch": 16, "image": 64, "width": 24}, {"batch": 2, "image": 8, "width": 4}),
    "spectrogram-cnn": Network("spectrogram classifier, odd sizes", images.spectrogram, {"batch": 16, "bands": 65, "frames": 101, "width": 13},
                               {"batch": 2, "bands": 9, "frames": 11, "width": 3}),
    "unet": Network("encoder and decoder with skip connections, Resize", dense_prediction.unet, {"batch": 4, "image": 64, "width": 16},
                    {"batch": 2, "image": 8, "width": 2}),
    "feature-pyramid": Network("feature pyramid", dense_prediction.feature_pyramid, {"batch": 4, "image": 128, "width": 24},
                               {"batch": 2, "image": 32, "width": 2}),
    "single-shot-detector": Network("detector heads on three scales", dense_prediction.single_shot_detector, {"batch": 8, "image": 96, "width": 16},
                                    {"batch": 2, "image": 16, "width": 2}, MEAN_SQUARED_ERROR),
    "autoencoder": Network("autoencoder with transposed convolutions", dense_prediction.autoencoder, {"batch": 32, "image": 28, "width": 16},
                           {"batch": 2, "image": 8, "width": 2}, MEAN_SQUARED_ERROR),
    "text-cnn": Network("1-D convolutions over tokens", sequences.text_cnn, {"batch": 32, "length": 64, "vocabulary": 5000, "size": 100, "filters": 100},
                        {"batch": 2, "length": 8, "vocabulary": 20, "size": 4, "filters": 3}),
    "dilated-audio": Network("dilated causal 1-D convolutions with gates", sequences.dilated_audio,
                             {"batch": 4, "length": 1024, "width": 32, "classes": 64}, {"batch": 2, "length": 40, "width": 4, "classes": 5}),
    "bilstm-attention": Network("stacked bidirectional LSTM, attention over time", sequences.bilstm_attention,
                                {"batch": 16, "length": 40, "vocabulary": 2000, "size": 64, "hidden": 64},
                                {"batch": 2, "length": 5, "vocabulary": 20, "size": 4, "hidden": 3}),
    "gru-seq2seq": Network("GRU encoder and decoder with attention", sequences.gru_seq2seq,
                           {"batch": 16, "length": 24, "vocabulary": 2000, "size": 64, "hidden": 96},
                           {"batch": 2, "length": 4, "vocabulary": 20, "size": 4, "hidden": 3}),
    "llama": Network("decoder: RMS normalization, rotary positions, gated layers, grouped heads", transformers.llama,
                     {"batch": 4, "length": 64, "vocabulary": 1000, "width": 128, "heads": 4, "groups": 2, "layers": 3},
                     {"batch": 2, "length": 5, "vocabulary": 20, "width": 16, "heads": 4, "groups": 2, "layers": 1}),
    "mixer": Network("MLP-Mixer", transformers.mixer, {"batch": 16, "image": 32, "patch": 4, "width": 96, "layers": 4},
                     {"batch": 2, "image": 8, "patch": 4, "width": 8, "layers": 1}),
    "tabular": Network("embeddings and batch normalization of [n, c]", others.tabular,
                       {"batch": 256, "categories": 8, "numbers": 12, "bins": 50, "size": 8, "hidden": 128},
                       {"batch": 4, "categories": 2, "numbers": 3, "bins": 5, "size": 2, "hidden": 4}),
    "siamese": Network("contrastive network over pairs", others.siamese, {"batch": 32, "image": 28, "width": 16}, {"batch": 3, "image": 8, "width": 2}),
    "graph-network": Network("messages by Gather and ScatterND", others.graph_network, {"nodes": 500, "features": 33, "hidden": 64},
                             {"nodes": 6, "features": 3, "hidden": 4}),
    "flow": Network("affine coupling layers", others.flow, {"batch": 128, "size": 6, "hidden": 64, "layers": 6},
                    {"batch": 3, "size": 4, "hidden": 4, "layers": 2}, MEAN_SQUARED_ERROR),
    "physics-informed": Network("network with its derivatives by its inputs", others.physics_informed, {"batch": 200, "hidden": 20, "layers": 4},
                                {"batch": 3, "hidden": 4, "layers": 2}, MEAN_SQUARED_ERROR),
}
"""Name -> network. benchmarks.peers.networks has the torch module of the same name."""

HELD_OUT = {
    "efficientnet": Network("inverted bottlenecks with channel gates and swish", held_out.efficientnet, {"batch": 16, "image": 64, "width": 16},
                            {"batch": 2, "image": 16, "width": 4}),
    "encoder-decoder": Network("encoder and decoder transformer, one table of tokens", held_out.encoder_decoder,
                               {"batch": 8, "length": 48, "vocabulary": 1000, "width": 128, "heads": 4, "layers": 2},
                               {"batch": 2, "length": 5, "vocabulary": 20, "width": 8, "heads": 2, "layers": 1}),
    "factorization-machine": Network("click model with a large table of embeddings", held_out.factorization_machine,
                                     {"batch": 512, "fields": 16, "bins": 2000, "size": 16, "hidden": 128},
                                     {"batch": 4, "fields": 3, "bins": 5, "size": 2, "hidden": 4}),
    "super-resolution": Network("residual blocks without normalization, shuffled pixels", held_out.super_resolution,
                                {"batch": 4, "image": 48, "width": 32, "blocks": 4}, {"batch": 2, "image": 6, "width": 2, "blocks": 1}, MEAN_SQUARED_ERROR),
    "conformer": Network("attention and gated depthwise convolutions over time", held_out.conformer,
                         {"batch": 4, "frames": 150, "bands": 40, "width": 96, "heads": 4, "layers": 2, "kernel": 15},
                         {"batch": 2, "frames": 7, "bands": 5, "width": 8, "heads": 2, "layers": 1, "kernel": 3}),
    "pointnet": Network("points that share layers", held_out.pointnet, {"batch": 16, "points": 512, "width": 32}, {"batch": 3, "points": 7, "width": 2}),
    "video": Network("convolutions over clips", held_out.video, {"batch": 4, "frames": 8, "image": 48, "width": 16},
                     {"batch": 2, "frames": 4, "image": 8, "width": 2}),
    "generator": Network("images from numbers by transposed convolutions", held_out.generator, {"batch": 32, "latent": 64, "width": 32},
                         {"batch": 2, "latent": 4, "width": 2}, MEAN_SQUARED_ERROR),
    "radiance-field": Network("dense layers over sines of coordinates", held_out.radiance_field,
                              {"batch": 1024, "frequencies": 10, "width": 128, "layers": 6},
                              {"batch": 3, "frequencies": 2, "width": 4, "layers": 3}, MEAN_SQUARED_ERROR),
    "diffusion": Network("U-Net with group normalization and attention", held_out.diffusion, {"batch": 4, "image": 32, "width": 32},
                         {"batch": 2, "image": 8, "width": 8}, MEAN_SQUARED_ERROR),
}
"""Networks that were written when the engine was finished, and measured before anything was changed for them."""

ALL = NETWORKS | HELD_OUT
