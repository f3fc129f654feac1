"""The operators that each module of ortrain.ops registers, with their domains. Rendered by `python -m tests.indexes`."""

OPERATOR_MODULES = {
    "activation": (
        "Celu", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu", "Shrink", "Sigmoid", "Softplus", "Softsign",
        "Swish", "Tanh", "ThresholdedRelu", "com.microsoft::BiasFastGeluGrad_dX", "com.microsoft::BiasGelu", "com.microsoft::BiasGeluGrad_dX",
        "com.microsoft::FastGelu", "com.microsoft::FastGeluGrad", "com.microsoft::Gelu", "com.microsoft::GeluGrad", "com.microsoft::LeakyReluGrad",
        "com.microsoft::QuickGelu", "com.microsoft::QuickGeluGrad", "com.microsoft::ReluGrad", "com.microsoft::SigmoidGrad", "com.microsoft::TanhGrad",
        "ortrain::CeluGrad", "ortrain::EluGrad", "ortrain::HardSigmoidGrad", "ortrain::HardSwishGrad", "ortrain::MishGrad", "ortrain::PReluGrad",
        "ortrain::PReluSlopeGrad", "ortrain::SeluGrad", "ortrain::ShrinkGrad", "ortrain::SoftplusGrad", "ortrain::SoftsignGrad", "ortrain::ThresholdedReluGrad",
    ),
    "attention": (
        "Attention",
    ),
    "channels_last": (
        "ortrain::ChannelsLastAveragePool", "ortrain::ChannelsLastAveragePoolGrad", "ortrain::ChannelsLastBatchNormalization",
        "ortrain::ChannelsLastBatchNormalizationGrad", "ortrain::ChannelsLastBatchNormalizationRecompute", "ortrain::ChannelsLastConv",
        "ortrain::ChannelsLastConvGrad", "ortrain::ChannelsLastConvInputGrad", "ortrain::ChannelsLastGroupNorm", "ortrain::ChannelsLastGroupNormGrad",
        "ortrain::ChannelsLastGroupNormRecompute", "ortrain::ChannelsLastMaxPool", "ortrain::ChannelsLastMaxPoolGrad",
    ),
    "contrib.alternative_forms": (
        "SparseSoftmaxCrossEntropy", "SparseSoftmaxCrossEntropyGrad", "com.microsoft::ConvTransposeGrad", "com.microsoft::InvertibleLayerNormalizationGrad",
        "com.microsoft::NegativeLogLikelihoodLossInternal", "com.microsoft::NegativeLogLikelihoodLossInternal2", "com.microsoft::ResizeGrad",
        "com.microsoft::ShrunkenGather", "com.microsoft::SoftmaxCrossEntropy", "com.microsoft::SoftmaxCrossEntropyGrad",
        "com.microsoft::SoftmaxCrossEntropyLossInternal", "com.microsoft::SoftmaxCrossEntropyLossInternalGrad", "com.microsoft::Trilu",
    ),
    "contrib.graph_passes": (
        "com.microsoft::All", "com.microsoft::BatchScale", "com.microsoft::FlattenAndUnpad", "com.microsoft::GistBinarizeDecoder",
        "com.microsoft::GistBinarizeEncoder", "com.microsoft::GistPack16Decoder", "com.microsoft::GistPack16Encoder", "com.microsoft::Group",
        "com.microsoft::IsAllFinite", "com.microsoft::IsFinite", "com.microsoft::MixedPrecisionScale", "com.microsoft::PadAndUnflatten",
        "com.microsoft::PassThrough", "com.microsoft::RecordEvent", "com.microsoft::ScaledSum", "com.microsoft::View", "com.microsoft::WaitEvent",
    ),
    "contrib.optimizers": (
        "com.microsoft::AdamOptimizer", "com.microsoft::LambOptimizer", "com.microsoft::SGDOptimizer",
    ),
    "contrib.quantized": (
        "com.microsoft::DequantizeLinear", "com.microsoft::DynamicQuantizeLSTM", "com.microsoft::DynamicQuantizeMatMul", "com.microsoft::FakeQuant",
        "com.microsoft::FakeQuantGrad", "com.microsoft::MatMulBnb4", "com.microsoft::MatMulIntegerToFloat", "com.microsoft::MatMulNBits",
        "com.microsoft::QGemm", "com.microsoft::QLinearAdd", "com.microsoft::QLinearAveragePool", "com.microsoft::QLinearConcat",
        "com.microsoft::QLinearGlobalAveragePool", "com.microsoft::QLinearLeakyRelu", "com.microsoft::QLinearMul", "com.microsoft::QLinearSigmoid",
        "com.microsoft::QLinearSoftmax", "com.microsoft::QLinearWhere", "com.microsoft::QuantizeLinear",
    ),
    "contrib.transformer": (
        "com.microsoft::Attention", "com.microsoft::BiasSoftmax", "com.microsoft::EmbedLayerNormalization", "com.microsoft::GroupQueryAttention",
        "com.microsoft::MultiHeadAttention", "com.microsoft::RotaryEmbedding", "com.microsoft::SkipSimplifiedLayerNormalization",
    ),
    "control_flow": (
        "If", "SequenceMap",
    ),
    "conv": (
        "Conv", "com.microsoft::ConvGrad", "com.microsoft::FusedConv",
    ),
    "conv_transpose": (
        "ConvTranspose", "ortrain::ConvInputGrad",
    ),
    "ctc_loss": (
        "ortrain::CTCLoss",
    ),
    "cumulative": (
        "CumProd", "CumSum", "ortrain::CumulativeProduct", "ortrain::CumulativeProductGrad",
    ),
    "custom": (
        "ortrain::CustomGradient",
    ),
    "determinant": (
        "Det", "ortrain::DetGrad",
    ),
    "dropout": (
        "Dropout", "com.microsoft::BiasDropout", "com.microsoft::BiasSoftmaxDropout", "com.microsoft::BitmaskBiasDropout", "com.microsoft::BitmaskDropout",
        "com.microsoft::BitmaskDropoutGrad", "com.microsoft::DropoutGrad", "com.microsoft::SoftmaxDropoutGrad",
    ),
    "einsum": (
        "Einsum",
    ),
    "elementwise": (
        "Abs", "Add", "And", "Cast", "Ceil", "Div", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log",
        "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Round", "Sign", "Sqrt", "Sub", "Sum", "Where", "Xor",
        "com.microsoft::DivGrad", "com.microsoft::Scale", "ortrain::MaxGrad", "ortrain::MinGrad",
    ),
    "encoding": (
        "ai.onnx.ml::LabelEncoder",
    ),
    "fold": (
        "Col2Im", "MaxUnpool", "ortrain::Unfold",
    ),
    "fourier": (
        "DFT", "STFT", "ortrain::DFTGrad",
    ),
    "fused_attention": (
        "ortrain::Attention", "ortrain::AttentionGrad", "ortrain::PackedAttention", "ortrain::PackedAttentionGrad",
    ),
    "gathering": (
        "Gather", "GatherElements", "GatherND", "OneHot", "com.microsoft::GatherElementsGrad", "com.microsoft::GatherGrad", "com.microsoft::GatherNDGrad",
    ),
    "ghost_norm": (
        "ortrain::GhostNorm",
    ),
    "indexing": (
        "Concat", "Slice", "Split", "com.microsoft::ConcatTraining", "com.microsoft::SliceGrad", "com.microsoft::SplitTraining", "ortrain::ConcatSlices",
        "ortrain::JoinSlices",
    ),
    "integer": (
        "ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul", "ortrain::DynamicProduct",
    ),
    "linear": (
        "Gemm", "MatMul", "com.microsoft::FusedGemm", "com.microsoft::FusedMatMul", "ortrain::Dense", "ortrain::DequantizedDense",
    ),
    "loop": (
        "Loop", "Scan",
    ),
    "loss": (
        "SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossGrad", "ortrain::LinearCrossEntropy", "ortrain::LossAndGradient",
        "ortrain::SoftmaxFocalLoss", "ortrain::SoftmaxFocalLossGrad",
    ),
    "norm": (
        "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN", "LayerNormalization", "LpNormalization", "RMSNormalization",
        "SimplifiedLayerNormalization", "com.microsoft::BatchNormInternal", "com.microsoft::BatchNormalizationGrad", "com.microsoft::LayerNormalizationGrad",
        "com.microsoft::SimplifiedLayerNormalizationGrad", "com.microsoft::SkipLayerNormalization", "ortrain::GroupNorm", "ortrain::GroupNormGrad",
    ),
    "padding": (
        "Pad", "ortrain::PadGrad",
    ),
    "planes": (
        "ortrain::PlanesConv", "ortrain::PlanesConvGrad",
    ),
    "pool": (
        "AveragePool", "AveragePoolGrad", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool", "MaxPoolGrad",
    ),
    "quantization": (
        "DequantizeLinear", "QuantizeLinear", "ortrain::FakeQuantize",
    ),
    "recurrent": (
        "GRU", "LSTM", "RNN", "com.microsoft::GRUGrad", "com.microsoft::GRUTraining", "com.microsoft::LSTMGrad", "com.microsoft::LSTMTraining",
        "ortrain::GRUGrad", "ortrain::GRUTraining", "ortrain::LSTMGrad", "ortrain::LSTMTraining", "ortrain::RNNGrad",
    ),
    "reduce": (
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
        "com.microsoft::ReduceAllL2", "com.microsoft::ReduceSumTraining", "ortrain::ExtremeGrad", "ortrain::ProductOfOthers",
    ),
    "resize": (
        "Resize", "Upsample", "ortrain::ResampleAxis", "ortrain::ResampleAxisGrad", "ortrain::ResizeGrad",
    ),
    "roi_pooling": (
        "MaxRoiPool", "RoiAlign", "ortrain::MaxRoiPoolGrad", "ortrain::RoiAlignGrad",
    ),
    "sampling": (
        "AffineGrid", "DeformConv", "GridSample", "ortrain::DeformableColumns", "ortrain::DeformableColumnsGrad", "ortrain::GridSampleGrad",
    ),
    "scattering": (
        "Scatter", "ScatterElements", "ScatterND", "TensorScatter", "ortrain::ScatterElementsProductGrad", "ortrain::ScatterNDProductGrad",
    ),
    "selection": (
        "ArgMax", "ArgMin", "Compress", "ReverseSequence", "TopK", "Trilu",
    ),
    "shape": (
        "Constant", "ConstantOfShape", "Expand", "Flatten", "Identity", "Range", "Reshape", "Shape", "Size", "Squeeze", "Tile", "Transpose", "Unsqueeze",
        "com.microsoft::BroadcastGradientArgs",
    ),
    "softmax": (
        "Hardmax", "LogSoftmax", "Softmax", "com.microsoft::LogSoftmaxGrad", "com.microsoft::LogSoftmaxGrad_13", "com.microsoft::SoftmaxGrad",
        "com.microsoft::SoftmaxGrad_13",
    ),
    "space_to_depth": (
        "DepthToSpace", "SpaceToDepth",
    ),
    "strided_products": (
        "ortrain::StridedMatMul",
    ),
    "training": (
        "com.microsoft::InPlaceAccumulator", "com.microsoft::InPlaceAccumulatorV2", "com.microsoft::ZeroGradient", "ortrain::AdafactorUpdate",
        "ortrain::AdagradUpdate", "ortrain::AdamUpdate", "ortrain::AdamWUpdate", "ortrain::GemmUpdate", "ortrain::LambUpdate", "ortrain::LionUpdate",
        "ortrain::MomentumUpdate", "ortrain::MuonUpdate", "ortrain::RMSpropUpdate", "ortrain::SGDUpdate",
    ),
    "trigonometry": (
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan",
    ),
}
