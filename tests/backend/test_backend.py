"""The ONNX Backend interface: all cases of onnx.backend.test pass except those that exclusions.toml lists with a reason."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortrain import backend
from tests.backend.cases import cases, exclusions, run

EXCLUDED = exclusions()
PARTS = 24


def test_exclusions_are_names_of_cases():
    assert set(EXCLUDED) <= set(cases())


@pytest.mark.skipif(onnx.__version__ < "1.23", reason="the exclusions are those of the newest onnx: others have other cases")
@pytest.mark.parametrize("part", range(PARTS))
def test_cases_pass_or_are_excluded(part):
    surprises = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(cases())[part::PARTS]:
            try:
                run(cases()[name], backend.prepare)
            except Exception as error:
                if name not in EXCLUDED:
                    surprises.append(f"{name}: {type(error).__name__}: {error}"[:300])
            else:
                if name in EXCLUDED:
                    surprises.append(f"{name} passes: take it out of exclusions.toml")
    assert not surprises, "\n".join(surprises)


def model():
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "g",
                              [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "ab"],
                              [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_model_is_prepared_and_run():
    a, b = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    prepared = backend.prepare(model())
    for inputs in ([a, b], {"a": a, "b": b}):
        assert prepared.run(inputs).c.tolist() == [4, 6]
    assert backend.run_model(model(), [a, b])[0].tolist() == [4, 6]
    assert backend.is_compatible(model()) and backend.supports_device("CPU") and not backend.supports_device("CUDA")


def test_a_node_is_run():
    assert backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [np.array([-1, 2], np.float32)]).y.tolist() == [0, 2]


def test_optional_outputs_may_be_omitted():
    x = np.array([[3, 1, 2], [4, 6, 5]], np.float32)
    assert backend.run_node(helper.make_node("TopK", ["x", "k"], ["y"]), [x, np.array([2])]).y.tolist() == [[3, 2], [6, 5]]


def test_batch_normalization_in_inference_mode_returns_its_input_statistics():
    x, scale, bias, mean, variance = (np.arange(1, 1 + n, dtype=np.float32).reshape(shape) for n, shape in ((12, (2, 3, 2)), *[(3, (3,))] * 4))
    node = helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], ["y", "new_mean", "new_variance"])
    found = backend.run_node(node, [x, scale, bias, mean, variance])
    y = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(found.y, y, rtol=1e-5)
    assert found.new_mean.tolist() == mean.tolist() and found.new_variance.tolist() == variance.tolist()


def test_an_invalid_model_is_not_compatible():
    broken = model()
    broken.graph.node[0].input[0] = "nothing"
    assert not backend.is_compatible(broken)
