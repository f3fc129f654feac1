"""The kernels of each module of an instruction set. Rendered by `python -m tests.indexes`."""

KERNEL_MODULES = {
    "activation": (
        "elu", "elu_grad", "celu", "celu_grad", "selu", "selu_grad", "softplus", "softplus_grad", "softsign", "softsign_grad", "mish", "mish_grad",
        "hard_sigmoid", "hard_sigmoid_grad", "hard_swish", "hard_swish_grad", "thresholded_relu", "thresholded_relu_grad", "shrink", "shrink_grad", "prelu",
        "prelu_grad", "prelu_slope_grad",
    ),
    "attention": (
        "attention", "attention_grad",
    ),
    "channels_last": (
        "channels_last_conv", "channels_last_conv_grad", "channels_last_norm", "channels_last_norm_train", "channels_last_norm_grad",
        "channels_last_norm_again", "channels_last_group_norm", "channels_last_group_norm_again", "channels_last_group_norm_grad", "channels_last_max_pool",
        "channels_last_max_pool_grad", "channels_last_average_pool", "channels_last_average_pool_grad",
    ),
    "ctc_loss": (
        "ctc_loss",
    ),
    "cumulative": (
        "running_sum", "running_product", "running_product_grad", "product_of_others",
    ),
    "dropout": (
        "dropout", "dropout_grad",
    ),
    "elementwise": (
        "relu", "leaky_relu", "sigmoid", "tanh", "erf", "exp", "log", "sqrt", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
        "asinh", "acosh", "atanh", "floor", "ceil", "round", "gelu", "fast_gelu", "quick_gelu", "clip", "is_nan", "is_inf", "neg", "abs", "sign", "not", "add",
        "max", "min", "mod", "max_grad", "min_grad", "sub", "mul", "div", "equal", "less", "less_or_equal", "greater", "greater_or_equal", "and", "or", "xor",
        "pow", "relu_grad", "leaky_relu_grad", "sigmoid_grad", "tanh_grad", "gelu_grad", "fast_gelu_grad", "quick_gelu_grad", "where", "cast", "scale", "sum",
    ),
    "fused": (
        "fused",
    ),
    "indexing": (
        "check_range", "concat", "concat_training", "split", "gather", "gather_grad", "gather_nd", "gather_nd_grad", "scatter_nd", "scatter_nd_add",
        "gather_elements", "gather_elements_grad", "scatter_elements", "scatter_elements_add", "one_hot",
    ),
    "linear": (
        "matmul", "gemm", "dequantized_gemm",
    ),
    "loss": (
        "softmax_cross_entropy_loss", "softmax_cross_entropy_loss_grad", "loss_and_gradient", "linear_cross_entropy", "softmax_focal_loss",
        "softmax_focal_loss_grad",
    ),
    "norm": (
        "batch_norm", "batch_norm_train", "batch_norm_grad", "layer_norm", "layer_norm_grad", "group_norm", "group_norm_grad", "rms_norm", "rms_norm_grad",
    ),
    "planes": (
        "planes_conv", "planes_conv_grad",
    ),
    "pool": (
        "max_pool", "max_pool_grad", "average_pool", "average_pool_grad",
    ),
    "recurrent": (
        "lstm", "lstm_grad", "gru", "gru_grad", "rnn", "rnn_grad",
    ),
    "reduce": (
        "reduce_sum", "reduce_mean", "reduce_sum_square", "reduce_prod", "reduce_max", "reduce_min", "extreme_shares",
    ),
    "resize": (
        "resample", "resample_grad",
    ),
    "roi_pooling": (
        "roi_align", "roi_align_grad", "max_roi_pool", "max_roi_pool_grad",
    ),
    "sampling": (
        "grid_sample", "grid_sample_grad", "deformable_columns", "deformable_columns_grad",
    ),
    "scattering": (
        "scatter_elements_reduce", "scatter_nd_reduce", "scatter_elements_product_grad", "scatter_nd_product_grad",
    ),
    "selection": (
        "arg_extreme", "top_k", "reverse_sequence",
    ),
    "shape": (
        "strided_copy", "strided_copies", "strided_place", "pad", "place", "pad_grad", "write_constant", "fill_constant", "range_values",
    ),
    "softmax": (
        "softmax", "log_softmax", "softmax_grad", "log_softmax_grad",
    ),
    "training": (
        "accumulate", "adamw", "sgd", "adam", "momentum", "lion", "rmsprop", "adagrad", "lamb", "adafactor", "muon", "scale_in_place", "clip_in_place",
        "gradient_noise", "moving_average", "exchange", "gemm_update", "squared_norm",
    ),
}
