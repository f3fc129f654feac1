"""Loaders over batches that come in their own order: iterables, iterators, and datasets of samples."""

import numpy as np
import pytest

from ortrain.data import as_loader
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, InvalidStateError
from tests.data_loading.fakes import Dataset, HuggingFace, HuggingFaceIterable, Loader, PyDataset, UnsizedLoader
from tests.data_loading.test_arrays import NAMES, X, Y, joined

DTYPES = {"x": "float32", "labels": "int64"}
BATCHES = [(X[start : start + 4], Y[start : start + 4]) for start in range(0, 10, 4)]
ITERABLES = {
    "a list of tuples": BATCHES,
    "a list of dictionaries": [{"labels": y, "x": x} for x, y in BATCHES],
    "a list of nested tuples": [((x,), (y,)) for x, y in BATCHES],
    "a list of tuples of lists": [(x.tolist(), y.tolist()) for x, y in BATCHES],
    "a torch DataLoader": Loader(X, Y, 4),
    "a loader without a length": UnsizedLoader(BATCHES),
    "a Keras PyDataset": PyDataset(X, Y, 4),
    "an iterable dataset": HuggingFaceIterable({"labels": Y, "x": X.tolist()}),
}


@pytest.fixture(autouse=True)
def threads_however_fast(monkeypatch):
    """A thread wherever the loader may use one, after the second batch at the latest."""
    monkeypatch.setattr("ortrain.data.prefetch.WORTHWHILE", 0.0)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 20])
@pytest.mark.parametrize("kind", ITERABLES)
def test_batches_of_iterables_arrive_in_order_in_every_epoch(kind, prefetch):
    loader = as_loader(ITERABLES[kind], names=NAMES, dtypes=DTYPES, batch_size=4, prefetch=prefetch)
    for epoch in range(3):
        batches = list(loader.epoch(epoch))
        assert [len(batch[0]) for batch in batches] == [4, 4, 2]
        np.testing.assert_array_equal(np.concatenate([batch[0] for batch in batches]), X)
        np.testing.assert_array_equal(np.concatenate([batch[1] for batch in batches]), Y)
    assert loader.batches_per_epoch == (None if kind in ("a loader without a length", "an iterable dataset") else 3)
    assert loader.samples is None


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", ITERABLES)
def test_an_iterable_resumed_in_the_middle_of_an_epoch_skips_batches(kind, prefetch):
    loader = as_loader(ITERABLES[kind], names=NAMES, dtypes=DTYPES, batch_size=4, prefetch=prefetch)
    np.testing.assert_array_equal(joined(loader, 1, first=2)[1], Y[8:])


def test_an_iterable_is_started_once_per_epoch():
    data = Loader(X, Y, 4)
    loader = as_loader(data, names=NAMES)
    assert data.epochs == 0
    for epoch in range(3):
        list(loader.epoch(epoch))
    assert data.epochs == 3


def test_steps_per_epoch_ends_an_iterable_early_and_refuses_one_that_is_too_short():
    assert len(list(as_loader(UnsizedLoader(BATCHES), names=NAMES, steps_per_epoch=2).epoch(0))) == 2
    loader = as_loader(UnsizedLoader(BATCHES), names=NAMES, steps_per_epoch=5)
    with pytest.raises(InvalidStateError, match=r"expected 5 batches \(steps_per_epoch\), got 3"):
        list(loader.epoch(0))
    with pytest.raises(InvalidArgumentError, match="expected steps_per_epoch up to 3"):
        as_loader(BATCHES, names=NAMES, steps_per_epoch=4)


class StartsOnce:
    """An object whose second iterator is empty, as that of a map or a file."""

    def __init__(self):
        self.iterator = iter(BATCHES)

    def __iter__(self):
        return self.iterator


def test_an_iterable_that_turns_out_to_be_empty_is_an_error_and_not_an_epoch_without_batches():
    loader = as_loader(StartsOnce(), names=NAMES)
    assert len(list(loader.epoch(0))) == 3
    with pytest.raises(InvalidStateError, match="expected at least one batch, got none"):
        list(loader.epoch(1))


WRONG_BATCHES = {
    "lengths that differ": ((X[:4], Y[:3]), "4 in 'x' .* and 3 in 'labels' .*, in batch 1"),
    "a value too many": ((X[:4], Y[:4], Y[:4]), "expected a batch with values for \\['x', 'labels'\\], got 3 values"),
    "another name": ({"x": X[:4], "label": Y[:4]}, "expected a batch with values for \\['x', 'labels'\\], got \\['label', 'x'\\]"),
    "a value that is not finite": ((X[:4] * np.nan, Y[:4]), "expected finite numbers in 'x', got nan in sample 0 of batch 1, position \\[0\\]"),
    "labels that are fractions": ((X[:4], Y[:4] + 0.5), "expected whole numbers \\(int64\\) in 'labels', got 0.5 in sample 0 of batch 1"),
}


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("case", WRONG_BATCHES)
def test_a_batch_that_does_not_fit_is_refused_with_its_number(case, prefetch):
    batch, message = WRONG_BATCHES[case]
    loader = as_loader([BATCHES[0], batch], names=NAMES, dtypes=DTYPES, prefetch=prefetch)
    iterator = loader.epoch(0)
    next(iterator)
    with pytest.raises(InvalidArgumentError, match=message):
        next(iterator)


# ---- iterators that cannot start again

def numbered():
    """Batch k holds the number k."""
    number = 0
    while True:
        yield np.full((2, 1), number, np.float32), np.full(2, number)
        number += 1


def numbers(batches):
    return [int(batch[1][0]) for batch in batches]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_epochs_of_a_generator_continue_where_the_last_one_ended(prefetch):
    loader = as_loader(numbered(), names=NAMES, steps_per_epoch=3, prefetch=prefetch)
    assert [numbers(loader.epoch(epoch)) for epoch in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_epoch_of_a_generator_that_was_left_early_can_be_resumed_without_losing_a_batch(prefetch):
    loader = as_loader(numbered(), names=NAMES, steps_per_epoch=10, prefetch=prefetch)
    iterator = loader.epoch(0)
    assert numbers([next(iterator) for _ in range(4)]) == [0, 1, 2, 3]
    iterator.close()
    assert numbers(loader.epoch(0, first_batch=4)) == [4, 5, 6, 7, 8, 9]
    iterator = loader.epoch(1)
    next(iterator)
    del iterator
    assert numbers(loader.epoch(1, first_batch=1))[:2] == [11, 12]


def test_an_exception_behind_batches_that_were_left_is_raised_when_its_turn_comes():
    def failing():
        for number in range(5):
            yield np.full((2, 1), number, np.float32), np.full(2, number)
        raise ZeroDivisionError("in the source")

    loader = as_loader(failing(), names=NAMES, steps_per_epoch=10, prefetch=4)
    iterator = loader.epoch(0)
    numbers([next(iterator) for _ in range(3)])
    iterator.channel.thread.join(20)                        # it has met the exception
    iterator.close()
    iterator = loader.epoch(0, first_batch=3)
    assert numbers([next(iterator) for _ in range(2)]) == [3, 4]
    with pytest.raises(ZeroDivisionError, match="in the source"):
        next(iterator)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_run_that_is_resumed_with_a_new_generator_skips_what_the_first_run_used(prefetch):
    loader = as_loader(numbered(), names=NAMES, steps_per_epoch=4, prefetch=prefetch)
    assert numbers(loader.epoch(2, first_batch=1)) == [9, 10, 11]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_generator_cannot_go_back(prefetch):
    loader = as_loader(numbered(), names=NAMES, steps_per_epoch=2, prefetch=prefetch)
    list(loader.epoch(0))
    with pytest.raises(InvalidStateError, match=r"expected data that can be iterated again, to go back to batch 0, .* of which 2 batches are used"):
        loader.epoch(0)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_exhausted_generator_is_an_error_that_counts_its_batches(prefetch):
    loader = as_loader(iter(BATCHES), names=NAMES, steps_per_epoch=2, prefetch=prefetch)
    list(loader.epoch(0))
    with pytest.raises(InvalidStateError, match=r"expected 2 batches in every epoch \(steps_per_epoch\), got 3 batches in all, the last in epoch 1"):
        list(loader.epoch(1))


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("taken", [1, 3])
def test_an_iterator_of_an_earlier_epoch_is_refused_and_does_not_wait_for_ever(taken, prefetch):
    loader = as_loader(numbered(), names=NAMES, steps_per_epoch=5, prefetch=prefetch)
    earlier = loader.epoch(0)
    for _ in range(taken):
        next(earlier)
    assert numbers(loader.epoch(0, first_batch=taken)) == [0, 1, 2, 3, 4][taken:]
    with pytest.raises(InvalidStateError, match="expected the iterator of the latest epoch"):
        list(earlier)


def test_a_generator_needs_steps_per_epoch():
    with pytest.raises(InvalidArgumentError, match=r"expected steps_per_epoch for data that can be iterated once, got None \(batches of generator\)"):
        as_loader(numbered(), names=NAMES)


def test_targets_beside_batches_are_refused():
    with pytest.raises(InvalidArgumentError, match="expected targets=None, since the data bring inputs and targets together: batches of Loader"):
        as_loader(Loader(X, Y, 4), Y, names=NAMES)
    with pytest.raises(InvalidArgumentError, match="expected targets=None, since the data bring inputs and targets together: Dataset of 10 samples"):
        as_loader(Dataset(X, Y), "labels", names=NAMES)
    with pytest.raises(ArgumentTypeError, match="expected an array for 'labels', got the one-shot generator"):
        as_loader(X, (y for y in Y), names=NAMES)


# ---- datasets of samples

SAMPLES = {
    "tuples": Dataset(X, Y),
    "lists": Dataset(X, Y, list),
    "dictionaries": Dataset(X, Y, lambda pair: {"labels": pair[1], "x": pair[0], "number": 3}),
    "nested": Dataset(X, Y, lambda pair: ((pair[0],), {"labels": pair[1]})),
    "a list of tuples": [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    "a list of tuples of arrays": list(zip(X, Y, strict=True)),
    "a list of lists of numbers": [(x.tolist(), int(y)) for x, y in zip(X, Y, strict=True)],
    "a list of dictionaries": [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)],
    "lists of numbers": Dataset(X, Y, lambda pair: (pair[0].tolist(), int(pair[1]))),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_of_a_dataset_are_shuffled_like_arrays(kind):
    loader = as_loader(SAMPLES[kind], names=NAMES, dtypes=DTYPES, batch_size=4, seed=3)
    order = np.random.default_rng([3, 2]).permutation(10)
    x, labels = joined(loader, 2)
    np.testing.assert_array_equal(labels, Y[order])
    np.testing.assert_array_equal(x, X[order])
    assert (loader.samples, loader.batches_per_epoch) == (10, 3)


def test_resuming_a_dataset_reads_no_sample_of_the_batches_before():
    data = Dataset(X, Y)
    loader = as_loader(data, names=NAMES, batch_size=4)
    labels = joined(loader, 0, first=2)[1]
    assert len(labels) == 2 and data.read == labels.tolist()


def test_a_dataset_may_read_several_samples_at_once():
    class Quick(Dataset):
        def __getitems__(self, numbers):
            self.read += [numbers]
            return [(self.x[number], self.y[number]) for number in numbers]

    data = Quick(X, Y)
    np.testing.assert_array_equal(joined(as_loader(data, names=NAMES, batch_size=5, shuffle=False))[0], X)
    assert data.read == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_samples_of_different_shape_are_refused():
    data = Dataset([np.zeros(2), np.zeros(3)], [0, 1])
    with pytest.raises(InvalidArgumentError, match=r"expected values of one shape for 'x', got \[2\] for the first and \[3\] for number 1"):
        list(as_loader(data, names=NAMES, shuffle=False).epoch(0))


def test_columns_of_a_hugging_face_dataset_go_to_inputs_by_name_and_the_dataset_is_left_as_it_is():
    data = HuggingFace({"idx": list(range(10)), "label": Y.tolist(), "x": X.tolist()})
    loader = as_loader(data, names=NAMES, dtypes=DTYPES, batch_size=4, seed=1)
    order = np.random.default_rng([1, 0]).permutation(10)
    x, labels = joined(loader)
    np.testing.assert_array_equal(x, X[order])
    np.testing.assert_array_equal(labels, Y[order])
    assert not data.as_arrays
    named = as_loader(data, "idx", names=NAMES, dtypes=DTYPES, shuffle=False)
    np.testing.assert_array_equal(joined(named)[1], np.arange(10))


def test_columns_that_a_hugging_face_dataset_lacks_are_named():
    data = HuggingFace({"input_ids": [[1]], "mask": [[1]], "label": [1]})
    with pytest.raises(InvalidArgumentError, match=r"got \['input_ids', 'mask', 'label'\], none for \['x'\]"):
        as_loader(data, names=NAMES)
