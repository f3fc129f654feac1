"""The kinds of attributes agree with ONNX's schemas, cover the attributes of all samples, and are checked."""

import re
from dataclasses import replace

import onnx.defs
import pytest

from ortrain.errors import InvalidModelError
from ortrain.ops.registry.attributes import INTEGER, INTEGERS, KIND_OF_ATTRIBUTE, NUMBER, NUMBERS, OPERATOR_DEPENDENT, TEXT, TEXTS
from ortrain.ops.registry.record import DOMAINS, REGISTRY
from tests.ops.harness import cast, program_of
from tests.ops.samples import Sample
from tests.ops.test_kernels import all_samples

KIND = onnx.defs.OpSchema.AttrType
NAMES_OF_KIND = {KIND.INT: INTEGER, KIND.FLOAT: NUMBER, KIND.STRING: TEXT, KIND.INTS: INTEGERS, KIND.FLOATS: NUMBERS, KIND.STRINGS: TEXTS}
FIRST_CAST = ("Cast", 1)
"""In version 1 of Cast, the attribute `to` is the name of a type."""


def schema_attributes():
    """Yield (op_type, version, attribute name, kind) for all versions of ONNX's operators that have a record."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if ("", schema.name) in REGISTRY and schema.domain == "":
            for attribute in schema.attributes.values():
                yield schema.name, schema.since_version, attribute.name, attribute.type


def test_attribute_kinds_agree_with_the_schemas_of_onnx():
    for op_type, version, name, kind in schema_attributes():
        if name in OPERATOR_DEPENDENT or kind not in NAMES_OF_KIND or (op_type, version) == FIRST_CAST:
            continue
        allowed = INTEGER | NUMBER if kind == KIND.INT else NAMES_OF_KIND[kind]            # NUMBER accepts integers, too
        assert name in allowed, f"{op_type} {version}: {name} is {kind}"


def test_every_attribute_name_has_one_kind():
    groups = (INTEGER, NUMBER, TEXT, INTEGERS, NUMBERS, TEXTS, OPERATOR_DEPENDENT)
    assert sum(map(len, groups)) == len(frozenset().union(*groups))


def test_the_attributes_of_all_samples_have_a_kind():
    samples = [case.values[0] for case in all_samples()]
    unknown = {name for sample in samples if sample.domain in DOMAINS for name in sample.attributes} - KIND_OF_ATTRIBUTE.keys() - OPERATOR_DEPENDENT
    assert not unknown


@pytest.mark.parametrize("value", ["last", 0.5, (1,)])
def test_an_attribute_of_the_wrong_kind_is_refused_by_name_and_value(value):
    concat: Sample = next(case.values[0] for case in all_samples() if case.values[0].op_type == "Concat")
    with pytest.raises(InvalidModelError, match=re.escape(f"expected attribute axis to be an integer, got {value!r}")):
        program_of(replace(concat, attributes={"axis": value}), cast(concat, "float32"), 1)
