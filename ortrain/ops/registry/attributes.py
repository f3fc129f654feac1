"""Check of attribute values. An attribute of a given name has the same kind of value in all operators, with the exceptions in OPERATOR_DEPENDENT."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np

from ortrain.errors import InvalidModelError
from ortrain.ir import Node
from ortrain.ops.registry.optimizers import ALGORITHMS
from ortrain.ops.registry.record import DOMAINS, OpRecord


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INTEGER = _names("""
    K N adam_mode align_corners allowzero antialias axis batch_axis batch_dims batch_first bits blank block_size blocks blocksize broadcast ceil_mode
    center_point_box channels_last chunk_rows closed correct_bias count_include_pad detect_negative detect_positive direct do_bias_correction do_rotary
    dtype end exclude_outside exclusive first_query fmod fuse_outputs group hidden_size ignore_index input_forget interleaved inverse is_causal
    is_inner_broadcast is_test isinf_only isnan_only k keepdims kv_num_heads largest layout left_window_size linear_before_reset local_window_size new_axis
    noop_with_empty_axes num_groups num_heads num_outputs num_scan_inputs offset_group onesided opset output_dtype output_height output_sequence
    output_width outputs_of_operator periodic positions_last precision q_num_heads qk_matmul_output_mode quant_max quant_type query_rows reads_planes relu
    reverse right_window_size rotary_embedding_dim rotary_interleaved sample_size sampling_ratio saturate scale_down select_last_index size
    softmax_precision sorted start stash_type storage_order time_axis to training_mode transA transB transBatchA transBatchB transposed_dw unidirectional
    upper value_int weighted_mean weight_decay_mode writes_planes zero_infinity
""") | {name for algorithm in ALGORITHMS.values() for name in algorithm.ints}
NUMBER = _names("""
    alpha beta bias clip cubic_coeff_a decay_factor dloss epsilon extrapolation_value gamma height_scale high label_smoothing lambd low
    mask_filter_value max mean min momentum norm_coefficient norm_coefficient_post p ratio ratio_max ratio_min scale scale_0 scale_1 scale_2 seed
    softcap spatial_scale value_float width_scale
""") | {name for algorithm in ALGORITHMS.values() for name in algorithm.floats}
TEXT = _names("""
    activation approximate auto_pad coordinate_transformation_mode direction equation keep_aspect_ratio_policy mode nearest_mode operator operator_domain
    padding_mode product reduction round_mode update value_string
""")
INTEGERS = _names("""
    a_axes a_lengths a_starts axes b_axes b_lengths b_starts bounds consumed_inputs dilations directions dy_perm ends heads_first kernel_shape output_padding
    output_shape paddings pads perm pooled_shape qkv_hidden_sizes scan_input_axes scan_input_directions scan_output_axes scan_output_directions shape split
    starts strides value_ints y_perm
""")
NUMBERS = _names("activation_params scales value_floats")
TEXTS = _names("activations value_strings")
OPERATOR_DEPENDENT = _names("activation_alpha activation_beta indices lambda spatial value weights")
"""Attributes whose kind depends on the operator or its version; the records of the operators check them."""


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in values)


KINDS: tuple[tuple[frozenset[str], str, Callable[[Any], bool]], ...] = (
    (INTEGER, "an integer", lambda value: isinstance(value, Integral)), (NUMBER, "a number", lambda value: isinstance(value, Real)),
    (TEXT, "text", lambda value: isinstance(value, str | bytes)), (INTEGERS, "integers", lambda value: _all_are(value, Integral)),
    (NUMBERS, "numbers", lambda value: _all_are(value, Real)), (TEXTS, "texts", lambda value: _all_are(value, str)),
)
"""(attribute names, description of the kind for error messages, check of a value)"""

KIND_OF_ATTRIBUTE = {name: (description, is_valid) for names, description, is_valid in KINDS for name in names}
"""Attribute name -> (description of its kind, check of a value)."""


def check_attributes(node: Node, record: OpRecord) -> None:
    """Raise InvalidModelError for an attribute of the wrong kind; attributes of operators that users registered are not checked."""
    if record.domain not in DOMAINS or record.is_custom:
        return
    for name, value in node.attributes.items():
        kind = KIND_OF_ATTRIBUTE.get(name)
        if kind is not None and not kind[1](value):
            got = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else repr(value)
            raise InvalidModelError(f"expected attribute {name} to be {kind[0]}, got {got} (operator {node.op_type}, node {node.name!r})")
