"""Inputs of other libraries become arrays, and elements that are not finite are found."""

import numpy as np
import pytest

from ortrain.errors import InputTypeError
from ortrain.runtime.values import as_array, find_non_finite


class Tensor:
    """A tensor that refuses conversion while it requires gradients, as torch.Tensor does."""

    def __init__(self, array, requires_grad=True):
        self.array = array
        self.requires_grad = requires_grad

    def detach(self):
        return Tensor(self.array, requires_grad=False)

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self.array


class ElsewhereTensor(Tensor):
    """A tensor on a device that NumPy cannot read."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def test_a_tensor_that_requires_gradients_is_detached():
    array = np.ones((2, 3), np.float32)
    tensor = Tensor(array)
    assert as_array(tensor, "float32", "input 'x'") is array
    assert tensor.requires_grad, "the user's tensor stays as it is"


def test_a_tensor_that_cannot_be_read_is_refused_with_its_own_reason():
    with pytest.raises(InputTypeError, match="for input 'x', got ElsewhereTensor: can't convert cuda:0"):
        as_array(ElsewhereTensor(np.ones(2, np.float32), requires_grad=False), "float32", "input 'x'")


@pytest.mark.parametrize("value", [object(), [[1, 2], [3]], ["a"], [None], [2**70]], ids=["object", "ragged", "text", "None", "overflow"])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(InputTypeError, match="expected an array of int64 for input 'x'"):
        as_array(value, "int64", "input 'x'")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_the_first_element_that_is_not_finite_is_described(dtype):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    array = np.zeros((5, 2, 3), dtype)
    assert find_non_finite("x", array) is None
    array[3, 1, 0] = np.nan
    assert find_non_finite("x", array) == "NaN in input 'x' in sample 3 at index [1, 0]"
    array[2, 0, 1] = -np.inf
    assert find_non_finite("x", array) == "-infinity in input 'x' in sample 2 at index [0, 1], the first of 2 elements that are not finite"


def test_a_sample_may_be_one_number_and_an_input_a_scalar():
    assert find_non_finite("target", np.array([1.0, np.inf])) == "infinity in input 'target' in sample 1"
    assert find_non_finite("scale", np.array(np.nan)) == "NaN in input 'scale'"


@pytest.mark.parametrize("array", [np.arange(3), np.array([True]), np.array(["a"], object), np.zeros((0, 3), np.float32)], ids=lambda array: str(array.dtype))
def test_what_cannot_be_infinite_is_finite(array):
    assert find_non_finite("x", array) is None
