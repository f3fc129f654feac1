"""Loaders over arrays: forms in which they are given, order, resuming, lengths."""

import numpy as np
import pytest

from ortrain.data import as_loader
from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from tests.data_loading.fakes import Tensor

NAMES = ["x", "labels"]
X = np.arange(30, dtype=np.float32).reshape(10, 3)
Y = np.arange(10, dtype=np.int64)


def joined(loader, epoch=0, first=0):
    """The arrays of an epoch, its batches put together."""
    return [np.concatenate(parts) for parts in zip(*loader.epoch(epoch, first), strict=True)]


class OnlyDlpack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnlyArray:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


FORMS = {
    "two arrays": (X, Y),
    "a tuple": ((X, Y), None),
    "a list": ([X, Y], None),
    "a mapping": ({"labels": Y, "x": X}, None),
    "mappings of inputs and targets": ({"x": X}, {"labels": Y}),
    "sequences of inputs and targets": ([X], [Y]),
    "nested inputs and targets": (((X,), (Y,)), None),
    "a range": (X, range(10)),
    "nested lists of numbers": (X.tolist(), Y.tolist()),
    "tuples of numbers": ([tuple(row) for row in X.tolist()], tuple(Y.tolist())),
    "tensors that require gradients": (Tensor(X), Tensor(Y, requires_grad=False)),
    "bfloat16 tensors": (Tensor(X, dtype="torch.bfloat16"), Y),
    "objects with __dlpack__": (OnlyDlpack(X), OnlyDlpack(Y)),
    "objects with __array__": (OnlyArray(X), OnlyArray(Y)),
    "an object array of rows": (np.array([*X, None], dtype=object)[:-1], Y),
}


@pytest.mark.parametrize("form", FORMS)
def test_arrays_are_accepted_in_every_usual_form(form):
    data, targets = FORMS[form]
    loader = as_loader(data, targets, names=NAMES, dtypes={"x": "float32", "labels": "int64"}, batch_size=4, shuffle=False)
    x, labels = joined(loader)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(labels, Y)
    assert (x.dtype, labels.dtype) == (np.float32, np.int64)
    assert (loader.samples, loader.batches_per_epoch, loader.names) == (10, 3, NAMES)


def test_the_order_of_an_epoch_is_the_permutation_of_seed_and_epoch():
    loader = as_loader(X, Y, names=NAMES, batch_size=4, seed=7)
    for epoch in (0, 1, 5):
        order = np.random.default_rng([7, epoch]).permutation(10)
        x, labels = joined(loader, epoch)
        np.testing.assert_array_equal(labels, Y[order])
        np.testing.assert_array_equal(x, X[order])


def test_without_shuffling_samples_keep_their_order_in_every_epoch():
    loader = as_loader(X, Y, names=NAMES, batch_size=4, shuffle=False)
    np.testing.assert_array_equal(joined(loader, 3)[1], Y)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_an_epoch_resumed_in_its_middle_yields_the_batches_that_were_left(shuffle, first):
    loader = as_loader(X, Y, names=NAMES, batch_size=4, shuffle=shuffle)
    whole = list(loader.epoch(2))
    rest = list(loader.epoch(2, first_batch=first))
    assert len(rest) == 3 - first
    for batch, expected in zip(rest, whole[first:], strict=True):
        np.testing.assert_array_equal(batch[1], expected[1])


def test_the_last_batch_is_smaller_or_dropped():
    sizes = [len(batch[0]) for batch in as_loader(X, Y, names=NAMES, batch_size=4).epoch(0)]
    assert sizes == [4, 4, 2]
    dropped = as_loader(X, Y, names=NAMES, batch_size=4, drop_last=True)
    assert [len(batch[0]) for batch in dropped.epoch(0)] == [4, 4] and dropped.batches_per_epoch == 2


def test_steps_per_epoch_shortens_an_epoch_and_the_next_has_other_samples():
    loader = as_loader(X, Y, names=NAMES, batch_size=3, steps_per_epoch=2)
    assert loader.batches_per_epoch == 2
    first, second = joined(loader, 0)[1], joined(loader, 1)[1]
    assert len(first) == len(second) == 6 and set(first) != set(second)
    with pytest.raises(InvalidArgumentError, match="expected steps_per_epoch up to 4, the batches that the data have, got 5"):
        as_loader(X, Y, names=NAMES, batch_size=3, steps_per_epoch=5)


def test_fewer_labels_than_samples_are_refused_with_both_names():
    with pytest.raises(InvalidArgumentError, match=r"as many samples in every input, got 1797 in 'x' \(shape \[1797, 64\]\) and 10 in 'labels'"):
        as_loader(np.zeros((1797, 64), np.float32), np.zeros(10, np.int64), names=NAMES)


def test_several_inputs_come_in_the_order_of_the_names():
    names = ["a", "b", "labels"]
    for data, targets in (((X, -X), Y), ({"b": -X, "a": X}, Y), (((X, -X), Y), None), ((X, -X, Y), None), ({"labels": Y, "b": -X, "a": X}, None)):
        a, b, labels = joined(as_loader(data, targets, names=names, shuffle=False))
        np.testing.assert_array_equal(a, X)
        np.testing.assert_array_equal(b, -X)
        np.testing.assert_array_equal(labels, Y)


def test_several_targets_are_given_as_a_sequence_or_a_mapping():
    names = ["x", "labels", "boxes"]
    for targets in ([Y, X], {"boxes": X, "labels": Y}):
        x, labels, boxes = joined(as_loader(X, targets, names=names, shuffle=False))
        np.testing.assert_array_equal(x, boxes)
        np.testing.assert_array_equal(labels, Y)


def test_sample_weights_go_to_the_input_of_that_name_or_to_the_last_one():
    weights = np.linspace(0, 1, 10, dtype=np.float32)
    for names in (["x", "labels", "sample_weight"], ["x", "labels", "weights"]):
        x, labels, weight = joined(as_loader(X, Y, names=names, sample_weight=weights, shuffle=False))
        np.testing.assert_array_equal(weight, weights)
        np.testing.assert_array_equal(labels, Y)
        np.testing.assert_array_equal(x, X)
    x, weight, labels = joined(as_loader(X, Y, names=["x", "sample_weight", "labels"], sample_weight=weights, shuffle=False))
    np.testing.assert_array_equal(labels, Y)
    np.testing.assert_array_equal(weight, weights)
    with pytest.raises(InvalidArgumentError, match=r"10 in 'x'.*3 in 'sample_weight'"):
        as_loader(X, Y, names=["x", "labels", "sample_weight"], sample_weight=weights[:3])


REFUSED = {
    "a mapping with another name": (dict(data={"image": X}, targets=Y), "expected data named \\['x'\\], got \\['image'\\]"),
    "too many arrays": (dict(data=[X, X], targets=Y), "expected data for \\['x'\\], got 2 arrays"),
    "one array for two inputs": (dict(data=X), "expected data for \\['x', 'labels'\\], got one ndarray"),
    "no samples": (dict(data=X[:0], targets=Y[:0]), "expected at least one sample, got none in 'x'"),
    "a single number": (dict(data=X, targets=3), "expected an array with a sample axis for 'labels', got the single value 3"),
    "ragged lists": (dict(data=[[1, 2], [3]], targets=[0, 1]), "expected values of one shape for 'x', got a ragged sequence"),
    "a batch size of zero": (dict(data=X, targets=Y, batch_size=0), "expected batch_size >= 1, got 0"),
    "a negative seed": (dict(data=X, targets=Y, seed=-1), "expected seed >= 0, got -1"),
    "an epoch without a whole batch": (dict(data=X, targets=Y, batch_size=11, drop_last=True), "expected at least one whole batch of 11"),
    "an unknown dtype": (dict(data=X, targets=Y, dtypes={"x": "float33"}), "expected dtypes out of .* got \\['float33'\\]"),
    "a dtype of an unknown input": (dict(data=X, targets=Y, dtypes={"y": "int64"}), "expected dtypes of the inputs .* got one for \\['y'\\]"),
    "masked values": (dict(data=np.ma.masked_less(X, 1), targets=Y), "expected 'x' without missing values, got a masked array with 1 masked"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_do_not_fit_are_refused_in_words(case):
    arguments, message = REFUSED[case]
    with pytest.raises(InvalidArgumentError, match=message):
        as_loader(**({"names": NAMES} | arguments))


def test_data_of_an_unknown_kind_are_refused_by_type():
    with pytest.raises(ArgumentTypeError, match="expected an array, a tensor, a number or a sequence of these for 'x', got object"):
        as_loader(object(), Y, names=NAMES)
    with pytest.raises(ArgumentTypeError, match="expected names as a sequence of the inputs' names, got the string 'xy'"):
        as_loader(X, Y, names="xy")
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ArgumentTypeError, match="expected a dense array for 'x', got the sparse csr_matrix: its method toarray makes one"):
        as_loader(sparse.csr_matrix(X), Y, names=NAMES)
    with pytest.raises(ArgumentTypeError, match=r"expected batch_size as an integer, got 2.5"):
        as_loader(X, Y, names=NAMES, batch_size=2.5)


def test_epochs_and_batches_out_of_range_are_refused_before_iteration():
    loader = as_loader(X, Y, names=NAMES, batch_size=4)
    with pytest.raises(InvalidArgumentError, match="expected number >= 0, got -1"):
        loader.epoch(-1)
    with pytest.raises(InvalidArgumentError, match="expected first_batch up to 3"):
        loader.epoch(0, 4)


def test_a_loader_given_as_data_is_used_as_it_is():
    loader = as_loader(X, Y, names=NAMES, batch_size=4)
    assert as_loader(loader, names=NAMES, batch_size=2) is loader
    with pytest.raises(InvalidArgumentError, match=r"expected a DataLoader for the inputs \['image', 'labels'\], .* got one for \['x', 'labels'\]"):
        as_loader(loader, names=["image", "labels"])
    with pytest.raises(InvalidArgumentError, match="without targets and sample_weight beside it"):
        as_loader(loader, Y, names=NAMES)


def test_a_loader_says_what_it_loads():
    text = as_loader(X, Y, names=NAMES, batch_size=4).describe()
    assert text == "arrays in memory: x float32 [10, 3], labels int64 [10]; 3 batches of 4 per epoch, shuffled"


def test_small_batches_of_arrays_in_memory_never_use_a_thread_and_large_ones_may():
    small = as_loader(X, Y, names=NAMES, batch_size=4)
    large = as_loader(np.zeros((8, 1 << 20), np.float32), np.zeros(8, np.int64), names=NAMES, batch_size=4)
    assert "ahead" not in small.describe() and "up to 2 prepared ahead" in large.describe()
    assert "ahead" not in as_loader(large.source, names=NAMES, batch_size=4, prefetch=0).describe()
