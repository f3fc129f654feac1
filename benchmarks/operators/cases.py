"""All cases of the operator benchmark."""

from __future__ import annotations

from itertools import chain

from benchmarks.operators import along_axes, elementwise, indexing, products, spatial
from benchmarks.operators.case import Case

CASES: dict[str, Case] = {case.name: case for case in chain(
    elementwise.unary_cases(), elementwise.binary_cases(), elementwise.other_cases(), along_axes.reduction_cases(), along_axes.softmax_cases(),
    along_axes.scan_cases(), along_axes.layer_normalizations(), along_axes.channel_normalizations(), spatial.pooling_cases(), spatial.resize_cases(),
    spatial.sampling_cases(), indexing.shape_cases(), indexing.gather_cases(), products.dense_cases(), products.convolution_cases(),
    products.recurrent_cases(), products.attention_cases())}
"""Name -> case."""


def select(names: list[str] | None) -> dict[str, Case]:
    """Return the cases whose names contain one of these texts, ignoring case; all for None."""
    return {name: case for name, case in CASES.items() if names is None or any(text.lower() in name.lower() for text in names)}
