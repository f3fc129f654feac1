"""Constants that exist both in Python (planning) and in C (kernels) have equal values."""

import re
from pathlib import Path

import pytest

import ortrain
from ortrain.ops import channels_last, loss, padding, planes
from ortrain.ops.shared import conv_algorithms
from ortrain.plan import transposes
from ortrain.plan.elementwise_fusion import assembly, group, pieces

KERNELS = Path(ortrain.__file__).parent / "_core" / "kernels"
NUMBER = r"(\d+)(?: << (\d+))?(?![\w.])"
NAME = r"([A-Z][A-Z0-9_]*)"
IN_C = re.compile(rf"#define\s+{NAME}\s+{NUMBER}|\b(?:NAMED\()?{NAME}\)? = {NUMBER}")


def numbers_in_c() -> dict[str, set[int]]:
    """Return name -> the values that the kernel headers define for it."""
    found: dict[str, set[int]] = {}
    for path in sorted(KERNELS.rglob("*.h")):
        for match in IN_C.finditer(path.read_text(encoding="utf-8")):
            name, value, shift = match.groups()[:3] if match[1] else match.groups()[3:]
            found.setdefault(name, set()).add(int(value) << int(shift or 0))
    return found


COPIED = {name: value for module in (conv_algorithms, planes) for name, value in vars(module).items() if name.isupper() and isinstance(value, int)}
PYTHON_ONLY = {"BLOCK_PIXELS", "DEPTHWISE_COLUMNS", "DEPTHWISE_TAPS", "DIRECT_WEIGHTS", "FEW_FILTERS", "FEW_SIDE", "GATHERED", "GROUPED_PIXELS",
               "MAX_PAIR_DEPTH", "MAX_SUMS", "MIN_CHANNELS", "MIN_DEPTHWISE_PIXELS", "MIN_PAIR_PRODUCTS", "MIN_PAIR_SIDE", "MIN_PIXELS", "MIN_ROWS",
               "PRODUCT_WEIGHTS", "ROOM", "ROW_WINOGRAD_SAVING", "SPREAD", "STRIDED_PLANES", "TILED_POINTS", "TILED_PRODUCTS"}
"""Constants that only planning uses, or that C derives in another way."""


@pytest.mark.parametrize("name", sorted(COPIED.keys() - PYTHON_ONLY))
def test_a_constant_is_equal_in_the_kernels(name):
    assert numbers_in_c().get(name) == {COPIED[name]}


def test_a_work_item_of_a_loss_has_the_rows_that_planning_assumes():
    assert numbers_in_c()["LOSS_ROWS"] == {loss.LOSS_ROWS}


def test_chains_of_transposes_count_on_as_many_places_as_strided_copies_have():
    assert numbers_in_c()["MAX_PLACES"] == {transposes.MAX_PLACES}


def test_activations_of_normalizations_have_the_same_numbers_in_the_kernels():
    names = {"OPEN": channels_last.OPEN, "CLOSED": channels_last.CLOSED, "SWISH": channels_last.CURVES["Swish"],
             "LEAKY_RELU": channels_last.CURVES["LeakyRelu"], "HARD_SWISH": channels_last.CURVES["HardSwish"]}
    assert {name: numbers_in_c()[name] for name in names} == {name: {number} for name, number in names.items()}


def test_modes_of_pad_have_the_same_numbers_in_the_kernels():
    listed = re.search(r"enum \{ (PAD_CONSTANT = .*?) \};", (KERNELS / "indexing" / "padding.h").read_text(encoding="utf-8"))
    assert listed is not None and listed[1] == ", ".join(f"PAD_{mode.upper()} = {number}" for number, mode in enumerate(padding.PAD_MODES))


def test_a_worker_has_the_workspace_that_planning_assumes():
    floats = re.search(rf"MIN_WORKSPACE = {NUMBER}", (KERNELS.parent / "engine.pyx").read_text(encoding="utf-8"))
    assert floats is not None and int(floats[1]) << int(floats[2]) == 2 * conv_algorithms.ROOM


def test_products_of_small_sides_are_left_in_float32_by_convolutions_as_by_the_engine():
    side = re.search(rf"MIN_BFLOAT16_SIDE = {NUMBER}", (KERNELS.parent / "engine.pyx").read_text(encoding="utf-8"))
    assert side is not None and numbers_in_c()["ROUNDED_SIDE"] == {int(side[1])}


def test_convolution_methods_have_the_same_numbers_in_the_kernels():
    listed = re.search(r"enum \{ (POINTWISE_GEMM = .*?) \};", (KERNELS / "channels_last" / "conv.h").read_text(encoding="utf-8"))
    assert listed is not None
    assert dict(entry.split(" = ") for entry in listed[1].split(", ")) == {method.name: str(method.value) for method in conv_algorithms.Method}


def test_elementwise_fusion_and_its_kernel_agree_on_forms_and_limits():
    header = (KERNELS / "fused" / "fused.h").read_text(encoding="utf-8")
    for prefix, members in (("OPERAND", assembly.Where), ("FORM", pieces.Form)):
        names = re.search(rf"enum {{ ({prefix}_[^}}]*) }}", header).group(1).split(", ")
        assert names == [f"{prefix}_{member.name}" for member in members]
    limits = dict(re.findall(r"(FUSED_\w+) = (\d+)", header))
    assert [int(limits[name]) for name in ("FUSED_INPUTS", "FUSED_MAX_CALLS", "FUSED_MAX_OPERANDS")] == [
        pieces.MAX_INPUTS, group.MAX_PIECES, assembly.MAX_OPERANDS]
