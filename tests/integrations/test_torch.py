"""Loaders over real objects of PyTorch, which is too large to be installed for this alone: the environment of the benchmarks, `make bench`, has it."""

import numpy as np
import pytest

from ortrain.data import as_loader
from tests.integrations.test_data import DTYPES, NAMES, X, Y, assert_shuffled, joined

torch = pytest.importorskip("torch")


def test_tensors_that_require_gradients_are_read_like_arrays():
    data = (torch.from_numpy(X).clone().requires_grad_(), torch.from_numpy(Y))
    assert_shuffled(as_loader(*data, names=NAMES, dtypes=DTYPES, batch_size=4, seed=5), 5)


def test_a_tensor_dataset_is_shuffled_like_arrays():
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    assert_shuffled(as_loader(data, names=NAMES, dtypes=DTYPES, batch_size=4, seed=2), 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_keeps_its_own_order(workers):
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    loader = as_loader(torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers), names=NAMES, dtypes=DTYPES)
    for _ in range(2):
        x, labels = joined(loader)
        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(labels, Y)
    assert loader.batches_per_epoch == 3


def test_a_hugging_face_dataset_with_tensors_gives_the_same_batches():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": X.tolist(), "labels": Y.tolist()}).with_format("torch")
    assert_shuffled(as_loader(rows, names=NAMES, dtypes=DTYPES, batch_size=4, seed=1), 1)
