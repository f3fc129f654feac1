"""The list of operators is complete and correct, and docs/operators.md is up to date."""

from pathlib import Path

import onnx
import onnx.defs
import pytest

from ortrain.cli import main
from ortrain.cli.ops import page
from ortrain.operator_support import COMPILED, FIRST_ORDER, NOT_YET, counts, operators

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"


def test_every_operator_of_onnx_is_listed():
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == "" and not schema.deprecated}
    assert names <= {row.name for row in operators() if row.domain == ""}


def test_kernels_and_gradients_are_listed_as_in_the_records():
    rows = {row.name: row for row in operators() if row.domain == ""}
    assert rows["Conv"].kernel == COMPILED and set(rows["Conv"].dtypes) == {"float32", "float64"} and rows["Conv"].opsets[0] == 1
    assert (rows["RotaryEmbedding"].kernel, rows["RotaryEmbedding"].gradient) == ("function", "of its parts")
    assert (rows["NonZero"].kernel, rows["NonZero"].gradient) == ("reference", "none by nature")
    assert (rows["SequenceMap"].kernel, rows["SequenceMap"].gradient) == ("reference", "of its parts")


def test_only_dtypes_that_onnx_allows_are_listed():
    rows = {row.name: row for row in operators() if row.domain == ""}
    for name in ("GlobalAveragePool", "GlobalMaxPool"):                      # their kernels are those of reductions, which have integers, too
        assert set(rows[name].dtypes) == {"float32", "float64"}
    assert set(rows["ReduceMax"].dtypes) >= {"float32", "int64"} and set(rows["ConstantOfShape"].dtypes) >= {"float32", "int64", "bool"}
    assert set(rows["Gather"].dtypes) >= {"float32", "bool"} and "bool" not in rows["Greater"].dtypes


def test_gradient_operators_do_not_count_as_missing_gradients():
    rows = {(row.domain, row.name): row for row in operators()}
    parts = [("com.microsoft", "ReluGrad"), ("com.microsoft", "SoftmaxGrad_13"), ("com.microsoft", "GatherGrad"), ("com.microsoft", "BiasGeluGrad_dX"),
             ("ortrain", "ResizeGrad"), ("", "MaxPoolGrad")]
    assert {rows[key].gradient for key in parts} == {FIRST_ORDER}
    assert not [row.name for row in rows.values() if row.gradient == NOT_YET and row.name.endswith("Grad")]
    assert rows["com.microsoft", "BroadcastGradientArgs"].gradient == "none by nature"


def test_counts_add_up_to_the_number_of_operators():
    found = counts()
    assert sum(count for name, count in found.items() if name.startswith("kernel")) == found["operators"]
    assert sum(count for name, count in found.items() if name.startswith("gradient")) == found["operators"]


def test_no_gradient_is_missing(capsys):
    assert main(["ops", "--not-yet"]) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.endswith(NOT_YET)]


@pytest.mark.skipif(f"onnx {onnx.__version__};" not in PAGE.read_text(encoding="utf-8"), reason="the page was generated with another version of onnx")
def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "render it again: python -m ortrain ops --markdown > docs/operators.md"
