"""The node and simple-model cases of onnx.backend.test, and the comparison of their results."""

import functools
import importlib.util
import tomllib
import warnings
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

EXCLUSIONS = Path(__file__).with_name("exclusions.toml")
KINDS = ("node", "simple")


@functools.cache
def cases():
    """Return the cases whose model is in memory, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {case.name: case for kind in KINDS for case in load_model_tests(kind=kind) if case.model is not None}
    # onnx's reference decodes images with Pillow, which ortrain does not need
    return found if importlib.util.find_spec("PIL") else {name: case for name, case in found.items() if "image_decoder" not in name}


def exclusions():
    """Return case name -> the reason why it is not expected to pass."""
    groups = tomllib.loads(EXCLUSIONS.read_text(encoding="utf-8"))
    return {name: group["reason"] for group in groups.values() for name in group["cases"]}


def run(case, prepare):
    """Run a case. Raises AssertionError for another result than expected, or the error of the run."""
    for inputs, outputs in case.data_sets:
        compare(list(prepare(case.model).run([_as_array(value) for value in inputs])), [_as_array(value) for value in outputs], case)


def _as_array(value):
    """Return a value as an array; cases contain values of ml_dtypes types as protos."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def compare(got, wanted, case):
    """Compare results as onnx's own runner does, with the tolerances of the case."""
    assert len(got) == len(wanted)
    for actual, want in zip(got, wanted, strict=True):
        if isinstance(want, list):
            assert isinstance(actual, list)
            compare(actual, want, case)
            continue
        actual, want = np.asarray(actual), np.asarray(want)
        assert actual.shape == want.shape and (actual.dtype == want.dtype or want.dtype.kind in "OUS")
        if want.dtype.kind in "OUSbiu":
            np.testing.assert_array_equal(actual, want)
        else:
            kind = complex if want.dtype.kind == "c" else float
            np.testing.assert_allclose(actual.astype(kind), want.astype(kind), rtol=case.rtol, atol=case.atol)
